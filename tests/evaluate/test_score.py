"""Correctness is never guessed: rows that do not reproduce OpenCompass's metric, or details that do
not fit, fail the stage.
"""

from __future__ import annotations

from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.items import item_id
from stages.common.llm import Reply
from stages.common.reports.evaluation import Row, read_rows, write_rows
from stages.common.scoring import Scorer, Task, postprocessor
from stages.evaluate import score


def make_task(golds: list[str]) -> Task:
    items = [
        {
            "item_id": item_id("t", f"q{n}", gold),
            "benchmark": "t",
            "question": f"q{n}",
            "answer": gold,
        }
        for n, gold in enumerate(golds)
    ]
    return Task("t", "val", items)


def scorer(evaluator: Any, process: Any = str, metric: str = "") -> Scorer:
    return Scorer(evaluator, process, metric)


def replies(*texts: str) -> list[Reply]:
    return [Reply(text, 5, 3, "stop") for text in texts]


class AccwithDetailsEvaluator:
    """OpenCompass's, in short; `spoil` changes its result."""

    def __init__(self, spoil: Any = None) -> None:
        self.spoil = spoil or (lambda result: None)

    def score(self, predictions: list, references: list, origin_prompt: list) -> dict:
        details = {
            str(n): {"pred": p, "refr": r, "is_correct": p == r}
            for n, (p, r) in enumerate(zip(predictions, references, strict=True))
        }
        right = sum(detail["is_correct"] for detail in details.values())
        result = {"accuracy": right / len(details) * 100, "details": details}
        self.spoil(result)
        return result


class ShareOfWords:
    """An evaluator without details that gives partial credit."""

    def score(self, predictions: list, references: list) -> dict:
        shares = [
            len(set(p.split()) & set(r.split())) / len(set(r.split()))
            for p, r in zip(predictions, references, strict=True)
        ]
        return {"score": 100 * sum(shares) / len(shares)}


def test_rows_are_in_item_order_with_the_raw_reply() -> None:
    rows = score.rows(
        make_task(["4", "7", "9"]),
        replies(" 4\n", "8", "9"),
        scorer(AccwithDetailsEvaluator(), postprocessor("strip")),
    )
    assert [(row.correct, row.score, row.prediction, row.gold) for row in rows] == [
        (True, 1.0, " 4\n", "4"),
        (False, 0.0, "8", "7"),
        (True, 1.0, "9", "9"),
    ]
    assert (
        {row.split for row in rows} == {"val"}
        and rows[0].prompt_tokens == 5
        and rows[0].output_tokens == 3
    )


def test_without_post_processing_blanks_count() -> None:
    assert not score.rows(
        make_task(["4"]), replies(" 4"), scorer(AccwithDetailsEvaluator(), postprocessor(""))
    )[0].correct


def test_an_unknown_evaluator_is_asked_item_by_item() -> None:
    rows = score.rows(make_task(["a b", "c d"]), replies("a b", "d"), scorer(ShareOfWords(), str))
    assert [(row.correct, row.score) for row in rows] == [(True, 1.0), (False, 0.5)]


def test_only_a_reply_cut_by_the_limit_is_truncated() -> None:
    answers = [
        Reply("4", 1, 1, "length"),
        Reply("4", 1, 1, "stop"),
        Reply("4", 1, 1, "content_filter"),
    ]
    assert [
        row.truncated
        for row in score.rows(make_task(["4"] * 3), answers, scorer(AccwithDetailsEvaluator(), str))
    ] == [
        True,
        False,
        False,
    ]


def swap(result: dict) -> None:
    result["details"] = {"1": result["details"]["1"], "0": result["details"]["0"]}


def renumber(result: dict) -> None:
    result["details"] = {"0": result["details"]["1"], "1": result["details"]["0"]}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda result: result.update(accuracy=100.0),
            "mean score of 0.500000, but .* says 1.000000",
        ),
        (lambda result: result["details"].pop("1"), "not numbered as the items"),
        (swap, "not numbered as the items"),
        (renumber, "belongs to another item"),
        (
            lambda result: result["details"]["0"].pop("is_correct"),
            "does not say whether item 1 is right",
        ),
        (
            lambda result: result["details"]["0"].update(is_correct="yes"),
            "does not say whether item 1 is right",
        ),
        (lambda result: result.pop("details"), "no details"),
        (lambda result: result.update(error="preds and refrs differ"), "preds and refrs differ"),
        (lambda result: result.update(accuracy="-"), "instead of a number"),
        (lambda result: result.update(accuracy=float("nan")), "instead of a number"),
    ],
)
def test_a_result_that_does_not_add_up_fails(spoil: Any, message: str) -> None:
    with pytest.raises(PawlError, match=message):
        score.rows(
            make_task(["4", "7"]), replies("4", "8"), scorer(AccwithDetailsEvaluator(spoil), str)
        )


class Talkative(ShareOfWords):
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def score(self, predictions: list, references: list) -> dict:
        if self.fault == "raises":
            raise ValueError(f"cannot read {predictions[0]}")
        if self.fault == "says":
            return {"error": f"{predictions[0]} is not {references[0]}"}
        return {"score": {"text": predictions[0], "mean": 42.125, "high": 4212.5}[self.fault]}


@pytest.mark.parametrize("fault", ["raises", "says", "text", "mean", "high"])
def test_an_error_about_test_items_tells_neither_a_score_nor_a_word_of_them(fault: str) -> None:
    """What failed is told to whoever proposes the next experiment."""
    task, process = make_task(["gold"]), str
    for split, told in (("val", True), ("test", False)):
        task.split = split
        with pytest.raises(PawlError) as caught:
            score.rows(
                task,
                replies("secret"),
                (
                    scorer(
                        AccwithDetailsEvaluator(lambda result: result.update(accuracy=42.125)),
                        process,
                    )
                    if fault == "mean"
                    else scorer(Talkative(fault), process)
                ),
            )
        assert (
            any(word in str(caught.value) for word in ("secret", "gold", "42125", "4212.5")) == told
        )


def test_a_post_processor_that_fails_is_named_without_the_test_items_words() -> None:
    def process(text: str) -> str:
        raise ValueError(f"what is {text}?")

    task = make_task(["4"])
    task.split = "test"
    with pytest.raises(PawlError, match="the post-processor failed on t: ValueError") as caught:
        score.rows(task, replies("secret"), scorer(AccwithDetailsEvaluator(), process))
    assert "secret" not in str(caught.value)


def test_a_metric_that_is_no_mean_over_items_fails() -> None:
    class Harsh(ShareOfWords):
        def score(self, predictions: list, references: list) -> dict:
            return {"score": super().score(predictions, references)["score"] ** 2 / 100}

    with pytest.raises(PawlError, match="mean score"):
        score.rows(make_task(["a b", "c d"]), replies("a", "c d"), scorer(Harsh(), str))


def test_fewer_replies_than_items_fail() -> None:
    with pytest.raises(PawlError, match="1 replies to 2 items"):
        score.rows(make_task(["4", "7"]), replies("4"), scorer(AccwithDetailsEvaluator(), str))


def test_an_evaluator_that_breaks_or_wants_more_is_named() -> None:
    class Broken:
        def score(self, predictions: list, references: list) -> dict:
            raise KeyError("options")

    class Wanting:
        def score(self, predictions: list, references: list, judge: object) -> dict:
            return {}

    with pytest.raises(PawlError, match="Broken failed on t: KeyError"):
        score.rows(make_task(["4"]), replies("4"), scorer(Broken(), str))
    with pytest.raises(PawlError, match="Wanting wants judge"):
        score.rows(make_task(["4"]), replies("4"), scorer(Wanting(), str))


def test_a_prediction_survives_writing_and_reading(tmp_path: Any) -> None:
    wild = ["\x00\x1b[31m\r\n\x85\u2028", "lone \ud800 surrogate", "x" * 2**20, "{'a': \"b\"}, <b>"]
    rows = score.rows(
        make_task(["4"] * 4),
        replies(*wild),
        scorer(AccwithDetailsEvaluator(), postprocessor("strip")),
    )
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl", Row) == rows
    assert [row.prediction for row in rows] == wild


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name",
    [
        "icl_hf_evaluator.AccwithDetailsEvaluator",
        "icl_em_evaluator.EMEvaluator",
        "icl_hf_evaluator.AccEvaluator",
    ],
)
def test_opencompass_itself_agrees(name: str) -> None:
    from stages.common.scoring import evaluator

    judge = evaluator({"type": f"opencompass.openicl.icl_evaluator.{name}"})
    rows = score.rows(
        make_task(["4", "7", "a b"]),
        replies("4", "\ud800", "a b"),
        scorer(judge, postprocessor("strip")),
    )
    assert [row.correct for row in rows] == [True, False, True]


@pytest.mark.e2e
def test_evaluators_and_post_processors_that_do_not_exist_are_named() -> None:
    from stages.common.scoring import evaluator

    with pytest.raises(PawlError, match="no evaluator"):
        evaluator({"type": "opencompass.openicl.icl_evaluator.icl_hf_evaluator.NoSuch"})
    with pytest.raises(PawlError, match="no evaluator 'NoModule'"):
        evaluator({"type": "NoModule"})
    with pytest.raises(PawlError, match="cannot be made"):
        evaluator({"type": "opencompass.datasets.custom.OptionSimAccEvaluator"})
    with pytest.raises(PawlError) as caught:
        postprocessor("first-captial")
    assert "first-capital" in caught.value.fix
    assert postprocessor("first-capital")("the answer is B") == "B"
