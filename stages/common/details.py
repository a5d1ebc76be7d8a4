"""Where an OpenCompass evaluator's details say that an item is right. They keep it in a different
place each; some nowhere.

An adapter reads it there, after it has made sure that the detail belongs to the item. Never is a
missing key taken for a verdict.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stages.common.errors import PawlError

_WHERE = "benchmark.evaluator"


@dataclass(frozen=True)
class Adapter:
    """How one evaluator's details are read.

    Attributes:
        correct: their key for the verdict, a bool.
        same: whether a detail belongs to this prediction (after post-processing) and this
            reference.
        references: the form in which the evaluator wants the references.
    """

    correct: str
    same: Callable[[dict[str, Any], Any, Any], bool]
    # some evaluators change what they are given
    references: Callable[[list[Any]], list[Any]] = copy.deepcopy


def _pair(prediction: str, reference: str) -> Callable[[dict[str, Any], Any, Any], bool]:
    return lambda detail, given, wanted: bool(
        detail[prediction] == given and detail[reference] == wanted
    )


def _freeform(detail: dict[str, Any], prediction: Any, reference: Any) -> bool:
    from opencompass.datasets.bbh import bbh_freeform_postprocess

    return bool(
        detail["pred"] == bbh_freeform_postprocess(prediction)
        and detail["answer"] == bbh_freeform_postprocess(reference)
    )


def _instructed(detail: dict[str, Any], prediction: Any, reference: Any) -> bool:
    return bool(detail["pred"] == prediction and detail["refer"]["key"] == reference["key"])


def _lists(golds: list[Any]) -> list[Any]:
    return [gold if isinstance(gold, list) else [gold] for gold in golds]


ADAPTERS = {
    "AccwithDetailsEvaluator": Adapter("is_correct", _pair("pred", "refr")),
    "OptionSimAccEvaluator": Adapter("correct", _pair("pred", "refr")),
    # it normalises predictions, so only the answer can be recognised
    "EMEvaluator": Adapter(
        "correct", lambda detail, _, gold: set(_lists([gold])[0]) <= set(detail["answer"]), _lists
    ),
    "Gsm8kEvaluator": Adapter("correct", _pair("pred", "answer")),
    "MATHEvaluator": Adapter("correct", _pair("pred", "answer")),
    "GPQAEvaluator": Adapter("correct", _pair("pred", "answer")),
    "BBHEvaluator_mcq": Adapter("correct", _pair("pred", "answer")),
    "BBHEvaluator": Adapter("correct", _freeform),
    "IFEvaluator": Adapter("is_strict_correct", _instructed),
}


def verdicts(result: Any, kind: str, predictions: list[Any], golds: list[Any]) -> list[float]:
    """1.0 or 0.0 for each item, as the details of `kind` say.

    Raises:
        PawlError: details that are missing, fewer, in another order, of another item, or without a
            verdict.
    """
    rule = ADAPTERS[kind]
    details = result.get("details") if isinstance(result, dict) else None
    if isinstance(details, dict):
        if list(details) != [str(index) for index in range(len(golds))]:
            raise PawlError(
                f"the details of {kind} are not numbered as the items are", where=_WHERE
            )
        details = list(details.values())
    if not isinstance(details, list) or len(details) != len(golds):
        raise PawlError(f"{kind} gives no details for each of {len(golds)} items", where=_WHERE)
    for number, (detail, prediction, gold) in enumerate(
        zip(details, predictions, golds, strict=True), 1
    ):
        if not isinstance(detail.get(rule.correct), bool):
            raise PawlError(
                f"{kind} does not say whether item {number} is right ({rule.correct!r} is missing)",
                where=_WHERE,
            )
        if not rule.same(detail, prediction, gold):
            raise PawlError(f"detail {number} of {kind} belongs to another item", where=_WHERE)
    return [float(detail[rule.correct]) for detail in details]
