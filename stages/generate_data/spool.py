"""Rows that passed the filters, on disk, and which of them are trained on: about 30 bytes a row
stay in memory.
"""

from __future__ import annotations

import json
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.schema import Data


class Spool:
    """A scratch file of rows, and for each its place, length in tokens, source, group and
    question.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb+")  # noqa: SIM115 - held as long as this object
        self._starts = array("Q")
        self._end = 0
        self.tokens = array("I")
        self.source = array("H")
        self.group = array("I")
        self.question = array("Q")
        self._groups: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def close(self) -> None:
        self._file.close()

    def add(
        self, record: dict[str, Any], *, tokens: int, source: int, group: str, question: int
    ) -> None:
        """Append a row. `group` is what samples are stratified by, `question` a hash of its
        question.
        """
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        self._file.write(line)
        self._starts.append(self._end)
        self._end += len(line)
        self.tokens.append(tokens)
        self.source.append(source)
        self.group.append(self._groups.setdefault(group, len(self._groups)))
        self.question.append(question)

    def lines(self, chosen: Iterable[int]) -> Iterator[bytes]:
        """The rows with these numbers, in that order."""
        self._file.flush()
        for number in chosen:
            self._file.seek(self._starts[number])
            yield self._file.readline()


def select(data: Data, spool: Spool) -> list[int]:
    """The numbers of the rows to use, in training order: each source's count or share, shuffled, at
    most max_rows.

    Raises:
        PawlError: no row is left.
    """
    names = list(data.sources)
    of_source: list[list[int]] = [[] for _ in names]
    for number, source in enumerate(spool.source):
        of_source[source].append(number)
    shares = _shares(data, [len(rows) for rows in of_source])
    chosen: list[int] = []
    for name, rows, wanted in zip(names, of_source, shares, strict=True):
        chosen += (
            sample(rows, wanted, spool.group, data.stratify, random.Random(f"{data.seed}\0{name}"))
            if len(rows) > wanted
            else rows
        )
    random.Random(data.seed).shuffle(chosen)
    if data.max_rows and len(chosen) > data.max_rows:
        if data.stratify:
            chosen = sample(
                chosen,
                data.max_rows,
                spool.group,
                data.stratify,
                random.Random(f"{data.seed}\0max_rows"),
            )
            random.Random(data.seed).shuffle(chosen)
        chosen = chosen[: data.max_rows]
    if not chosen:
        raise PawlError(
            "no training row is left after the filters",
            where="data.sources",
            fix="reports say why; see data.filters",
        )
    return chosen


def _shares(data: Data, available: list[int]) -> list[int]:
    """How many rows of each source are wanted: its count, or its share by weight of as many rows as
    the scarcest source allows.
    """
    sources = list(data.sources.values())
    limits = [
        min(rows, source.count) if source.count else rows
        for rows, source in zip(available, sources, strict=True)
    ]
    total = sum(source.weight for source in sources)
    if not total:
        return limits
    whole = min(rows * total / source.weight for rows, source in zip(limits, sources, strict=True))
    whole = min(whole, data.max_rows) if data.max_rows else whole
    exact = [whole * source.weight / total for source in sources]
    return [min(limit, round(share)) for limit, share in zip(limits, exact, strict=True)]


def sample(
    rows: Sequence[int], wanted: int, groups: Sequence[int], stratify: str, rng: random.Random
) -> list[int]:
    """`wanted` of these rows: at random, or so many of each group as it has of the whole, or
    (=even) as many of each as of every other.
    """
    if not stratify:
        return rng.sample(list(rows), wanted)
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(groups[row], []).append(row)
    quota = (
        _even(members, wanted)
        if stratify.endswith("=even")
        else _proportional(members, wanted, len(rows))
    )
    return [row for group, part in members.items() for row in rng.sample(part, quota[group])]


def _proportional(members: dict[int, list[int]], wanted: int, total: int) -> dict[int, int]:
    """Largest remainders, so that the parts add up."""
    exact = {group: wanted * len(part) / total for group, part in members.items()}
    quota = {group: int(share) for group, share in exact.items()}
    rest = sorted(exact, key=lambda group: (quota[group] - exact[group], group))
    for group in rest[: wanted - sum(quota.values())]:
        quota[group] += 1
    return quota


def _even(members: dict[int, list[int]], wanted: int) -> dict[int, int]:
    """Equal parts; what a small group lacks the others give, smallest first."""
    quota: dict[int, int] = {}
    for left, group in zip(
        range(len(members), 0, -1),
        sorted(members, key=lambda group: (len(members[group]), group)),
        strict=True,
    ):
        quota[group] = min(len(members[group]), -(-(wanted - sum(quota.values())) // left))
    return quota


def hold_out(chosen: list[int], spool: Spool, fraction: float) -> tuple[list[int], list[int]]:
    """The rows to train on and those held out for the loss, about `fraction` of them: never one
    question in both.

    Raises:
        PawlError: one of the two would be empty.
    """
    if not fraction:
        return chosen, []
    wanted = max(1, round(len(chosen) * fraction))
    held = {spool.question[number] for number in chosen[-wanted:]}
    train = [number for number in chosen if spool.question[number] not in held]
    if not train:
        what = f"{len(chosen)} rows cannot be divided into training and evaluation"
        raise PawlError(what, where="data.eval_fraction", fix="set it to 0, or take more rows")
    return train, [number for number in chosen if spool.question[number] in held]


def tally(spool: Spool, chosen: Iterable[int]) -> Counter[int]:
    """How many of these rows each source has."""
    return Counter(spool.source[number] for number in chosen)
