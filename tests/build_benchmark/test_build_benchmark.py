"""The benchmark is fixed by its parameters, and no validation question is a test question."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.build_benchmark import splits
from stages.build_benchmark.__main__ import make, remarks
from stages.common.errors import PawlError
from stages.common.files import read_jsonl
from stages.common.questions import normalize
from stages.common.schema import Benchmark, Source

EXACT = "opencompass.openicl.icl_evaluator.icl_hf_evaluator.AccwithDetailsEvaluator"
SUMS = Source(
    kind="procedural",
    task="chain_sum",
    settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    licence="L",
)


def benchmark(val_items: int = 20, test_items: int = 20, **tasks: Source) -> Benchmark:
    return Benchmark(
        name="b", seed=5, tasks=tasks, val_items=val_items, test_items=test_items, evaluator=EXACT
    )


def local(path: Path, lines: list[Any], **more: Any) -> Source:
    path.write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    return Source(kind="jsonl", path=str(path), **more)


def questions(root: Path, split: str) -> list[str]:
    return [
        normalize(row["question"])
        for path in sorted((root / "data" / "benchmark" / split).iterdir())
        for row in read_jsonl(path)
    ]


def test_val_and_test_share_no_question_even_when_the_task_is_nearly_used_up(
    tmp_path: Path,
) -> None:
    report = make(benchmark(90, 90, sums=SUMS), tmp_path).plain()
    val, test = questions(tmp_path, "val"), questions(tmp_path, "test")
    assert len(set(val)) == len(set(test)) == 90
    assert not set(val) & set(test)
    assert report["tasks"]["sums"] | {"duplicates": 0} == {
        "val": 90,
        "test": 90,
        "duplicates": 0,
        "licence": "L",
    }
    assert report["tasks"]["sums"]["duplicates"] > 100


def test_two_tasks_of_one_generator_share_no_question_across_the_splits(tmp_path: Path) -> None:
    make(benchmark(40, 40, a=SUMS, b=SUMS), tmp_path)
    assert not set(questions(tmp_path, "val")) & set(questions(tmp_path, "test"))


def test_both_splits_are_equally_hard_where_easy_questions_run_out(tmp_path: Path) -> None:
    """There are 200 sums of one digit; drawn one after the other, val had 92 of them and test
    58.
    """
    mixed = Source(kind="procedural", task="chain_sum", settings=SUMS.settings | {"max_digits": 2})
    make(benchmark(200, 200, mixed=mixed), tmp_path)
    length = len("state the final answer to the following arithmetic problem: 1 + 1 =")
    easy = {
        split: sum(len(question) == length for question in questions(tmp_path, split))
        for split in ("val", "test")
    }
    assert abs(easy["val"] - easy["test"]) < 30, easy


def test_too_few_questions_are_an_error_with_the_number(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="gives only 200 different questions"):
        make(benchmark(150, 150, sums=SUMS), tmp_path)
    assert not (tmp_path / "data").exists()


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"question": f"q {i}", "answer": f"a{i % 3}", "category": "c"} for i in range(60)]
    for root in (tmp_path / "one", tmp_path / "two"):
        make(benchmark(10, 10, sums=SUMS, mine=local(tmp_path / "rows.jsonl", rows)), root)
    one, two = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two
    assert len(one) == 5


def test_rows_have_the_columns_that_evaluation_reads(tmp_path: Path) -> None:
    rows = [{"question": f"q {i}", "answer": f" a{i % 2} ", "category": "c"} for i in range(16)]
    make(benchmark(9, 9, mine=local(tmp_path / "rows.jsonl", rows)), tmp_path)
    row, *_ = written = list(read_jsonl(tmp_path / "data" / "benchmark" / "val" / "mine.jsonl"))
    assert len(written) == 4, "a file gives what it has"
    assert list(row) == ["item_id", "benchmark", "question", "answer", "category"]
    assert (row["benchmark"], row["category"]) == ("mine", "c")
    assert row["answer"] == row["answer"].strip(), "a reply is compared without blanks around it"


def test_a_broken_line_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    given = local(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}, '{"question": \n'])
    with pytest.raises(PawlError) as error:
        make(benchmark(mine=given), tmp_path)
    assert error.value.where == f"{tmp_path}/rows.jsonl:2"
    assert not (tmp_path / "data").exists()


def test_a_repeated_question_is_asked_once(tmp_path: Path) -> None:
    rows = [
        {"question": text, "answer": str(i % 2)}
        for i in range(40)
        for text in (f"Question {i}", f"  question   {i}")
    ]
    report = make(benchmark(mine=local(tmp_path / "rows.jsonl", rows)), tmp_path).plain()
    asked = questions(tmp_path, "val") + questions(tmp_path, "test")
    assert len(asked) == len(set(asked)) == report["tasks"]["mine"]["duplicates"] == 20


def test_items_with_choices_ask_for_a_letter_and_numbers_are_written_as_meant(
    tmp_path: Path,
) -> None:
    chosen = [
        {"question": f"Town {n}?", "A": f"Alba {n}", "B": f"Borno {n}", "answer": "B"}
        for n in range(8)
    ]
    counted = [{"question": f"Sum {n}?", "answer": 18.0 + n} for n in range(8)]
    make(
        benchmark(
            chosen=local(tmp_path / "a.jsonl", chosen), counted=local(tmp_path / "b.jsonl", counted)
        ),
        tmp_path,
    )
    item, *_ = read_jsonl(tmp_path / "data/benchmark/val/chosen.jsonl")
    assert item["question"].startswith("Town ") and item["question"].endswith(
        "\nAnswer with the letter of the right choice alone."
    )
    assert item["answer"] == "B"
    assert {row["answer"] for row in read_jsonl(tmp_path / "data/benchmark/val/counted.jsonl")} <= {
        str(18 + n) for n in range(8)
    }


def test_items_in_halves_leave_none_out_and_a_train_part_is_said(tmp_path: Path) -> None:
    mine = local(
        tmp_path / "rows.jsonl", [{"question": f"q {n}", "answer": f"a{n % 7}"} for n in range(80)]
    )
    sizes = {}
    for way in ("seeded", "halves"):
        given = replace(benchmark(100, 100, mine=mine), splits=way)
        report = make(given, tmp_path).tasks["mine"]
        sizes[way] = report.val, report.test, report.spare
        params = SimpleNamespace(
            benchmark=given,
            data=SimpleNamespace(sources={}),
            judge=SimpleNamespace(alpha=0.05, min_effect=0.01),
        )
        assert ("no training source takes" in remarks("mine", report, params)[0]) == (
            way == "seeded"
        )
        params.data.sources = {"mine": replace(mine, part="train")}
        assert "no training source takes" not in remarks("mine", report, params)[0]
        assert "points or more" in remarks("mine", report, params)[-1]
    assert sizes["seeded"][2] == {"train": 80 - sum(sizes["seeded"][:2])} and not sizes["halves"][2]
    assert sum(sizes["halves"][:2]) == 80 and min(sizes["halves"][:2]) >= 34
    assert make(replace(benchmark(5, 5, mine=mine), splits="halves"), tmp_path).plain()["tasks"][
        "mine"
    ]["spare"] == {"beyond": 70}


def test_several_turns_are_refused(tmp_path: Path) -> None:
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    with pytest.raises(PawlError, match="several turns"):
        make(benchmark(mine=local(tmp_path / "rows.jsonl", [{"messages": turns}])), tmp_path)


@pytest.mark.parametrize("rows", [[], [{"question": "q", "answer": "a"}]])
def test_a_file_with_too_few_rows_is_an_error(rows: list[Any], tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no val items"):
        make(benchmark(mine=local(tmp_path / "rows.jsonl", rows)), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../evil",
        "a/b",
        "a\\b",
        "-rf",
        ".hidden",
        "a b",
        "a\nb",
        "a\0b",
        "x" * 65,
        "n\u00e4me",
        "a;b",
    ],
)
def test_a_hostile_task_name_is_refused(name: str) -> None:
    with pytest.raises(PawlError, match="cannot be a task's name"):
        splits.check_names([name])


def test_names_that_one_file_system_takes_for_one_are_refused() -> None:
    with pytest.raises(PawlError, match="case alone"):
        splits.check_names(["Sums", "sums"])


@pytest.mark.parametrize("keys", [{"part": "train"}, {"count": 5}])
def test_keys_of_training_sources_are_refused(keys: dict[str, Any]) -> None:
    source = Source(kind="procedural", task="chain_sum", **keys)
    with pytest.raises(PawlError, match="training data"):
        splits.build(benchmark(x=source))


def test_an_overlap_that_slips_through_is_caught_before_writing() -> None:
    item = {"item_id": "1", "benchmark": "x", "question": "Q 1", "answer": "a", "category": ""}
    with pytest.raises(PawlError, match="same question"):
        splits.check_disjoint(
            {"x": splits.Task([item], [item | {"item_id": "2", "question": "q  1"}], 0)}
        )
    with pytest.raises(PawlError, match="same item_id"):
        splits.check_disjoint({"x": splits.Task([item], [item | {"question": "other"}], 0)})
