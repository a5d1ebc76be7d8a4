"""Score replies with OpenCompass's evaluator, and prove that the rows say what its metric says."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from stages.common.errors import PawlError
from stages.common.items import Row
from stages.common.llm import Reply
from stages.evaluate import details
from stages.evaluate.benchmark import Scorer, Task
from stages.evaluate.think import Thinking

_TOLERANCE = 1e-6
Score = Callable[[Task, list[Any]], list[float]]
"""What stands in for an evaluator: the score of each item from the predictions (a sandbox, a judge)."""


def rows(
    task: Task, replies: Sequence[Reply], scorer: Scorer, *, thinking: Thinking | None = None, repeat: int = 0, fingerprint: str = "",
    instead: Score | None = None,
) -> list[Row]:  # fmt: skip
    """One row for each item, in the order of the items.

    Args:
        instead: scores in the evaluator's place, where it must run elsewhere (code) or asks a language model.

    Raises:
        PawlError: fewer replies than items, an evaluator that fails, or rows that do not reproduce its metric.
    """
    if len(replies) != len(task.items):
        raise PawlError(f"{len(replies)} replies to {len(task.items)} items of {task.name}", fix="run again")
    thinking = thinking or Thinking()
    answers = [thinking.strip(reply.text, cut_off=reply.finish_reason == "length") for reply in replies]
    try:
        predictions = [scorer.postprocess(answer.text) for answer in answers]
    except Exception as error:  # a foreign function on text that a model wrote
        raise _failed("the post-processor", task, error) from error
    scores = instead(task, predictions) if instead else by_rule(task, scorer, predictions)
    if len(scores) != len(task.items) or not all(isinstance(score, float) and 0 <= score <= 1 for score in scores):
        raise PawlError(
            f"{len(scores)} scores for {len(task.items)} items of {task.name}, or one outside 0 to 1", where="benchmark.evaluator"
        )
    return [
        Row(
            item_id=item["item_id"], benchmark=task.name, split=task.split, correct=score >= 1 - _TOLERANCE, score=score,
            prediction=reply.text, gold=item["answer"], prompt_tokens=reply.prompt_tokens, output_tokens=reply.output_tokens,
            truncated=reply.finish_reason == "length" or answer.unclosed, repeat=repeat, fingerprint=fingerprint,
        )
        for item, reply, answer, score in zip(task.items, replies, answers, scores, strict=True)
    ]  # fmt: skip


def by_rule(task: Task, scorer: Scorer, predictions: list[Any]) -> list[float]:
    """The score of each item; their mean is the evaluator's metric."""
    kind = type(scorer.evaluator).__name__
    rule, golds = details.ADAPTERS.get(kind), task.golds
    result = _score(scorer.evaluator, task, predictions, rule.references(golds) if rule else copy.deepcopy(golds))
    metric = _metric(result, kind, task, scorer.metric) / 100
    scores = details.verdicts(result, kind, predictions, golds) if rule else _one_by_one(scorer, task, predictions, golds)
    mean = math.fsum(scores) / len(scores)
    if abs(mean - metric) > _TOLERANCE:
        raise PawlError(
            f"the items of {task.name} have a mean score of {_shown(task, f'{mean:.6f}')}, but {kind} says {_shown(task, f'{metric:.6f}')}",
            where="benchmark.evaluator",
            fix="choose an evaluator that scores each item for itself",
        )  # fmt: skip
    return scores


def _score(evaluator: Any, task: Task, predictions: list[Any], references: list[Any], index: int | None = None) -> Any:
    """Call the evaluator as OpenCompass's evaluation task does: with whatever of these its score() asks for; `index`: one item alone."""
    kind, wanted = type(evaluator).__name__, inspect.signature(evaluator.score).parameters
    given: dict[str, Any] = {"predictions": predictions, "references": references, "origin_prompt": [None] * len(predictions)}
    if "test_set" in wanted:
        given["test_set"] = _rows_of(task, index)
    if unknown := [name for name, spec in wanted.items() if name not in given and spec.default is spec.empty]:
        raise PawlError(
            f"{kind} wants {', '.join(unknown)}, which this stage does not have", where="benchmark.evaluator", fix="choose another"
        )
    if guesses := sys.modules.get("langdetect"):  # of IFEval: it draws at random, and a verdict must not depend on the run
        guesses.DetectorFactory.seed = 0
    try:
        return evaluator.score(**{name: given[name] for name in wanted if name in given})
    except Exception as error:  # whatever a foreign evaluator raises is a failed evaluation, and the reader needs to know whose
        raise _failed(kind, task, error) from error


def _failed(kind: str, task: Task, error: Exception) -> PawlError:
    return PawlError(f"{kind} failed on {task.name}: {type(error).__name__}: {_shown(task, str(error)[:500])}", where="benchmark.evaluator")


def _shown(task: Task, text: str) -> str:
    """What an error may say of scores and contents: of test items nothing, since who proposes experiments reads why a stage failed."""
    return text if task.split != "test" else "[test: not shown]"


def _rows_of(task: Task, index: int | None) -> Any:
    """The loader's columns of the items, as the Dataset that an evaluator expects; None where build_benchmark kept none."""
    rows = [item.get("row") for item in (task.items if index is None else [task.items[index]])]
    if not all(rows):
        return None
    from datasets import Dataset

    return Dataset.from_list(rows)


def _metric(result: Any, kind: str, task: Task, wanted: str = "") -> float:
    """The one number, in percent, that an evaluator's result stands for."""
    if isinstance(result, dict):
        if "error" in result:
            raise PawlError(f"{kind}: {_shown(task, str(result['error'])[:500])}", where="benchmark.evaluator")
        numbers = {key: value for key, value in result.items() if key != "details"}
        named = [key for key in ([wanted] if wanted else ["accuracy", "score"]) if key in numbers]
        if not named and (wanted or len(numbers) != 1):
            asked = repr(wanted) if wanted else "'accuracy' or 'score'"
            raise PawlError(
                f"{kind} gives several numbers ({', '.join(map(str, numbers))}), none of them {asked}",
                where="benchmark.evaluator", fix="name the one that decides in the suite's metric",
            )  # fmt: skip
        result = numbers[named[0] if named else next(iter(numbers))]
    if not isinstance(result, Real) or not math.isfinite(result):
        raise PawlError(f"{kind} gives {_shown(task, f'{result!r:.80}')} instead of a number", where="benchmark.evaluator")
    return float(result)


def _one_by_one(scorer: Scorer, task: Task, predictions: list[Any], golds: list[Any]) -> list[float]:
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
