"""Benchmark items, and how replies to them become scores: OpenCompass's evaluators and post-processors."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, read_jsonl
from stages.common.items import ids_sha256, item_id
from stages.common.lazy import quick_opencompass
from stages.common.schema import Benchmark

_COLUMNS = ("item_id", "benchmark", "question", "answer")
_MEND = "run 'dvc repro --force build_benchmark'"
_SPLITTING = ("length_constraints:number_sentences", "change_case:capital_word_frequency")  # IFEval's instructions that need NLTK's data
_DETECTING = (
    "language:response_language",
    "change_case:english_capital",
    "change_case:english_lowercase",
)  # and those that need langdetect
_JUDGES = ("GenericLLMEvaluator", "CascadeEvaluator")  # evaluators that ask a language model


@dataclass
class Task:
    """One benchmark's items of one split, in file order.

    Attributes:
        conversations: what the model is asked, one for each item.
        scoring: how build_benchmark says that this dataset of OpenCompass is scored; None for items of one's own.
    """

    name: str
    split: str
    items: list[dict[str, Any]]
    scoring: dict[str, Any] | None = None
    conversations: list[list[dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conversations = [item.get("messages") or [{"role": "user", "content": item["question"]}] for item in self.items]

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
    spec: dict[str, Any] = field(default_factory=dict)


def read(splits: list[str], limit: int = 0) -> list[Task]:
    """The items of data/benchmark/<split>/*.jsonl, file by file; of each at most the first `limit` (0: all).

    Raises:
        PawlError: no items, a broken line, a missing column, an item twice or with content that is not its id's.
    """
    tasks = []
    for split in splits:
        for path in _files(ROOT / "data" / "benchmark" / split):
            scoring = path.with_suffix(".scoring.json")
            tasks.append(Task(path.stem, split, _checked(path)[: limit or None], read_json(scoring) if scoring.is_file() else None))
    return tasks


def items_sha256(tasks: list[Task]) -> str:
    """Hash of the set of items: the same wherever the same questions were asked."""
    return ids_sha256(item["item_id"] for task in tasks for item in task.items)


def check(tasks: list[Task], benchmark: Benchmark) -> None:
    """Refuse, before anything is asked, what could not be scored afterwards.

    Raises:
        PawlError: code that may not run, or something that scoring needs and that is not here; names the benchmark.
    """
    for task in tasks:
        if task.scoring and task.scoring["executes_code"] and not benchmark.allow_code_execution:
            raise PawlError(
                f"scoring {task.name} runs what the model wrote", where="benchmark.allow_code_execution",
                fix="set it to true: the code runs in a child without network, keys and this repository, with limits; or leave it out",
            )  # fmt: skip
        if missing := _missing(task):
            raise PawlError(f"scoring {task.name} needs what is not installed here", where=task.name, fix=" && ".join(missing))


def _missing(task: Task) -> list[str]:
    """The commands that get what scoring needs beside OpenCompass and what it requires."""
    golds, commands = str(task.golds), []
    if any(name in golds for name in _DETECTING) and not importlib.util.find_spec("langdetect"):
        commands.append("python -m pip install langdetect")
    if any(name in golds for name in _SPLITTING) and not _splits_sentences():
        commands.append("python -m nltk.downloader punkt_tab")
    return commands


def _splits_sentences() -> bool:
    import nltk

    try:
        nltk.word_tokenize("One. Two.")
    except LookupError:
        return False
    return True


def is_judged(task: Task) -> bool:
    """Whether scoring asks a language model."""
    return bool(task.scoring) and str(task.scoring["evaluator"]["type"]).rpartition(".")[2] in _JUDGES  # type: ignore[index]


def scorer(task: Task, benchmark: Benchmark) -> Scorer:
    """How a task is scored. Imports that part of OpenCompass, about 1.5 s the first time.

    Raises:
        PawlError: no such evaluator or post-processor.
    """
    if not task.scoring:
        return Scorer(evaluator({"type": benchmark.evaluator}), postprocessor(benchmark.postprocessor))
    spec, post = task.scoring["evaluator"], task.scoring["postprocessor"]
    made = None if is_judged(task) or task.scoring["executes_code"] else evaluator(spec)
    return Scorer(made, _processor(post) if post else str, task.scoring["metric"], spec)


def evaluator(spec: dict[str, Any]) -> Any:
    """An instance of an OpenCompass evaluator class, with the arguments that its configuration names.

    Raises:
        PawlError: there is no such class, or it needs other arguments.
    """
    arguments = {key: value for key, value in spec.items() if key != "type"}
    try:
        kind = named(spec["type"])
    except (ImportError, AttributeError, ValueError) as error:
        raise PawlError(
            f"no evaluator {spec['type']!r}: {error}", where="benchmark.evaluator",
            fix="name a class, such as opencompass.openicl.icl_evaluator.icl_hf_evaluator.AccwithDetailsEvaluator",
        ) from None  # fmt: skip
    try:
        return kind(**arguments)
    except (TypeError, ImportError) as error:
        raise PawlError(
            f"the evaluator {kind.__name__} cannot be made: {error}", where="benchmark.evaluator", fix="choose another"
        ) from None


def named(dotted: str) -> Any:
    """A class or function by its dotted name."""
    quick_opencompass()
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def postprocessor(name: str) -> Callable[[str], Any]:
    """What is done to a reply before it is scored: "" nothing, "strip" blanks around it, else one of OpenCompass's by name.

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


def _processor(spec: dict[str, Any]) -> Callable[[str], Any]:
    if "." not in spec["type"]:
        return postprocessor(spec["type"])
    return partial(named(spec["type"]), **{key: value for key, value in spec.items() if key != "type"})


def _files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise PawlError("there are no benchmark items", where=str(folder), fix="run 'dvc repro build_benchmark'")
    return paths


def _checked(path: Path) -> list[dict[str, Any]]:
    items, seen = list(read_jsonl(path)), set()
    if not items:
        raise PawlError("there are no items", where=str(path), fix=_MEND)
    for number, item in enumerate(items, 1):
        where = f"{path}, item {number}"
        if wrong := [name for name in _COLUMNS if not isinstance(item.get(name), str)]:
            raise PawlError(f"no text in column {', '.join(wrong)}", where=where, fix=_MEND)
        if not item["question"].strip():
            raise PawlError("the question is empty", where=where, fix=_MEND)
        if item["item_id"] in seen:
            raise PawlError(f"the item {item['item_id']} occurs twice", where=where, fix=_MEND)
        if item["item_id"] != item_id(item["benchmark"], item["question"], item["answer"]):
            raise PawlError(f"the content of item {item['item_id']} is not the one that its id was made of", where=where, fix=_MEND)
        seen.add(item["item_id"])
    return items
