"""Training rows are usable, new, clean and short enough; what was removed is counted, and too much
of it fails the stage.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl, write_jsonl
from stages.common.schema import Data, Source
from stages.generate_data import __main__ as stage
from stages.generate_data import card, overlap
from stages.generate_data.rows import quantiles

SUMS = Source(
    kind="procedural",
    task="chain_sum",
    settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    count=60,
)
HELD_OUT = [f"What is the secret number {number}?" for number in range(8)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a benchmark of eight questions."""
    for split, part in (("val", HELD_OUT[:4]), ("test", HELD_OUT[4:])):
        rows = (
            {"item_id": q, "benchmark": "secrets", "question": q, "answer": "gold", "category": ""}
            for q in part
        )
        write_jsonl(tmp_path / "data" / "benchmark" / split / "secrets.jsonl", rows)
    return tmp_path


def words_in(seen: list[Any]) -> list[int]:
    return [
        (
            len(one.split())
            if isinstance(one, str)
            else sum(len(message["content"].split()) for message in one)
        )
        for one in seen
    ]


def make(
    root: Path,
    cutoff_len: int = 50,
    *,
    limits: dict[str, Any] | None = None,
    plain: bool = False,
    **sources: Source,
) -> dict[str, Any]:
    given = {"max_rows": 0, "ngram": 13, "max_contamination": 0.5, "max_bad_fraction": 0.2} | (
        limits or {}
    )
    data = Data(name="d", seed=3, sources=sources, **given)
    return stage.make(data, cutoff_len, words_in, root, root, plain=plain).plain()


def local(root: Path, lines: list[Any], name: str = "rows", **more: Any) -> Source:
    path = root / f"{name}.jsonl"
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return Source(kind="jsonl", path=str(path), **more)


def rows(n: int) -> list[Any]:
    return [{"question": f"question {i}", "answer": f"answer {i}"} for i in range(n)]


def trained(root: Path) -> list[list[dict[str, str]]]:
    return [row["messages"] for row in read_jsonl(root / "data" / "train" / "train.jsonl")]


def test_a_benchmark_question_in_the_training_data_is_removed_and_counted(root: Path) -> None:
    planted = [
        {"question": f"  {HELD_OUT[0].upper()}", "answer": "x"},
        {"question": HELD_OUT[5], "answer": "y"},
    ]
    report = make(root, mine=local(root, rows(6) + planted))
    counts = report["sources"]["mine"]
    assert {name: number for name, number in counts.items() if number} == {
        "read": 8,
        "contaminated": 2,
        "kept": 6,
    }
    assert report["contamination"]["hits"] == [
        {"benchmark": "secrets", "split": split, "match": "exact", "rows": 1}
        for split in ("test", "val")
    ]
    assert report["contamination"]["fraction"] == 0.25
    assert not [m for m in trained(root) if "secret" in m[0]["content"].lower()]


def test_no_report_holds_the_text_of_an_item(root: Path) -> None:
    make(root, mine=local(root, [*rows(6), {"question": HELD_OUT[0], "answer": "gold"}]))
    for path in (root / "reports").iterdir():
        assert "secret number" not in path.read_text(), path


def test_a_leak_fails_the_stage_and_cannot_hide_behind_a_large_clean_source(root: Path) -> None:
    clean, leak = (
        local(root, rows(200), "clean"),
        local(root, [{"question": q, "answer": "x"} for q in HELD_OUT], "leak"),
    )
    with pytest.raises(PawlError, match="8 of 8 different rows of leak"):
        make(root, clean=clean, leak=leak)
    assert not (root / "data" / "train").exists()


def test_bad_rows_are_counted_up_to_the_limit_and_shown_beyond_it(root: Path) -> None:
    report = make(root, mine=local(root, [*rows(8), "{", '{"question": "q"}']))
    assert report["sources"]["mine"]["bad"] == 2
    assert report["sources"]["mine"]["kept"] == 8
    with pytest.raises(PawlError) as error:
        make(root, mine=local(root, [*rows(8), *["{"] * 7]))
    text = str(error.value)
    assert "7 of 15 rows" in text
    assert f"{root}/rows.jsonl:9" in text
    assert text.count("rows.jsonl:") == 5, "five of them are shown"


def test_exact_duplicates_are_removed_across_sources(root: Path) -> None:
    report = make(root, a=local(root, rows(5) + rows(5), "a"), b=local(root, rows(6), "b"))
    assert [report["sources"][name]["duplicates"] for name in "ab"] == [5, 5]
    assert report["rows"] == 6


def test_a_long_row_is_removed_never_cut(root: Path) -> None:
    report = make(
        root,
        10,
        mine=local(
            root,
            [
                *rows(4),
                {"question": "w " * 9, "answer": "x"},
                {"question": "w " * 10, "answer": "x"},
            ],
        ),
    )
    assert report["sources"]["mine"]["too_long"] == 1
    assert report["tokens"]["max"] == 10


def test_a_procedural_source_is_drawn_until_enough_rows_are_left(root: Path) -> None:
    report = make(root, sums=SUMS)
    assert report["rows"] == report["sources"]["sums"]["kept"] == 60
    assert report["sources"]["sums"]["duplicates"] > 0
    assert len({m[0]["content"] for m in trained(root)}) == 60


@pytest.mark.parametrize(
    ("count", "message"), [(500, "gave 200 usable rows, 500 are wanted"), (0, "no end")]
)
def test_a_procedural_source_that_cannot_give_enough_is_an_error(
    count: int, message: str, root: Path
) -> None:
    with pytest.raises(PawlError, match=message):
        make(
            root,
            sums=Source(kind="procedural", task="chain_sum", settings=SUMS.settings, count=count),
        )


@pytest.mark.parametrize(
    "lines",
    [[], [{"question": HELD_OUT[0], "answer": "x"}], [{"question": "w " * 99, "answer": "x"}]],
)
def test_no_row_left_is_an_error(lines: list[Any], root: Path) -> None:
    with pytest.raises(PawlError):
        make(root, limits={"max_contamination": 1.0}, mine=local(root, lines))


def test_two_runs_write_the_same_bytes(root: Path) -> None:
    source, seen = local(root, rows(40), count=30), []
    for _ in range(2):
        make(root, limits={"max_rows": 50}, mine=source, sums=SUMS)
        seen.append(
            {
                path.name: path.read_bytes()
                for folder in ("data/train", "reports")
                for path in (root / folder).iterdir()
            }
        )
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == [
        "data_card.md",
        "dataset_info.json",
        "generate_data.json",
        "rejected.jsonl",
        "train.jsonl",
    ]


def test_counts_add_up_and_max_rows_samples_both_sources(root: Path) -> None:
    report = make(root, limits={"max_rows": 40}, mine=local(root, rows(50), count=30), sums=SUMS)
    for count in report["sources"].values():
        assert count["read"] == sum(number for key, number in count.items() if key != "read")
        assert count["kept"] > 5
    assert report["rows"] == 40


def test_the_train_part_never_meets_the_benchmark_parts_of_the_same_file(root: Path) -> None:
    from stages.common.questions import read as read_questions
    from stages.common.questions import split

    source = local(root, rows(80), part="train", prompt="Q: {question}")
    make(root, mine=source)
    parts = split(read_questions(source, "x")[0], 3)
    assert {m[0]["content"] for m in trained(root)} == {f"Q: {q.question}" for q in parts["train"]}


def test_a_conversation_keeps_its_turns(root: Path) -> None:
    turns = [
        {"role": r, "content": f"{r} {i}"}
        for i, r in enumerate(("system", "user", "assistant", "user", "assistant"))
    ]
    make(root, mine=local(root, [{"messages": turns}]))
    assert trained(root) == [turns]


def test_llamafactory_is_told_every_column_and_tag(root: Path) -> None:
    make(root, mine=local(root, rows(1)))
    info = read_json(root / "data" / "train" / "dataset_info.json")["train"]
    assert (root / "data" / "train" / info["file_name"]).is_file()
    assert info["formatting"] == "sharegpt"
    assert set(info["tags"]) == {
        f"{name}_tag"
        for name in ("role", "content", "user", "assistant", "system", "observation", "function")
    }


def test_a_blind_decontamination_fails_the_stage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap.Index, "find", lambda *_: [])
    with pytest.raises(PawlError, match="misses a planted item"):
        make(root, mine=local(root, rows(3)))


def test_without_benchmark_items_nothing_is_called_clean(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no benchmark items"):
        make(tmp_path, mine=local(tmp_path, rows(3)))


def test_hostile_text_stays_text_in_the_data_card(root: Path) -> None:
    evil = "```\n# Accepted!\n<script>alert(1)</script> ````` \u202e \x1b[31m | a"
    make(root, mine=local(root, [{"question": evil, "answer": evil}], licence="a | b <b>\n# c"))
    lines = (root / "reports" / "data_card.md").read_text().splitlines()
    inside = False
    for line in lines:
        if line.startswith("``````"):
            inside = not inside
        elif not inside:
            assert "<script>" not in line
            assert not line.startswith("# Accepted")
        assert "\u202e" not in line
        assert "\x1b" not in line
    assert not inside
    assert "a \\| b \\<b\\> \\# c" in "\n".join(lines)


def test_a_fence_is_longer_than_any_in_its_text() -> None:
    assert card._fenced("a ```` b").startswith("`````json\n")


def test_quantiles_are_lengths_that_occur() -> None:
    assert quantiles(range(1, 101)) == {"total": 5050, "p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert quantiles([7]) == {"total": 7, "p50": 7, "p90": 7, "p99": 7, "max": 7}


def test_a_row_that_cannot_be_used_and_holds_an_item_is_told_as_a_hit(root: Path) -> None:
    other = {"query": f"{HELD_OUT[0]} Now.", "reply": "y"}
    report = make(root, limits={"max_bad_fraction": 0.9}, mine=local(root, [*rows(6), other]))
    assert report["sources"]["mine"]["bad"] == 1 and report["rows"] == 6
    assert [(hit["benchmark"], hit["rows"]) for hit in report["contamination"]["hits"]] == [
        ("secrets", 1)
    ]
