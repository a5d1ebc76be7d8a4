"""Benchmark items: read, checked, and refused where they could not be scored."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import cast

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, read_jsonl
from stages.common.items import ids_sha256, item_id
from stages.common.schema import Benchmark
from stages.common.scoring import Item, Task

_COLUMNS = ("item_id", "benchmark", "question", "answer")
_AGAIN = "run 'dvc repro --force build_benchmark'"
_SPLITTING = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
"""IFEval's instructions that need NLTK's data."""
_DETECTING = (
    "language:response_language",
    "change_case:english_capital",
    "change_case:english_lowercase",
)
"""And those that need langdetect."""


def read(splits: list[str], limit: int = 0) -> list[Task]:
    """The items of data/benchmark/<split>/*.jsonl, file by file.

    Args:
        limit: take the first items of each file, so many at most (0: all).

    Raises:
        PawlError: no items, a broken line, a missing column, an item twice or with content that is
            not its id's.
    """
    tasks = []
    for split in splits:
        for path in _files(ROOT / "data" / "benchmark" / split):
            beside = path.with_suffix(".scoring.json")
            scoring = read_json(beside) if beside.is_file() else None
            tasks.append(Task(path.stem, split, _checked(path)[: limit or None], scoring))
    return tasks


def items_sha256(tasks: list[Task]) -> str:
    """Hash of the set of items: the same wherever the same questions were asked."""
    return ids_sha256(item["item_id"] for task in tasks for item in task.items)


def check(tasks: list[Task], benchmark: Benchmark) -> None:
    """Refuse, before anything is asked, what could not be scored afterwards.

    Raises:
        PawlError: code that may not run, or something that scoring needs and that is not here;
            names the benchmark.
    """
    for task in tasks:
        if task.scoring and task.scoring["executes_code"] and not benchmark.allow_code_execution:
            raise PawlError(
                f"scoring {task.name} runs what the model wrote",
                where="benchmark.allow_code_execution",
                fix=(
                    "set it to true: the code runs in a child without network, keys and this "
                    "repository, with limits; or leave it out"
                ),
            )
        if missing := _missing(task):
            raise PawlError(
                f"scoring {task.name} needs what is not installed here",
                where=task.name,
                fix=" && ".join(missing),
            )


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


def _files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        fix = "run 'dvc repro build_benchmark'"
        raise PawlError("there are no benchmark items", where=str(folder), fix=fix)
    return paths


def _checked(path: Path) -> list[Item]:
    items, seen = list(read_jsonl(path)), set()
    if not items:
        raise PawlError("there are no items", where=str(path), fix=_AGAIN)
    for number, item in enumerate(items, 1):
        where = f"{path}, item {number}"
        wrong = [name for name in _COLUMNS if not isinstance(item.get(name), str)]
        if wrong:
            raise PawlError(f"no text in column {', '.join(wrong)}", where=where, fix=_AGAIN)
        if not item["question"].strip():
            raise PawlError("the question is empty", where=where, fix=_AGAIN)
        if item["item_id"] in seen:
            raise PawlError(f"the item {item['item_id']} occurs twice", where=where, fix=_AGAIN)
        if item["item_id"] != item_id(item["benchmark"], item["question"], item["answer"]):
            raise PawlError(
                f"the content of item {item['item_id']} is not the one that its id was made of",
                where=where,
                fix=_AGAIN,
            )
        seen.add(item["item_id"])
    return cast(list[Item], items)
