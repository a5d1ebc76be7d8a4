"""Validation and test items of each task: never the same question in both."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from stages.build_benchmark import opencompass
from stages.common import columns
from stages.common.errors import PawlError
from stages.common.files import sha256_text
from stages.common.items import SPLITS, item_id
from stages.common.questions import PARTS, Question, choose, normalize, read, stream, take
from stages.common.schema import Benchmark, Source
from stages.common.scoring import Item, Scoring

"""{item_id, benchmark, question, answer, category}; of a suite also messages, reference and perhaps
row (see opencompass.Dataset)
"""
Parts = dict[str, list[Question]]
"""The questions of val and of test."""
Taken = tuple[Parts, int, dict[str, int]]
"""Those, how many repeat another, and how many are in neither: {train: of the train part, beyond:
more than are wanted}.
"""


@dataclass
class Task:
    """The items of one task or dataset.

    Attributes:
        duplicates: how many drawn or read questions were dropped because they repeat another.
        repeated: the questions that a suite's file holds more than once, as groups of places in it,
            counted from 1.
        scoring: how replies become scores, for a dataset of a suite.
        licence: of its data.
        shown: how many questions were left out because they stand among the worked examples of
            their own prompt.
    """

    val: list[Item]
    test: list[Item]
    duplicates: int
    licence: str = ""
    repeated: list[list[int]] = field(default_factory=list)
    scoring: Scoring | None = None
    shown: int = 0
    spare: dict[str, int] = field(default_factory=dict)


def build(benchmark: Benchmark) -> dict[str, Task]:
    """The items of all tasks. A procedural task gives exactly val_items and test_items; a file at
    most as many.

    Raises:
        PawlError: a name that cannot be a file name, a broken line, too few questions, val and test
            that overlap all the same.
    """
    check_names([*benchmark.tasks, *benchmark.suites])
    wanted = {"val": benchmark.val_items, "test": benchmark.test_items}
    # by all tasks so far: two may draw from one generator or read one file
    asked: dict[str, set[str]] = {split: set() for split in SPLITS}
    tasks = {}
    for name, source in benchmark.tasks.items():
        _refuse_training_keys(source, f"benchmark.tasks.{name}")
        make = _drawn if source.kind == "procedural" else _read
        parts, duplicates, spare = make(name, source, benchmark, wanted, asked)
        for split, questions in parts.items():
            if not questions:
                fix = "its file needs at least four different questions"
                raise PawlError(
                    f"{name} has no {split} items", where=f"benchmark.tasks.{name}", fix=fix
                )
            asked[split] |= {normalize(question.question) for question in questions}
        val, test = ([_item(name, question) for question in parts[split]] for split in SPLITS)
        tasks[name] = Task(val, test, duplicates, source.licence, spare=spare)
    for name, suite in benchmark.suites.items():
        for dataset in opencompass.load(name, suite, own=benchmark.splits == "own"):
            if dataset.name in tasks:
                fix = "name other abbreviations, or rename the task"
                raise PawlError(
                    f"two datasets are called {dataset.name}",
                    where=f"benchmark.suites.{name}",
                    fix=fix,
                )
            tasks[dataset.name] = _divide(dataset, benchmark, wanted, asked, suite.licence)
    check_names(list(tasks))
    check_disjoint(tasks)
    return tasks


def _divide(
    dataset: opencompass.Dataset,
    benchmark: Benchmark,
    wanted: dict[str, int],
    asked: dict[str, set[str]],
    licence: str,
) -> Task:
    """A suite's dataset as validation and test: its first and last items, a seeded draw, or its own
    validation split.
    """
    where = f"benchmark.suites ({dataset.name})"
    own = benchmark.splits == "own"
    if own and not dataset.own_val:
        raise PawlError(
            f"{dataset.name} has no validation split of its own",
            where=where,
            fix="choose benchmark.splits=ends or seeded",
        )
    places: dict[str, list[int]] = {}
    for place, item in enumerate(dataset.items, 1):
        places.setdefault(normalize(item["question"]), []).append(place)
    # of questions that repeat, the first; none that its own prompt answers
    firsts = [
        dataset.items[group[0] - 1]
        for question, group in places.items()
        if question not in dataset.shown
    ]
    if benchmark.splits in ("seeded", "halves", "auto"):
        firsts.sort(key=lambda item: sha256_text(f"{benchmark.seed}\0{item['question']}"))
    half = len(firsts) if own else len(firsts) // 2
    test = firsts[-min(wanted["test"], half) :] if half else []
    val = (
        [item for item in dataset.own_val if normalize(item["question"]) not in dataset.shown]
        if own
        else firsts
    )
    taken = {normalize(item["question"]) for item in test}
    val = [item for item in val if normalize(item["question"]) not in taken][
        : min(wanted["val"], len(val) if own else half)
    ]
    for split, items in (("val", val), ("test", test)):
        keys = {normalize(item["question"]) for item in items}
        other = asked["test" if split == "val" else "val"]
        if keys & other:
            fix = "leave one of them out, or use one alone"
            raise PawlError(
                f"{len(keys & other)} {split} questions of {dataset.name} are on the other side of"
                " another dataset",
                where=where,
                fix=fix,
            )
        if not items:
            examples = (
                f"; {len(dataset.shown)} stand among the worked examples of its own configuration"
                if dataset.shown
                else ""
            )
            fix = "it needs at least two different questions" + (
                ", or examples from other data" if examples else ""
            )
            raise PawlError(f"{dataset.name} has no {split} items{examples}", where=where, fix=fix)
        asked[split] |= keys
    groups = [group for group in places.values() if len(group) > 1]
    named = [[_named(dataset.name, item) for item in items] for items in (val, test)]
    return Task(
        named[0],
        named[1],
        sum(len(group) - 1 for group in groups),
        licence,
        groups,
        dataset.scoring,
        len(dataset.shown),
    )


def _named(name: str, item: dict[str, Any]) -> Item:
    """An item with its identity: what the model is asked last, and the right answer; the worked
    examples before it are no part of it.
    """
    identity = item_id(name, item["question"], item["answer"])
    return cast(Item, {"item_id": identity, "benchmark": name, **item})


def check_names(names: list[str]) -> None:
    """A task's name becomes a file name, a column and a line of a report."""
    if not names:
        raise PawlError(
            "the benchmark has no tasks", where="benchmark.tasks", fix="name at least one"
        )
    folded: dict[str, str] = {}
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
            raise PawlError(
                f"{name!r:.80} cannot be a task's name",
                where="benchmark.tasks",
                fix="use up to 64 letters, digits, '_', '-' and '.'",
            )
        if name.casefold() in folded:
            fix = "rename one: some file systems see one name in both"
            raise PawlError(
                f"{name!r} and {folded[name.casefold()]!r} differ in case alone",
                where="benchmark.tasks",
                fix=fix,
            )
        folded[name.casefold()] = name


def check_disjoint(tasks: dict[str, Task]) -> None:
    """Fail where a validation item is a test item too, or an item occurs twice: the proof, made on
    what will be written.
    """
    for kind in ("item_id", "question"):
        sides = [
            [normalize(item[kind]) for task in tasks.values() for item in getattr(task, which)]
            for which in SPLITS
        ]
        if shared := set(sides[0]) & set(sides[1]):
            fix = "this is a bug of build_benchmark"
            raise PawlError(
                f"{len(shared)} validation and test items have the same {kind}",
                where="benchmark.tasks",
                fix=fix,
            )
        if kind == "item_id" and any(len(side) != len(set(side)) for side in sides):
            raise PawlError(
                "two items of one split have the same item_id",
                where="benchmark.tasks",
                fix="this is a bug of build_benchmark",
            )


def _drawn(
    name: str,
    source: Source,
    benchmark: Benchmark,
    wanted: dict[str, int],
    asked: dict[str, set[str]],
) -> Taken:
    """Draw validation items with `seed` and test items with `seed` + 1, by turns, each question new
    to both.

    By turns, because a task runs out of its easy questions first (there are 200 sums of one digit):
    were one split drawn after the other, the second would be the harder one. Measured: 92 of 200
    one-digit sums in the first, 58 in the second.
    """
    where = f"benchmark.tasks.{name}"
    streams = {
        split: stream(source, benchmark.seed + number, where) for number, split in enumerate(SPLITS)
    }
    parts: Parts = {split: [] for split in SPLITS}
    seen: set[str] = set()
    drawn = 0
    while unfilled := [split for split in SPLITS if len(parts[split]) < wanted[split]]:
        split = min(unfilled, key=lambda split: len(parts[split]) / wanted[split])
        new = partial(_is_new, split=split, seen=seen, asked=asked)
        taken, tried = take(streams[split], 1, new)
        drawn += tried
        if not taken:
            total = sum(map(len, parts.values()))
            what = (
                f"{source.task} gives only {total} different questions ({drawn} drawn),"
                f" {sum(wanted.values())} are wanted"
            )
            raise PawlError(
                what,
                where=where,
                fix="widen its settings, or lower benchmark.val_items and benchmark.test_items",
            )
        parts[split] += taken
    return parts, drawn - sum(wanted.values()), {}


def _read(
    name: str,
    source: Source,
    benchmark: Benchmark,
    wanted: dict[str, int],
    asked: dict[str, set[str]],
) -> Taken:
    """The validation and test parts of a file, at most so many items of each: in an order drawn by
    the seed, or its two ends.
    """
    seed = benchmark.seed
    rows, bad = read(source, f"benchmark.tasks.{name}")
    if bad:
        lost = sum(row.rows for row in bad)
        more = f" ({lost} such lines)" if lost > 1 else ""
        fix = (
            columns.fix(bad[:5], f"benchmark.tasks.{name}")
            or "correct or remove that line; a benchmark is used whole or not at all"
        )
        raise PawlError(f"broken line: {bad[0].reason}{more}", where=bad[0].where, fix=fix)
    for row in rows:
        if row.context:
            what = f"a benchmark item with several turns: {row.question!r:.80}"
            raise PawlError(what, where=source.path, fix="keep one question and one answer")
    parts: Parts = {}
    seen: set[str] = set()
    duplicates = 0
    if benchmark.splits == "ends":
        kept = [
            question
            for question in choose(rows, source, seed, "all")
            if _is_new(question, "val", seen, asked)
        ]
        half = len(kept) // 2
        parts = {
            "val": kept[: min(wanted["val"], half)],
            "test": kept[len(kept) - min(wanted["test"], half) :],
        }
        return (
            parts,
            len(rows) - len(kept),
            _spare(beyond=len(kept) - sum(map(len, parts.values()))),
        )
    drawn = {part: choose(rows, source, seed, part) for part in PARTS}
    if benchmark.splits != "seeded":  # halves: what would be the train part is validation
        drawn = {"train": [], "val": drawn["train"], "test": drawn["val"] + drawn["test"]}
    beyond = 0
    for split in SPLITS:
        new = [question for question in drawn[split] if _is_new(question, split, seen, asked)]
        duplicates += len(drawn[split]) - len(new)
        parts[split] = sorted(
            new, key=lambda question: sha256_text(f"{seed}\0{question.question}")
        )[: wanted[split]]
        beyond += len(new) - len(parts[split])
    return (
        parts,
        duplicates,
        _spare(
            train=len({normalize(question.question) for question in drawn["train"]}), beyond=beyond
        ),
    )


def _spare(**counts: int) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _is_new(question: Question, split: str, seen: set[str], asked: dict[str, set[str]]) -> bool:
    """Whether this task has not asked it yet, nor any other task in the other split; remembers
    it.
    """
    key = normalize(question.question)
    if key in seen or any(key in asked[other] for other in SPLITS if other != split):
        return False
    seen.add(key)
    return True


def _refuse_training_keys(source: Source, where: str) -> None:
    if source.part != "all" or source.count:
        key, fix = (
            ("part", "leave it at 'all': the benchmark takes val and test itself")
            if source.part != "all"
            else ("count", "set val_items and test_items")
        )
        raise PawlError(f"{where}.{key} is for training data", where=f"{where}.{key}", fix=fix)


def _item(name: str, question: Question) -> Item:
    answer = question.answer.strip()  # a reply is compared without the blanks around it
    return {
        "item_id": item_id(name, question.question, answer),
        "benchmark": name,
        "question": question.question,
        "answer": answer,
        "category": question.category,
    }
