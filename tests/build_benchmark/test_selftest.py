"""Before a model is asked, known replies show what scoring rewards: a wrong answer, or none, never
decides a verdict.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.build_benchmark import selftest, table
from stages.build_benchmark.__main__ import make
from stages.common.errors import PawlError
from stages.common.files import ROOT, write_jsonl
from stages.common.reports.evaluation import Row, write_rows
from stages.common.schema import Benchmark, Source
from stages.common.scoring import Scorer, Task, scorer
from stages.common.verdicts import beside, decide
from stages.judge import __main__ as judge

TEXT = "opencompass.utils.text_postprocessors"
ACC = "opencompass.openicl.icl_evaluator.icl_hf_evaluator.AccEvaluator"
BENCHMARK = Benchmark(
    name="b",
    seed=1,
    val_items=9,
    test_items=9,
    evaluator=ACC.replace("Acc", "AccwithDetails"),
    postprocessor="strip",
)
OPTIONS = "Question: {}?\nA. red\nB. blue\nC. green\nD. old grey\nAnswer:"


def task(golds: list[str], question: str = "{}", scoring: dict[str, Any] | None = None) -> Task:
    rows = [
        {"item_id": f"i{n}", "benchmark": "t", "question": question.format(n), "answer": gold}
        for n, gold in enumerate(golds)
    ]
    return Task("t", "val", rows, scoring)


def suite(golds: list[str], question: str, post: str, **more: Any) -> Task:
    """A benchmark scored as OpenCompass scores boolq, ARC and GSM8K: a post-processor, then
    equality.
    """
    spec = {
        "type": (
            f"{TEXT}.{post}"
            if "gsm8k" not in post
            else "opencompass.datasets.gsm8k.gsm8k_postprocess"
        ),
        **more,
    }
    scoring = {
        "evaluator": {"type": ACC},
        "postprocessor": spec,
        "metric": "accuracy",
        "executes_code": False,
    }
    return task(golds, question, scoring)


LETTERS = [letter for _ in range(8) for letter in "ABCD"]
YES_NO = "{}\nA. Yes\nB. No\nAnswer:"
UNSOUND = {  # as on 98e9c97
    "boolq": (["A", "B"] * 8, YES_NO, "first_capital_postprocess", {}),
    "arc": (LETTERS, OPTIONS, "first_option_postprocess", {"options": "ABCD"}),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_a_suite_that_rewards_no_answer_or_a_wrong_one_is_scored_by_our_extraction(
    name: str,
) -> None:
    golds, question, post, more = UNSOUND[name]
    asked = suite(golds, question, post, **more)
    found = selftest.examine(asked, BENCHMARK, golds)
    assert (
        asked.scoring["extraction"] == "choice" and found["scored_by"] == "our extraction (choice)"
    )
    assert min(found["opencompass"].values()) < 0.95 and set(found["decides"].values()) == {1.0}


def test_thousands_in_gsm8k_are_one_number() -> None:
    golds = ["18", "3", "70000", "540", "8000", "9500", "64", "1200"]
    asked = suite(golds, "{}", "gsm8k")
    found = selftest.examine(asked, BENCHMARK, golds)
    assert (
        asked.scoring["extraction"] == "number"
        and found["opencompass"]["sentences"] < 0.95
        and found["decides"]["sentences"] == 1
    )
    made = Scorer(selftest.AccwithDetailsEvaluator(), str, "accuracy")
    replies = [
        "18",
        "3",
        "7",
        "0",
        "\\boxed{8,000}",
        "$9,500",
        "The answer is 64 dollars.",
        "Answer:",
    ]
    assert decide(asked, replies, made).scores == [1, 1, 0, 0, 1, 1, 1, 0]


def test_free_text_that_is_compared_whole_stays_as_strict_as_it_was() -> None:
    asked = task(["Paris", "London", "Rome", "42"])
    found = selftest.examine(asked, BENCHMARK, asked.golds)
    assert found["scored_by"] == "OpenCompass" and "decides" not in found
    assert found["opencompass"] == {
        "gold": 1,
        "sentences": 0,
        "wrong": 1,
        "empty": 1,
        "label": 1,
        "essay": 1,
    }


class Generous:
    """An evaluator for which any reply is right."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return {"score": 100 * self.share}


@pytest.mark.parametrize(("share", "words"), [(1.0, "wrong 0%, essay 0%"), (0.0, "gold 0%")])
def test_scoring_that_rewards_anything_or_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, share: float, words: str
) -> None:
    monkeypatch.setattr(selftest, "scorer", lambda task, benchmark: Scorer(Generous(share), str))
    asked = task(["Paris", "London", "Rome", "42"], scoring=None)
    benchmark = Benchmark(
        name="b", seed=1, val_items=9, test_items=9, evaluator="x.Generous", postprocessor="strip"
    )
    with pytest.raises(PawlError, match=words) as caught:
        selftest.examine(asked, benchmark, asked.golds)
    assert "evaluator" in caught.value.where and "--self-test" in caught.value.fix


@pytest.mark.parametrize(
    "reply", ["", " \n", "Answer:", "**Answer:**", "\\boxed{}", "The answer is", "<think>Paris"]
)
@pytest.mark.parametrize("instead", [None, lambda task, predictions: [1.0] * len(predictions)])
def test_an_empty_or_missing_answer_is_never_right_whatever_scores(
    reply: str, instead: Any
) -> None:
    found = decide(task(["Paris", "A"]), [reply, reply], Scorer(Generous(), str), instead)
    assert found.scores == [0.0, 0.0] and beside([found, found]) == {"overruled": 4}


def test_one_word_in_two_forms_of_unicode_is_one_and_the_summary_says_so() -> None:
    golds = ["caf\u00e9", "12", "-5", "2\u2075", "x"]
    found = decide(
        task(golds),
        ["cafe\u0301", "\uff11\uff12", "\u22125", "25", "y"],
        Scorer(selftest.AccwithDetailsEvaluator(), str),
    )
    assert found.scores == [1, 1, 1, 0, 0] and beside([found]) == {"folded": 3}
    plain = decide(task(golds), golds, Scorer(selftest.AccwithDetailsEvaluator(), str))
    assert plain.scores == [1] * 5 and beside([plain]) == {}


def test_opencompass_figure_stands_beside_ours() -> None:
    asked = suite(["A", "B"] * 4, YES_NO, "first_capital_postprocess")
    asked.scoring["extraction"] = "choice"  # type: ignore[index]
    made = Scorer(
        selftest.AccwithDetailsEvaluator(),
        lambda text: next((letter for letter in text if letter.isupper()), ""),
        "accuracy",
    )
    found = decide(asked, ["Answer: B", "Answer: A"] * 4, made)
    assert found.scores == [0.0] * 8 and beside([found]) == {"opencompass": 0.5}
    broken = decide(
        asked,
        ["A"] * 8,
        Scorer(selftest.AccwithDetailsEvaluator(), lambda text: text[9], "accuracy"),
    )
    assert broken.scores == [1.0, 0.0] * 4 and beside([broken]) == {}


@pytest.mark.parametrize("name", UNSOUND)
def test_always_wrong_against_always_right_is_no_acceptance(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    golds, question, post, more = UNSOUND[name]
    asked = suite(golds * 10, question, post, **more)
    selftest.examine(asked, BENCHMARK, golds)
    made = Scorer(selftest.AccwithDetailsEvaluator(), str, "accuracy")
    letters = sorted(set(golds))
    wrong = [f"Answer: {letters[letters.index(gold) - 1]}" for gold in asked.golds]
    for side, replies in (
        ("candidate", wrong),
        ("incumbent", [f"The answer is {gold}." for gold in asked.golds]),
    ):
        scores = decide(asked, replies, made).scores
        write_rows(
            tmp_path / f"{side}.jsonl",
            [
                Row(
                    item_id=item["item_id"],
                    benchmark="t",
                    split="val",
                    correct=score == 1,
                    score=score,
                    prediction=reply,
                    gold=item["answer"],
                    prompt_tokens=9,
                    output_tokens=9,
                    truncated=False,
                )
                for item, score, reply in zip(asked.items, scores, replies, strict=True)
            ],
        )
    monkeypatch.setattr(
        sys,
        "argv",
        ["judge", "compare", str(tmp_path / "candidate.jsonl"), str(tmp_path / "incumbent.jsonl")],
    )
    assert judge.main() == 1
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "reject"


def test_the_report_carries_the_shares_of_ones_own_items_and_of_generated_ones(
    tmp_path: Path,
) -> None:
    write_jsonl(
        tmp_path / "rows.jsonl",
        [{"question": f"Which letter is number {n}?", "answer": "ABCD"[n % 4]} for n in range(64)],
    )
    sums = Source(kind="procedural", task="chain_sum", licence="L")
    mine = Source(kind="jsonl", path=str(tmp_path / "rows.jsonl"))
    benchmark = Benchmark(
        name="b",
        seed=1,
        val_items=9,
        test_items=9,
        evaluator=BENCHMARK.evaluator,
        postprocessor="strip",
        tasks={"mine": mine, "sums": sums},
    )
    make(benchmark, tmp_path)
    report = json.loads((tmp_path / "reports/build_benchmark.json").read_text())["self_test"]
    assert set(report) == {"mine", "sums"} and all(
        part["opencompass"]["wrong"] == 1 for part in report.values()
    )
    assert len(json.dumps(report)) < 1000


def test_a_post_processor_that_breaks_ones_own_items_is_refused(tmp_path: Path) -> None:
    """first-capital reads "Which" in every answer as W."""
    write_jsonl(
        tmp_path / "rows.jsonl", [{"question": f"q {n}", "answer": f"Which {n}"} for n in range(64)]
    )
    mine = Source(kind="jsonl", path=str(tmp_path / "rows.jsonl"))
    benchmark = Benchmark(
        name="b",
        seed=1,
        val_items=9,
        test_items=9,
        evaluator=BENCHMARK.evaluator,
        postprocessor="first-capital",
        tasks={"mine": mine},
    )
    with pytest.raises(PawlError, match="gold 0%"):
        make(benchmark, tmp_path)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "name", ["jsonl", "custom_qa", pytest.param("custom_mcq", marks=pytest.mark.e2e)]
)
def test_options_for_ones_own_items_are_tried_with_examples(name: str) -> None:
    for _, found in table.examined(ROOT / f"conf/benchmark/{name}.yaml"):
        decides = found.get("decides", found["opencompass"])
        assert {**decides, "sentences": 1} == dict.fromkeys(selftest.LIMITS, 1)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name", ["arc_c", "boolq", "gpqa", "gsm8k", "hellaswag", "piqa", "truthfulqa"]
)
def test_every_suite_whose_data_a_package_carries_is_scored_right(name: str) -> None:
    for _, found in table.examined(ROOT / f"conf/benchmark/{name}.yaml"):
        assert (
            found["scored_by"].startswith("our extraction")
            and min(found["decides"].values()) >= 0.98
        )


@pytest.mark.e2e
def test_our_comparison_is_opencompass_own() -> None:
    golds, given = ["A", "B", "", "1", "x y"], ["A", "A", "", "1.0", "x y"]
    asked = task(
        golds,
        scoring={
            "evaluator": {"type": ACC},
            "postprocessor": None,
            "metric": "accuracy",
            "executes_code": False,
        },
    )
    theirs = scorer(asked, BENCHMARK).evaluator.score(given, golds)["accuracy"]
    assert theirs == selftest.AccwithDetailsEvaluator().score(given, golds)["accuracy"] == 60
