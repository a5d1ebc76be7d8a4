"""Every file format and every shape of a row is read, streamed, or named bad by its place; nothing
is dropped in silence.
"""

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stages.common import records
from stages.common.errors import PawlError
from stages.common.records import Bad, parse
from stages.common.shapes import Question, question_of

ROWS = [{"question": f"q{n}", "answer": f"a{n}", "category": "c"} for n in range(3)]
WANTED = [Question(f"q{n}", f"a{n}", "c") for n in range(3)]


def read(path: Path, **more: Any) -> tuple[list[Question], list[Bad]]:
    found = list(parse(path, path.name, **more))
    return [one[1] for one in found if isinstance(one, tuple)], [
        one for one in found if isinstance(one, Bad)
    ]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


LINES = "\n".join(map(json.dumps, ROWS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.json", LINES),
        ("a.json", json.dumps(ROWS)),
        ("a.json", "\ufeff " + json.dumps(ROWS, indent=2)),
        ("a.json", json.dumps({"version": 1, "data": ROWS}, indent=2)),
        ("a.jsonl", "\ufeff" + LINES.replace("\n", "\r\n\r\n") + "\r\n"),
        ("a.csv", "question,answer,category\r\nq0,a0,c\r\nq1,a1,c\r\n\r\nq2,a2,c"),
        ("a.csv", "\ufeffquestion;answer;category\nq0;a0;c\nq1;a1;c\nq2;a2;c\n"),
        ("a.tsv", "question\tanswer\tcategory\nq0\ta0\tc\nq1\ta1\tc\nq2\ta2\tc\n"),
    ],
)
def test_every_kind_of_text_file_gives_its_rows(name: str, content: str, tmp_path: Path) -> None:
    assert read(written(tmp_path / name, content)) == (WANTED, [])


def test_parquet_gives_its_rows_and_a_broken_one_is_named(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.Table.from_pylist([*ROWS, {"question": None, "answer": "a", "category": None}]),
        tmp_path / "a.parquet",
    )
    rows, bad = read(tmp_path / "a.parquet")
    assert rows == WANTED
    assert [(one.where, one.reason) for one in bad] == [("a.parquet[3]", "question is missing")]
    with pytest.raises(PawlError, match="Parquet file cannot be read"):
        read(written(tmp_path / "b.parquet", b"PAR1 and nothing else"))


@pytest.mark.parametrize(
    ("name", "content", "reasons"),
    [
        (
            "a.jsonl",
            '{"question": "q", "question": "r", "answer": "a"}',
            ["the key 'question' occurs twice"],
        ),
        ("a.jsonl", '{"question": "q\\u0000", "answer": "a"}', ["question holds a NUL character"]),
        (
            "a.jsonl",
            '{"question": "q\\ud800", "answer": "a"}',
            ["question holds a lone surrogate, which is no character"],
        ),
        ("a.jsonl", b'\x00\x00{"question": "q"}', ["not JSON: Expecting value at character 1"]),
        (
            "a.json",
            '[{"question": "q"}, 7, null]',
            ["expected question and answer", "found int", "found NoneType"],
        ),
        (
            "a.csv",
            "question,answer\nq\nq,a,b\n",
            ["1 fields, the header has 2", "3 fields, the header has 2"],
        ),
        ("a.csv", b"question,answer\nq\xff,a\n", ["not UTF-8: the byte 0xff"]),
        ("a.csv", 'question,answer\n"q,a\n', ["not CSV: unexpected end of data"]),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_reason(
    name: str, content: str | bytes, reasons: list[str], tmp_path: Path
) -> None:
    rows, bad = read(written(tmp_path / name, content))
    assert not rows
    assert len(bad) == len(reasons)
    for one, reason in zip(bad, reasons, strict=True):
        assert reason in one.reason
        assert one.where.startswith(name)


def test_a_huge_row_is_bad_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LARGEST_ROW", 1000)
    monkeypatch.setattr(records, "_CHUNK", 100)
    path = written(
        tmp_path / "a.jsonl",
        "\n".join(
            [
                json.dumps(ROWS[0]),
                json.dumps({"question": "x" * 5000, "answer": "y"}),
                json.dumps(ROWS[1]),
            ]
        ),
    )
    rows, bad = read(path)
    assert rows == WANTED[:2]
    assert [one.where for one in bad] == ["a.jsonl:2"]
    assert len(bad[0].raw) <= 2000


@pytest.mark.parametrize(
    ("column", "good", "bad", "form"),
    [
        ("label", "true", "false", ""),
        ("label", "True", " FALSE ", ""),
        ("kto_tag", "true", "false", ""),
        ("kto_tag", "1", "0", ""),
        ("label", "1", "0", "kto"),
    ],
)
def test_a_label_in_a_table_is_text_and_counts(
    column: str, good: str, bad: str, form: str, tmp_path: Path
) -> None:
    rows = read(
        written(tmp_path / "a.csv", f"question,answer,{column}\nq,a,{good}\nq,b,{bad}\n"), form=form
    )
    assert rows == ([Question("q", "a", label=True), Question("q", "b", label=False)], [])


def test_numbers_of_a_column_label_may_be_classes_and_count_only_where_the_shape_or_the_format_says_so(
    tmp_path: Path,
) -> None:
    rows, bad = read(written(tmp_path / "a.csv", "question,answer,label\nq,a,1\nq,b,0\n"))
    assert not rows and [one.unused for one in bad] == ["label", "label"]
    numbers = written(tmp_path / "a.jsonl", '{"question": "q", "answer": "a", "label": 1}\n')
    assert read(numbers, form="kto") == ([Question("q", "a", label=True)], [])
    assert read(numbers, ignore=["label"]) == ([Question("q", "a")], [])


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (True, False),
        (1, 0),
        (1.0, 0.0),
        ("1", "0"),
        ("1.0", "0.0"),
        ("true", "FALSE"),
        ("yes", "No"),
        ("desirable", "undesirable"),
        ("Good", "bad"),
        ("thumbs_up", "thumbs-down"),
        ("Thumbs up", "thumbs down"),
        ("accepted", "rejected"),
        ("y", "n"),
        ("\U0001f44d", "\U0001f44e"),
        ("like", "dislike"),
    ],
)
def test_a_label_of_any_usual_spelling_says_which_answers_are_bad(good: Any, bad: Any) -> None:
    for label, wanted in ((good, True), (bad, False)):
        assert question_of({"prompt": "p", "completion": "c", "label": label}) == Question(
            "p", "c", label=wanted
        )
        assert question_of({"question": "p", "answer": "c", "kto_tag": label}) == Question(
            "p", "c", label=wanted
        )
        assert question_of({"messages": turns(USER, GOOD), "label": label}, "kto").label is wanted


@pytest.mark.parametrize("label", [2, -1, 0.5, "neutral", "positive", "5 stars", [True]])
def test_a_label_that_may_mean_anything_is_refused(label: Any) -> None:
    for form in ("", "kto"):
        with pytest.raises(ValueError, match="label"):
            question_of({"prompt": "p", "completion": "c", "label": label}, form)


BOMBS = [
    "[" * 50_000 + "]" * 50_000,
    '{"a":' * 50_000 + "1" + "}" * 50_000,
    '[{"a": "}]\\""},' * 20_000 + "1" + "]" * 20_000,
]


@pytest.mark.parametrize("chunk", [1000, 2**20])
@pytest.mark.parametrize("bomb", BOMBS)
def test_an_element_that_is_nested_too_deeply_costs_no_other(
    bomb: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_CHUNK", chunk)
    found = read(
        written(tmp_path / "a.json", f"[{json.dumps(ROWS[0])}, {bomb}, {json.dumps(ROWS[1])}]")
    )
    assert found[0] == WANTED[:2]
    assert [(one.where, one.reason) for one in found[1]] == [("a.json[1]", "nested too deeply")]


def test_the_end_of_a_nest_is_found_without_memory_for_its_strings() -> None:
    text = '["' + '\\"]x' * 100_000 + '"]'
    tracemalloc.start()
    try:
        assert records._end(text, 0) == len(text)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", ["[" * 50_000, "[" * 50_000 + '"]]]', '{"a":' * 50_000])
def test_a_nest_without_an_end_is_a_broken_array(bomb: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="the JSON array is broken after its element 0"):
        read(written(tmp_path / "a.json", f"[{json.dumps(ROWS[0])}, {bomb}"))


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", "[]", " \r\n"])
def test_an_empty_file_has_no_rows(content: str, tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl", "a.csv") if content != "[]" else ("a.json",):
        assert read(written(tmp_path / name, content)) == ([], [])


def test_an_array_is_streamed_whatever_the_size_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_CHUNK", 7)
    rows = [{"question": "q" * n, "answer": f"é{n} [,] {{"} for n in range(1, 60)]
    found, bad = read(written(tmp_path / "a.json", json.dumps(rows, indent=1, ensure_ascii=False)))
    assert not bad
    assert [(row.question, row.answer) for row in found] == [
        (row["question"], row["answer"]) for row in rows
    ]


@pytest.mark.parametrize(
    "content",
    ['[{"question": "q", "answer": "a"}, {"quest', '[{"question": "q", "answer": "a"} oops]', "["],
)
def test_a_broken_array_is_an_error_not_a_short_file(content: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="JSON array") as error:
        read(written(tmp_path / "a.json", content))
    assert error.value.where == "a.json"


def test_columns_of_other_names_are_named_in_conf(tmp_path: Path) -> None:
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [["Problem", "Solution", "answer"], ["p", 'a "quoted", long\nsolution', "old"]]
        )
    rows, bad = read(tmp_path / "a.csv", columns={"question": "Problem", "answer": "Solution"})
    assert not bad and rows == [Question("p", 'a "quoted", long\nsolution')]


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


ASKED = {"from": "human", "value": "u"}
USER, GOOD, WORSE = ("user", "u"), ("assistant", "good"), ("assistant", "worse")


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (
            {"conversations": [ASKED, {"from": "gpt", "value": "a"}], "system": "s"},
            Question("u", "a", context=(("system", "s"),)),
        ),
        (
            {"instruction": "i", "input": "x", "output": "o", "history": [["h", "r"]]},
            Question("i\nx", "o", context=(("user", "h"), ("assistant", "r"))),
        ),
        ({"prompt": "p", "completion": "c"}, Question("p", "c")),
        (
            {"prompt": turns(("system", "s"), USER), "completion": turns(GOOD)},
            Question("u", "good", context=(("system", "s"),)),
        ),
        (
            {"question": "q", "answer": "a", "reasoning": "r", "difficulty": 3},
            Question("q", "a", reasoning="r", difficulty="3"),
        ),
        (
            {"prompt": "u", "chosen": "good", "rejected": "worse"},
            Question("u", "good", rejected="worse"),
        ),
        (
            {"system": "s", "question": "u", "chosen": "good", "rejected": "worse"},
            Question("u", "good", context=(("system", "s"),), rejected="worse"),
        ),
        (
            {"system": "s", "question": "u", "answer": "a"},
            Question("u", "a", context=(("system", "s"),)),
        ),
        ({"system": " ", "prompt": "u", "completion": "a"}, Question("u", "a")),
        (
            {"system": "s", "prompt": "u", "completion": "a"},
            Question("u", "a", context=(("system", "s"),)),
        ),
        (
            {"chosen": turns(USER, GOOD), "rejected": turns(USER, WORSE)},
            Question("u", "good", rejected="worse"),
        ),
        (
            {"prompt": "u", "chosen": turns(USER, GOOD), "rejected": turns(USER, WORSE)},
            Question("u", "good", rejected="worse"),
        ),
        (
            {
                "conversations": [ASKED],
                "chosen": {"from": "gpt", "value": "good"},
                "rejected": {"from": "gpt", "value": "worse"},
            },
            Question("u", "good", rejected="worse"),
        ),
        (
            {"instruction": "i", "input": "", "chosen": "good", "rejected": "worse"},
            Question("i", "good", rejected="worse"),
        ),
        ({"messages": turns(USER, GOOD), "label": False}, Question("u", "good", label=False)),
        ({"prompt": "p", "completion": "c", "label": True}, Question("p", "c", label=True)),
        ({"instruction": "i", "output": "o", "kto_tag": True}, Question("i", "o", label=True)),
        ({"question": "q", "answer": "a", "label": "spam"}, Question("q", "a")),
        ({"question": "q", "answer": "a", "label": ""}, Question("q", "a")),
    ],
)
def test_every_shape_is_told_by_its_keys(row: dict[str, Any], wanted: Question) -> None:
    assert question_of(row) == wanted


@pytest.mark.parametrize(
    ("row", "form", "reason"),
    [
        (
            {"chosen": turns(USER, GOOD), "rejected": turns(("user", "other"), WORSE)},
            "",
            "the same conversation",
        ),
        ({"prompt": "u", "chosen": "good", "rejected": " good"}, "", "are the same"),
        ({"prompt": "u", "chosen": "good", "rejected": ""}, "", "rejected is empty"),
        ({"prompt": "u", "chosen": "good"}, "dpo", "rejected is missing"),
        ({"prompt": "p", "completion": "c", "label": "maybe"}, "kto", "neither true nor false"),
        ({"question": "q", "answer": "a"}, "alpaca", "instruction is missing"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "", "in turn"),
    ],
)
def test_a_shape_that_does_not_fit_says_why(row: dict[str, Any], form: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        question_of(row, form)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q"},
        {"instruction": "q", "output": ""},
        {"prompt": "q"},
        {"question": "q", "answer": None},
    ],
)
def test_a_question_without_an_answer_is_a_row_only_for_a_teacher(row: dict[str, Any]) -> None:
    assert question_of(row, unanswered=True) == Question("q", "")
    with pytest.raises(ValueError, match=r"expected|missing|empty"):
        question_of(row)
