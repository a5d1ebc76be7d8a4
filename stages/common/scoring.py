"""A benchmark's items with what scores replies to them: OpenCompass's evaluators and
post-processors, by name.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NotRequired, TypedDict

from stages.common.errors import PawlError
from stages.common.lazy import quick_opencompass
from stages.common.schema import Benchmark

_JUDGES = ("GenericLLMEvaluator", "CascadeEvaluator")  # evaluators that ask a language model


Spec = dict[str, Any]
"""OpenCompass's configuration of an object: its class or function as `type`, and any arguments."""


class Item(TypedDict):
    """An item of data/benchmark/SPLIT/TASK.jsonl.

    Attributes:
        messages: the conversation to ask, if it is more than the question.
        reference: what the evaluator compares with, if it is not the answer.
        row: the loader's columns, if the evaluator asks for them.
        category: of a procedural task, or of a file that names some.
    """

    item_id: str
    benchmark: str
    question: str
    answer: str
    messages: NotRequired[list[dict[str, str]]]
    reference: NotRequired[Any]
    row: NotRequired[dict[str, object]]
    category: NotRequired[str]


class Scoring(TypedDict):
    """How a dataset of OpenCompass is scored: TASK.scoring.json.

    Attributes:
        metric: see `Scorer`.
        executes_code: whether scoring runs what the model wrote.
        config, abbreviation: of OpenCompass's configuration, and of the dataset in it.
        extraction: what stands in for OpenCompass's scoring, if its self-test failed.
    """

    evaluator: Spec
    postprocessor: Spec | None
    metric: str
    executes_code: bool
    config: NotRequired[str]
    abbreviation: NotRequired[str]
    extraction: NotRequired[str]


@dataclass
class Task:
    """One benchmark's items of one split, in file order.

    Attributes:
        conversations: what the model is asked, one for each item.
        scoring: how build_benchmark says that this dataset of OpenCompass is scored; None for items
            of one's own.
    """

    name: str
    split: str
    items: list[Item]
    scoring: Scoring | None = None
    conversations: list[list[dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conversations = [
            item.get("messages") or [{"role": "user", "content": item["question"]}]
            for item in self.items
        ]

    @property
    def golds(self) -> list[Any]:
        """What the evaluator compares with."""
        return [item.get("reference", item["answer"]) for item in self.items]


@dataclass(frozen=True)
class Scorer:
    """An evaluator and what is done to a reply before it.

    Attributes:
        metric: the key of the number that decides ("": the only one, or accuracy, or score).
        spec: the evaluator as written, for one that a sandbox or a judge stands in for.
    """

    evaluator: Any
    postprocess: Callable[[str], Any]
    metric: str = ""
    spec: Spec = field(default_factory=dict)


def is_judged(task: Task) -> bool:
    """Whether scoring asks a language model."""
    if not task.scoring:
        return False
    return str(task.scoring["evaluator"]["type"]).rpartition(".")[2] in _JUDGES


def scorer(task: Task, benchmark: Benchmark) -> Scorer:
    """How a task is scored. Imports that part of OpenCompass, about 1.5 s the first time.

    Raises:
        PawlError: no such evaluator or post-processor.
    """
    if not task.scoring:
        return Scorer(evaluator({"type": benchmark.evaluator}), processor(task, benchmark))
    spec = task.scoring["evaluator"]
    made = None if is_judged(task) or task.scoring["executes_code"] else evaluator(spec)
    return Scorer(made, processor(task, benchmark), task.scoring["metric"], spec)


def processor(task: Task, benchmark: Benchmark) -> Callable[[str], Any]:
    """What is done to a reply before a task's evaluator sees it."""
    if not task.scoring:
        return postprocessor(benchmark.postprocessor)
    spec = task.scoring["postprocessor"]
    return _processor(spec) if spec else str


def evaluator(spec: Spec) -> Any:
    """An instance of an OpenCompass evaluator class, with the arguments that its configuration
    names.

    Raises:
        PawlError: there is no such class, or it needs other arguments.
    """
    arguments = {key: value for key, value in spec.items() if key != "type"}
    try:
        kind = named(spec["type"])
    except (ImportError, AttributeError, ValueError) as error:
        raise PawlError(
            f"no evaluator {spec['type']!r}: {error}",
            where="benchmark.evaluator",
            fix=(
                "name a class, such as"
                " opencompass.openicl.icl_evaluator.icl_hf_evaluator.AccwithDetailsEvaluator"
            ),
        ) from None
    try:
        return kind(**arguments)
    except (TypeError, ImportError) as error:
        raise PawlError(
            f"the evaluator {kind.__name__} cannot be made: {error}",
            where="benchmark.evaluator",
            fix="choose another",
        ) from None


def named(dotted: str) -> Any:
    """A class or function by its dotted name."""
    quick_opencompass()
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def postprocessor(name: str) -> Callable[[str], Any]:
    """What is done to a reply before it is scored: "" nothing, "strip" blanks around it, else one
    of OpenCompass's by name.

    Raises:
        PawlError: unknown name; names the nearest.
    """
    if name in ("", "strip"):
        return str.strip if name else str
    quick_opencompass()
    importlib.import_module("opencompass.utils.text_postprocessors")  # registers them
    from opencompass.registry import TEXT_POSTPROCESSORS

    known = {**TEXT_POSTPROCESSORS.module_dict, "strip": str.strip}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        fix = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
        raise PawlError(f"no post-processor {name!r}", where="benchmark.postprocessor", fix=fix)
    process: Callable[[str], Any] = known[name]
    return process


def _processor(spec: Spec) -> Callable[[str], Any]:
    if "." not in spec["type"]:
        return postprocessor(spec["type"])
    return partial(
        named(spec["type"]), **{key: value for key, value in spec.items() if key != "type"}
    )
