"""Benchmark items through OpenCompass: its dataset, its prompt, its evaluator, its post-processors."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_jsonl, sha256_text
from stages.common.items import item_id

_COLUMNS = ("item_id", "benchmark", "question", "answer")


@dataclass
class Task:
    """One benchmark's items of one split, in file order.

    Attributes:
        dataset: OpenCompass's test set, for evaluators that look at it.
        prompts: what the model is asked, one for each item.
    """

    name: str
    split: str
    items: list[dict[str, Any]]
    dataset: Any
    prompts: list[str]


def read(splits: list[str]) -> dict[Path, list[dict[str, Any]]]:
    """The items of data/benchmark/<split>/*.jsonl, file by file.

    Raises:
        PawlError: no items, a broken line, a missing column, an item twice or with content that is not its id's.
    """
    return {path: _checked(path) for split in splits for path in _files(ROOT / "data" / "benchmark" / split)}


def load(items: dict[Path, list[dict[str, Any]]]) -> list[Task]:
    """Make tasks of what `read` gave. Imports OpenCompass: about 13 s the first time, in the main thread only (it sets signal handlers)."""
    return [_task(path, part) for path, part in items.items()]


def items_sha256(tasks: list[Task]) -> str:
    """Hash of the set of items: the same wherever the same questions were asked."""
    return sha256_text("\n".join(sorted(item["item_id"] for task in tasks for item in task.items)))


def evaluator(dotted: str) -> Any:
    """An instance of OpenCompass's evaluator class.

    Raises:
        PawlError: there is no such class, or it needs arguments.
    """
    module, _, name = dotted.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PawlError(
            f"no evaluator {dotted!r}: {error}", where="benchmark.evaluator",
            fix="name a class, such as opencompass.openicl.icl_evaluator.icl_hf_evaluator.AccwithDetailsEvaluator",
        ) from None  # fmt: skip
    try:
        return kind()
    except TypeError as error:
        raise PawlError(
            f"the evaluator {name} cannot be made without arguments: {error}", where="benchmark.evaluator", fix="choose another"
        ) from None


def postprocessor(name: str) -> Callable[[str], str]:
    """What is done to a reply before it is scored: "" nothing, "strip" blanks around it, else one of OpenCompass's by name.

    Raises:
        PawlError: unknown name; names the nearest.
    """
    if name in ("", "strip"):
        return str.strip if name else str
    import opencompass.utils.text_postprocessors  # noqa: F401 - registers them
    from opencompass.registry import TEXT_POSTPROCESSORS

    known = {**TEXT_POSTPROCESSORS.module_dict, "strip": str.strip}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        fix = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
        raise PawlError(f"no post-processor {name!r}", where="benchmark.postprocessor", fix=fix)
    process: Callable[[str], str] = known[name]
    return process


def _files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise PawlError("there are no benchmark items", where=str(folder), fix="run 'dvc repro build_benchmark'")
    return paths


def _task(path: Path, items: list[dict[str, Any]]) -> Task:
    dataset = _dataset(path, [item["question"] for item in items])
    return Task(path.stem, path.parent.name, items, dataset.test, _prompts(dataset, items, path))


def _checked(path: Path) -> list[dict[str, Any]]:
    items, seen = list(read_jsonl(path)), set()
    fix = "run 'dvc repro --force build_benchmark'"
    if not items:
        raise PawlError("there are no items", where=str(path), fix=fix)
    for number, item in enumerate(items, 1):
        where = f"{path}, item {number}"
        if wrong := [name for name in _COLUMNS if not isinstance(item.get(name), str)]:
            raise PawlError(f"no text in column {', '.join(wrong)}", where=where, fix=fix)
        if not item["question"].strip():
            raise PawlError("the question is empty", where=where, fix=fix)
        if item["item_id"] in seen:
            raise PawlError(f"the item {item['item_id']} occurs twice", where=where, fix=fix)
        if item["item_id"] != item_id(item["benchmark"], item["question"], item["answer"]):
            raise PawlError(f"the content of item {item['item_id']} is not the one that its id was made of", where=where, fix=fix)
        seen.add(item["item_id"])
    return items


def _dataset(path: Path, questions: list[str]) -> Any:
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from opencompass.datasets.custom import CustomDataset

    try:
        dataset = CustomDataset(
            path=str(path.resolve()), abbr=path.stem, reader_cfg={"input_columns": ["question"], "output_column": "answer"}
        )
    except (ValueError, TypeError) as error:  # Arrow: columns of mixed types, text that UTF-8 cannot carry
        raise PawlError(
            f"OpenCompass cannot read the items: {str(error)[:300]}", where=str(path), fix="mend build_benchmark's source"
        ) from None
    test = dataset.test
    if [row["question"] for row in test] != questions:
        raise PawlError("OpenCompass read other items than the file holds", where=str(path), fix="one JSON object a line, no blank lines")
    # the template is filled in column by column: with the question last, braces in a question stay as they are
    columns = [name for name in test.column_names if name != "question"]
    dataset.reader.dataset["test"] = test.select_columns([*columns, "question"])
    return dataset


def _prompts(dataset: Any, items: list[dict[str, Any]], path: Path) -> list[str]:
    """The prompts as OpenCompass's generation task makes them: the question, zero-shot, never the answer."""
    from opencompass.openicl.icl_prompt_template import PromptTemplate
    from opencompass.openicl.icl_retriever import ZeroRetriever

    retriever, template = ZeroRetriever(dataset), PromptTemplate("{question}")
    shots = retriever.retrieve()
    prompts = []
    for index, item in enumerate(items):
        ice = retriever.generate_ice(shots[index])
        prompt = retriever.generate_prompt_for_generate_task(index, ice, prompt_template=template)
        if prompt != item["question"]:
            raise PawlError("the prompt is not the question", where=f"{path}, item {index + 1}", fix="report this: it is a bug")
        prompts.append(prompt)
    return prompts
