"""The verdict on each reply: OpenCompass's, with the proof that the items' scores are what its
metric says; or that of our extraction.

Which of the two decides about a benchmark, build_benchmark has found out by its self-test and
written beside the items.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from stages.common import details, extraction
from stages.common.errors import PawlError
from stages.common.numerals import fold
from stages.common.scoring import Item, Scorer, Task

TOLERANCE = 1e-6
# evaluators that compare text with text
EXACT = ("AccEvaluator", "AccwithDetailsEvaluator", "EMEvaluator")


@dataclass(frozen=True)
class Verdicts:
    """What became of a task's replies.

    Attributes:
        scores: of each item, 0 to 1: what decides.
        opencompass: the share that OpenCompass's own scoring gives, where our extraction decides
            (None where it does not, or OpenCompass failed on a reply).
        overruled: replies without an answer that the evaluator took for right.
        folded: replies that are right only if characters that look alike are compared as one (see
            `numerals.fold`).
    """

    scores: list[float]
    opencompass: float | None = None
    overruled: int = 0
    folded: int = 0


Score = Callable[[Task, list[Any]], list[float]]
"""What stands in for an evaluator: the score of each item from the predictions (a sandbox, a
judge).
"""


def decide(
    task: Task,
    answers: list[str],
    scorer: Scorer,
    instead: Score | None = None,
    *,
    guarded: bool = True,
) -> Verdicts:
    """The verdict on each item. A reply without an answer is never right, whatever scores.

    Args:
        answers: the replies without their thinking, one for each item.
        instead: scores in the evaluator's place, where it must run elsewhere (code) or asks a
            language model.
        guarded: what decides; without, a reply that holds no answer may be right (for
            build_benchmark's self-test alone).

    Raises:
        PawlError: an evaluator that fails, or scores that do not reproduce its metric.
    """
    kind = task.scoring.get("extraction", "") if task.scoring else ""
    if kind:
        read = [
            extraction.right(kind, str(gold), text, item["question"])
            for gold, text, item in zip(task.golds, answers, task.items, strict=True)
        ]
        return Verdicts(
            [float(right) for right in read], opencompass=_figure(task, answers, scorer)
        )
    predictions = _predictions(task, answers, scorer)
    scores = instead(task, predictions) if instead else by_rule(task, scorer, predictions)
    if len(scores) != len(task.items) or not all(
        isinstance(score, float) and 0 <= score <= 1 for score in scores
    ):
        raise PawlError(
            f"{len(scores)} scores for {len(task.items)} items of {task.name}, or one outside 0"
            " to 1",
            where="benchmark.evaluator",
        )
    exact = not instead and type(scorer.evaluator).__name__ in EXACT
    again = set(_folded(task, scorer, predictions, scores)) if exact else set()
    scores = [1.0 if index in again else score for index, score in enumerate(scores)]
    missing = [
        guarded and score > 0 and extraction.missing(text, item["answer"])
        for score, text, item in zip(scores, answers, task.items, strict=True)
    ]
    return Verdicts(
        [0.0 if none else score for none, score in zip(missing, scores, strict=True)],
        overruled=sum(missing),
        folded=sum(not missing[index] for index in again),
    )


def beside(found: list[Verdicts]) -> dict[str, Any]:
    """What a summary says beside a benchmark's scores, over all repeats; nothing where OpenCompass
    decided and nobody overruled it.
    """
    said: dict[str, Any] = {}
    figures = [verdicts.opencompass for verdicts in found if verdicts.opencompass is not None]
    if figures and len(figures) == len(found):
        said["opencompass"] = math.fsum(figures) / len(figures)
    for name in ("overruled", "folded"):
        if count := sum(getattr(verdicts, name) for verdicts in found):
            said[name] = count
    return said


def _predictions(task: Task, answers: list[str], scorer: Scorer) -> list[Any]:
    try:
        return [scorer.postprocess(answer) for answer in answers]
    except Exception as error:  # a foreign function on text that a model wrote
        raise _failed("the post-processor", task, error) from error


def _figure(task: Task, answers: list[str], scorer: Scorer) -> float | None:
    """What OpenCompass's own scoring says, for comparison alone: where it fails on a reply,
    nothing.
    """
    kind = type(scorer.evaluator).__name__
    try:
        rule = details.ADAPTERS.get(kind)
        references = rule.references(task.golds) if rule else copy.deepcopy(task.golds)
        result = _score(scorer.evaluator, task, _predictions(task, answers, scorer), references)
        return _metric(result, kind, task, scorer.metric) / 100
    except PawlError:
        return None


def _folded(task: Task, scorer: Scorer, predictions: list[Any], scores: list[float]) -> list[int]:
    """The items, wrong as they are, that are right where answer and reply are compared in one form
    of Unicode.
    """
    places = [
        index
        for index, (given, gold, score) in enumerate(
            zip(predictions, task.golds, scores, strict=True)
        )
        if score < 1 - TOLERANCE
        and isinstance(given, str)
        and isinstance(gold, str)
        and not (given.isascii() and gold.isascii())
    ]
    if not places:
        return []
    items: list[Item] = [
        {**task.items[index], "reference": fold(task.golds[index])} for index in places
    ]
    found = by_rule(
        Task(task.name, task.split, items, task.scoring),
        scorer,
        [fold(predictions[index]) for index in places],
    )
    return [index for index, score in zip(places, found, strict=True) if score >= 1 - TOLERANCE]


def by_rule(task: Task, scorer: Scorer, predictions: list[Any]) -> list[float]:
    """The score of each item; their mean is the evaluator's metric."""
    kind = type(scorer.evaluator).__name__
    rule, golds = details.ADAPTERS.get(kind), task.golds
    result = _score(
        scorer.evaluator,
        task,
        predictions,
        rule.references(golds) if rule else copy.deepcopy(golds),
    )
    metric = _metric(result, kind, task, scorer.metric) / 100
    scores = (
        details.verdicts(result, kind, predictions, golds)
        if rule
        else _one_by_one(scorer, task, predictions, golds)
    )
    mean = math.fsum(scores) / len(scores)
    if abs(mean - metric) > TOLERANCE:
        raise PawlError(
            f"the items of {task.name} have a mean score of {_shown(task, f'{mean:.6f}')}, but"
            f" {kind} says {_shown(task, f'{metric:.6f}')}",
            where="benchmark.evaluator",
            fix="choose an evaluator that scores each item for itself",
        )
    return scores


def _score(
    evaluator: Any,
    task: Task,
    predictions: list[Any],
    references: list[Any],
    index: int | None = None,
) -> Any:
    """Call the evaluator as OpenCompass's evaluation task does: with whatever of these its score()
    asks for; `index`: one item alone.
    """
    kind, wanted = type(evaluator).__name__, inspect.signature(evaluator.score).parameters
    given: dict[str, Any] = {
        "predictions": predictions,
        "references": references,
        "origin_prompt": [None] * len(predictions),
    }
    if "test_set" in wanted:
        given["test_set"] = _rows_of(task, index)
    if unknown := [
        name for name, spec in wanted.items() if name not in given and spec.default is spec.empty
    ]:
        raise PawlError(
            f"{kind} wants {', '.join(unknown)}, which this stage does not have",
            where="benchmark.evaluator",
            fix="choose another",
        )
    # of IFEval: it draws at random, and a verdict must not depend on the run
    if guesses := sys.modules.get("langdetect"):
        guesses.DetectorFactory.seed = 0
    try:
        return evaluator.score(**{name: given[name] for name in wanted if name in given})
    except Exception as error:
        # whatever a foreign evaluator raises is a failed evaluation, and the reader needs to know
        # whose
        raise _failed(kind, task, error) from error


def _failed(kind: str, task: Task, error: Exception) -> PawlError:
    return PawlError(
        f"{kind} failed on {task.name}: {type(error).__name__}: {_shown(task, str(error)[:500])}",
        where="benchmark.evaluator",
    )


def _shown(task: Task, text: str) -> str:
    """What an error may say of scores and contents: of test items nothing, since who proposes
    experiments reads why a stage failed.
    """
    return text if task.split != "test" else "[test: not shown]"


def _rows_of(task: Task, index: int | None) -> Any:
    """The loader's columns of the items, as the Dataset that an evaluator expects; None where
    build_benchmark kept none.
    """
    rows = [item.get("row") for item in (task.items if index is None else [task.items[index]])]
    if not all(rows):
        return None
    from datasets import Dataset

    return Dataset.from_list(rows)


def _metric(result: Any, kind: str, task: Task, wanted: str = "") -> float:
    """The one number, in percent, that an evaluator's result stands for."""
    if isinstance(result, dict):
        if "error" in result:
            raise PawlError(
                f"{kind}: {_shown(task, str(result['error'])[:500])}", where="benchmark.evaluator"
            )
        numbers = {key: value for key, value in result.items() if key != "details"}
        named = [key for key in ([wanted] if wanted else ["accuracy", "score"]) if key in numbers]
        if not named and (wanted or len(numbers) != 1):
            asked = repr(wanted) if wanted else "'accuracy' or 'score'"
            raise PawlError(
                f"{kind} gives several numbers ({', '.join(map(str, numbers))}), none of them"
                f" {asked}",
                where="benchmark.evaluator",
                fix="name the one that decides in the suite's metric",
            )
        result = numbers[named[0] if named else next(iter(numbers))]
    if not isinstance(result, Real) or not math.isfinite(result):
        raise PawlError(
            f"{kind} gives {_shown(task, f'{result!r:.80}')} instead of a number",
            where="benchmark.evaluator",
        )
    return float(result)


def _one_by_one(
    scorer: Scorer, task: Task, predictions: list[Any], golds: list[Any]
) -> list[float]:
    """The evaluator's metric for each item alone, for evaluators whose details do not tell."""
    kind, scores = type(scorer.evaluator).__name__, []
    for index, (prediction, gold) in enumerate(zip(predictions, golds, strict=True)):
        result = _score(scorer.evaluator, task, [prediction], [copy.deepcopy(gold)], index)
        scores.append(_metric(result, kind, task, scorer.metric) / 100)
        if not 0 <= scores[-1] <= 1:
            raise PawlError(
                f"{kind} gives {_shown(task, f'{scores[-1] * 100:g}')} % for one item",
                where="benchmark.evaluator",
                fix="choose an evaluator that scores 0 to 100",
            )
    return scores
