"""Questions are read whole or named bad by file and line; parts of a split never share a question;
draws repeat.
"""

import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from stages.common.errors import PawlError
from stages.common.questions import PARTS, Question, choose, normalize, read, split, stream, take
from stages.common.schema import Source

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def source(path: Path, **more: object) -> Source:
    return Source(kind="jsonl", path=str(path), **more)  # type: ignore[arg-type]


def row(question: str = "q", answer: str = "a") -> str:
    return json.dumps({"question": question, "answer": answer})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question":', "not JSON: Expecting value at character 13"),
        (b"[1]", "found an array"),
        (b"7", "found int"),
        (b'{"question": "q"}', "expected question and answer"),
        (b'{"question": "q", "answer": null}', "answer is missing"),
        (b'{"question": "q", "answer": ["a"]}', "answer is not text"),
        (b'{"question": "q", "answer": true}', "answer is not text"),
        (b'{"question": "  ", "answer": "a"}', "question is empty"),
        (b'{"question": "q", "answer": NaN}', "NaN is not JSON"),
        (b'{"question": "a\x00b", "answer": "a"}', "control character"),
        (b'{"question": "a\\u0000b", "answer": "a"}', "NUL"),
        (b'{"question": "a\\ud800b", "answer": "a"}', "lone surrogate"),
        (b'{"question": "caf\xe9", "answer": "a"}', "not UTF-8 at byte 17"),
        (b'{"question": "q", "answer": "a"} {}', "Extra data"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": []}', "in turn"),
        (b'{"messages": [{"role": "user", "content": "q"}]}', "in turn"),
        (
            (
                b'{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content":'
                b' "q"}]}'
            ),
            "in turn",
        ),
        (
            b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant"}]}',
            "content is missing",
        ),
        (b'{"messages": "q"}', "not a list"),
    ],
)
def test_a_broken_line_is_named_and_the_rest_is_read(
    line: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(row("first").encode() + b"\n\n" + line + b"\n" + row("last").encode())
    rows, bad = read(source(path), "data.sources.x")
    assert [r.question for r in rows] == ["first", "last"]
    assert [b.where for b in bad] == [f"{path}:3"]
    assert reason in bad[0].reason


def test_bom_and_crlf_are_no_content(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + row("a").encode() + b"\r\n" + row("b").encode() + b"\r\n\r\n"
    )
    rows, bad = read(source(path), "x")
    assert [r.question for r in rows] == ["a", "b"]
    assert not bad


def test_utf16_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row(), encoding="utf-16")
    with pytest.raises(PawlError, match="UTF-16"):
        read(source(path), "x")


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_missing_file_names_the_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError) as error:
        read(source(tmp_path / name), "data.sources.x")
    assert "data.sources.x.path" in error.value.where


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row())
    with pytest.raises(PawlError, match="sha256"):
        read(source(path, sha256="0" * 64), "x")


def test_every_shape_of_row_gives_its_question_and_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    turns = [
        ("system", "s"),
        ("user", "u1"),
        ("assistant", "a1"),
        ("user", "u2"),
        ("assistant", "a2"),
    ]
    values = [
        {"question": "q", "answer": 42, "category": "c"},
        {"instruction": "i", "input": "", "output": "o"},
        {"instruction": "i", "input": "more", "output": "o"},
        {"messages": [{"role": role, "content": content} for role, content in turns]},
    ]
    path.write_text("\n".join(map(json.dumps, values)))
    rows, bad = read(source(path), "x")
    assert not bad
    assert rows == [
        Question("q", "42", "c"),
        Question("i", "o"),
        Question("i\nmore", "o"),
        Question("u2", "a2", "", (("system", "s"), ("user", "u1"), ("assistant", "a1"))),
    ]


def test_a_question_with_braces_survives_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row("f{x} {} {question} {0}"))
    given = source(path, prompt="Q: {question}\nA:")
    rows, _ = read(given, "x")
    assert choose(rows, given, 1, "all")[0].question == "Q: f{x} {} {question} {0}\nA:"


def test_the_first_answers_in_file_order_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row(f"q{i}", "cabd"[i % 4]) for i in range(12)))
    rows, _ = read(source(path, answers=2), "x")
    assert Counter(r.answer for r in rows) == {"c": 3, "a": 3}


def test_a_split_is_half_quarter_quarter_of_each_answer_and_repeats() -> None:
    rows = [Question(f"q{i}", f"a{i % 5}") for i in range(200)]
    parts = split(rows, seed=3)
    assert {part: Counter(r.answer for r in group) for part, group in parts.items()} == {
        part: {f"a{i}": n for i in range(5)}
        for part, n in (("train", 20), ("val", 10), ("test", 10))
    }
    again = split(list(reversed(rows)), seed=3)
    assert {part: set(group) for part, group in parts.items()} == {
        part: set(group) for part, group in again.items()
    }, "whatever the file's order"
    assert set(split(rows, seed=4)["val"]) != set(parts["val"])


def test_free_text_answers_are_split_as_one() -> None:
    parts = split([Question(f"q{i}", f"free {i}") for i in range(80)], seed=1)
    assert {part: len(rows) for part, rows in parts.items()} == {"train": 40, "val": 20, "test": 20}


def test_a_repeated_question_never_lands_in_two_parts() -> None:
    rows = [
        Question(text, answer)
        for i in range(50)
        for text, answer in ((f"Q {i}", "a"), (f" q  {i} ", "a"), (f"\uff31 {i}", "b"))
    ]
    places: dict[str, set[str]] = {}
    for part, group in split(rows, seed=1).items():
        for r in group:
            places.setdefault(normalize(r.question), set()).add(part)
    assert len(places) == 50
    assert all(len(found) == 1 for found in places.values())


def test_signs_are_not_lost_by_normalization() -> None:
    assert normalize("4 -  1\n") == normalize("4 - 1") != normalize("4 + 1")


def test_take_stops_where_nothing_new_comes() -> None:
    seen: set[str] = set()
    taken, drawn = take(
        (Question(str(i % 7), "a") for i in itertools.count()),
        9,
        lambda q: not (q.question in seen or seen.add(q.question)),
    )
    assert len(taken) == 7
    assert drawn == 1007


def test_take_leaves_the_next_question_in_the_stream() -> None:
    questions = (Question(str(i), "a") for i in itertools.count())
    first, second = take(questions, 2, lambda _: True), take(questions, 1, lambda _: True)
    assert [q.question for q in (*first[0], *second[0])] == ["0", "1", "2"]


def test_neighbouring_seeds_draw_different_questions() -> None:
    """reasoning_gym draws item i from seed + i: seeds 1 and 2 would share all items but one."""
    wide = Source(
        kind="procedural", task="chain_sum", settings=SUMS | {"min_digits": 6, "max_digits": 6}
    )
    one, two = (
        {q.question for q in itertools.islice(stream(wide, seed, "x"), 500)} for seed in (1, 2)
    )
    assert len(one) == len(two) == 500
    assert not one & two


def test_a_stream_repeats_and_goes_on_past_its_first_block() -> None:
    sums = Source(kind="procedural", task="chain_sum", settings=SUMS)
    one, two = ([q for q in itertools.islice(stream(sums, 5, "x"), 1500)] for _ in range(2))
    assert one == two
    assert one[1024:] != one[:476]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("chain_sun", {}, "did you mean chain_sum"),
        ("chain_sum", {"min_trems": 2}, "did you mean min_terms"),
        ("chain_sum", {"seed": 2}, "unknown setting"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "max_terms must be"),
        ("chain_sum", {"min_terms": "a"}, "cannot be drawn"),
    ],
)
def test_an_unknown_task_or_setting_names_the_nearest(
    task: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(PawlError) as error:
        next(
            stream(Source(kind="procedural", task=task, settings=settings), 1, "benchmark.tasks.x")
        )
    assert message in str(error.value)
    assert error.value.where.startswith("benchmark.tasks.x.")


@pytest.mark.parametrize("answers", [2, 40, 1000])
def test_the_parts_are_seeded_halves_and_quarters_of_each_answer_in_an_order_that_stays(
    answers: int,
) -> None:
    rows = [Question(f"Question {n % 300}", f"answer {n % answers}") for n in range(400)]
    parts = split(rows, 5)
    assert sorted(row.question for part in parts.values() for row in part) == sorted(
        row.question for row in rows
    )
    assert not {row.question for row in parts["train"]} & {
        row.question for row in parts["val"] + parts["test"]
    }
    drawn = " ".join(row.question.split()[1] for part in PARTS for row in parts[part])
    assert (
        hashlib.sha256(drawn.encode()).hexdigest()[:12]
        == {2: "0fafe1413069", 40: "1faac93a354f", 1000: "cad302e43aeb"}[answers]
    )
