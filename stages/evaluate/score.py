"""Score replies with OpenCompass's evaluator, and prove that the rows say what its metric says."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from stages.common.errors import PawlError
from stages.common.items import Row
from stages.common.llm import Reply
from stages.evaluate.benchmark import Task

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class _Details:
    """Where an evaluator's details say that an item is right.

    Attributes:
        correct: their key for it.
        references: the form in which the evaluator wants the answers.
        same: whether a detail belongs to this prediction and this answer.
    """

    correct: str
    references: Callable[[list[str]], list[Any]]
    same: Callable[[dict[str, Any], str, str], bool]


_DETAILS = {
    "AccwithDetailsEvaluator": _Details(
        "is_correct", list, lambda detail, prediction, gold: (detail["pred"], detail["refr"]) == (prediction, gold)
    ),
    # it normalises predictions, so only the answer can be recognised
    "EMEvaluator": _Details("correct", lambda golds: [[gold] for gold in golds], lambda detail, prediction, gold: gold in detail["answer"]),
}


def rows(task: Task, replies: Sequence[Reply], evaluator: Any, postprocess: Callable[[str], str]) -> list[Row]:
    """One row for each item, in the order of the items.

    Raises:
        PawlError: fewer replies than items, an evaluator that fails, or rows that do not reproduce its metric.
    """
    if len(replies) != len(task.items):
        raise PawlError(f"{len(replies)} replies to {len(task.items)} items of {task.name}", fix="run again")
    predictions, golds = [postprocess(reply.text) for reply in replies], [item["answer"] for item in task.items]
    kind = type(evaluator).__name__
    rule = _DETAILS.get(kind)
    result = _score(evaluator, task, predictions, rule.references(golds) if rule else golds)
    metric = _metric(result, kind) / 100
    scores = _from_details(result, rule, predictions, golds, kind) if rule else _one_by_one(evaluator, task, predictions, golds)
    mean = math.fsum(scores) / len(scores)
    if abs(mean - metric) > _TOLERANCE:
        raise PawlError(
            f"the items of {task.name} have a mean score of {mean:.6f}, but {kind} says {metric:.6f}", where="benchmark.evaluator",
            fix="choose an evaluator that scores each item for itself",
        )  # fmt: skip
    return [_row(task, item, reply, score) for item, reply, score in zip(task.items, replies, scores, strict=True)]


def _row(task: Task, item: dict[str, Any], reply: Reply, score: float) -> Row:
    return Row(
        item_id=item["item_id"],
        benchmark=task.name,
        split=task.split,
        correct=score >= 1 - _TOLERANCE,
        score=score,
        prediction=reply.text,
        gold=item["answer"],
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens,
        truncated=reply.finish_reason == "length",
    )


def _score(evaluator: Any, task: Task, predictions: list[str], references: list[Any], dataset: Any = None) -> Any:
    """Call the evaluator as OpenCompass's evaluation task does: with whatever of these its score() asks for."""
    given = {
        "predictions": predictions, "references": references, "test_set": task.dataset if dataset is None else dataset,
        "origin_prompt": [None] * len(predictions),
    }  # fmt: skip
    kind, wanted = type(evaluator).__name__, inspect.signature(evaluator.score).parameters
    if unknown := [name for name, spec in wanted.items() if name not in given and spec.default is spec.empty]:
        raise PawlError(
            f"{kind} wants {', '.join(unknown)}, which this stage does not have", where="benchmark.evaluator", fix="choose another"
        )
    try:
        return evaluator.score(**{name: given[name] for name in wanted if name in given})
    except Exception as error:  # whatever a foreign evaluator raises is a failed evaluation, and the reader needs to know whose
        raise PawlError(f"{kind} failed on {task.name}: {type(error).__name__}: {str(error)[:500]}", where="benchmark.evaluator") from error


def _metric(result: Any, kind: str) -> float:
    """The one number, in percent, that an evaluator's result stands for."""
    if isinstance(result, dict):
        if "error" in result:
            raise PawlError(f"{kind}: {result['error']}", where="benchmark.evaluator")
        numbers = {key: value for key, value in result.items() if key != "details"}
        named = [key for key in ("accuracy", "score") if key in numbers]
        if not named and len(numbers) != 1:
            raise PawlError(
                f"{kind} gives several numbers ({', '.join(map(str, numbers))}), none of them 'accuracy' or 'score'",
                where="benchmark.evaluator",
            )
        result = numbers[named[0] if named else next(iter(numbers))]
    if not isinstance(result, Real) or not math.isfinite(result):
        raise PawlError(f"{kind} gives {result!r:.80} instead of a number", where="benchmark.evaluator")
    return float(result)


def _from_details(result: Any, rule: _Details, predictions: list[str], golds: list[str], kind: str) -> list[float]:
    details = result.get("details")
    if isinstance(details, dict):
        if list(details) != [str(index) for index in range(len(golds))]:
            raise PawlError(f"the details of {kind} are not numbered as the items are", where="benchmark.evaluator")
        details = list(details.values())
    if not isinstance(details, list) or len(details) != len(golds):
        raise PawlError(f"{kind} gives no details for each of {len(golds)} items", where="benchmark.evaluator")
    for number, (detail, prediction, gold) in enumerate(zip(details, predictions, golds, strict=True), 1):
        if not isinstance(detail.get(rule.correct), bool):
            raise PawlError(
                f"{kind} does not say whether item {number} is right ({rule.correct!r} is missing)", where="benchmark.evaluator"
            )
        if not rule.same(detail, prediction, gold):
            raise PawlError(f"detail {number} of {kind} belongs to another item", where="benchmark.evaluator")
    return [float(detail[rule.correct]) for detail in details]


def _one_by_one(evaluator: Any, task: Task, predictions: list[str], golds: list[str]) -> list[float]:
    """The evaluator's metric for each item alone, for evaluators whose details do not tell."""
    kind, scores = type(evaluator).__name__, []
    for index, (prediction, gold) in enumerate(zip(predictions, golds, strict=True)):
        alone = task.dataset.select([index]) if task.dataset is not None else None
        scores.append(_metric(_score(evaluator, task, [prediction], [gold], alone), kind) / 100)
        if not 0 <= scores[-1] <= 1:
            raise PawlError(
                f"{kind} gives {scores[-1] * 100:g} % for one item",
                where="benchmark.evaluator",
                fix="choose an evaluator that scores 0 to 100",
            )
    return scores
