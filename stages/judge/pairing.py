"""From per-item rows to pairs: which item of the candidate belongs to which of the incumbent.
Columns in, columns out.

Rows are an Arrow table (see `COLUMNS`), so that a million pairs take seconds; `as_table` makes one
from `Row`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.common.errors import PawlError
from stages.common.items import holds
from stages.common.reports.evaluation import Answer

MAX_REPEATS = 1000
COLUMNS = pa.schema(
    [
        ("item_id", pa.string()),
        ("benchmark", pa.string()),
        ("split", pa.string()),
        ("correct", pa.bool_()),
        ("score", pa.float64()),
        ("prediction", pa.string()),
        ("gold", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("truncated", pa.bool_()),
        ("repeat", pa.int64()),
        ("fingerprint", pa.string()),
    ]
)
"""The columns of a per-item row (see `stages.common.reports.evaluation.Row`)."""


@dataclass(frozen=True)
class Side:
    """One side of n items, its repeats added up: correct and lenient in [0, repeats] as integers,
    score as a sum; arrays of length n.
    """

    repeats: int
    correct: Any
    lenient: Any
    score: Any

    def of(self, where: Any) -> Side:
        return Side(self.repeats, self.correct[where], self.lenient[where], self.score[where])


@dataclass(frozen=True)
class Pairs:
    """n items on both sides, in one order."""

    candidate: Side
    incumbent: Side

    def __len__(self) -> int:
        return len(self.candidate.correct)

    def of(self, where: Any) -> Pairs:
        return Pairs(self.candidate.of(where), self.incumbent.of(where))


def as_table(rows: Iterable[Answer] | pa.Table) -> pa.Table:
    """Rows as columns. A lone surrogate, which UTF-8 cannot carry, becomes a question mark."""
    if isinstance(rows, pa.Table):
        return rows
    listed = list(rows)

    def column(name: str) -> list[Any]:
        values = [getattr(row, name) for row in listed]
        return (
            [value.encode("utf-8", "replace").decode() for value in values]
            if COLUMNS.field(name).type == pa.string()
            else values
        )

    return pa.table(
        {name: pa.array(column(name), COLUMNS.field(name).type) for name in COLUMNS.names},
        schema=COLUMNS,
    )


def lenient_column(table: pa.Table) -> pa.Array:
    """Whether each reply holds the right answer in any form, as 0 or 1; only wrong ones are looked
    at, and the same text once.
    """
    right = table["correct"].to_numpy()
    found = right.astype(np.int64)
    wrong = table.filter(pa.array(~right))
    known: dict[tuple[str, str], int] = {}
    replies = zip(wrong["gold"].to_pylist(), wrong["prediction"].to_pylist(), strict=True)
    for index, reply in zip(np.flatnonzero(~right), replies, strict=True):
        if reply not in known:
            known[reply] = int(holds(*reply))
        found[index] = known[reply]
    return pa.array(found)


def pair(
    candidate: Iterable[Answer] | pa.Table, incumbent: Iterable[Answer] | pa.Table
) -> dict[str, Pairs]:
    """Pair two evaluations item by item, for each benchmark.

    Raises:
        PawlError: an item that is missing, duplicated, of other content, or short of a repeat on
            one side; named and counted. Sides that were asked unequally often: means of unequal
            size differ askew, which the sign-flip test takes for a gain.
    """
    left, right = _items(candidate, "candidate"), _items(incumbent, "incumbent")
    fix = (
        "evaluate both sides on the same items: a benchmark that changed needs the incumbent"
        " evaluated again"
    )
    if not (
        left["benchmark"].equals(right["benchmark"]) and left["item_id"].equals(right["item_id"])
    ):
        ours, theirs = set(_keys(left)), set(_keys(right))
        for alone, name in ((ours - theirs, "candidate"), (theirs - ours, "incumbent")):
            if alone:
                sizes = f"candidate {len(ours)} items, incumbent {len(theirs)}"
                raise PawlError(
                    f"{_count(alone)} only in the {name} ({sizes}): {_names(alone)}", fix=fix
                )
    other = pc.not_equal(left["gold_min"], right["gold_min"])
    if pc.any(other).as_py():
        changed = _keys(left.filter(other))
        raise PawlError(
            f"{_count(changed)} with another answer key on the two sides: {_names(changed)}",
            fix=fix,
        )
    both = Pairs(_side(left), _side(right))
    if both.candidate.repeats != both.incumbent.repeats:
        asked = (
            f"{both.candidate.repeats} times by the candidate, {both.incumbent.repeats} by the"
            " incumbent"
        )
        raise PawlError(
            f"each item was answered {asked}", fix="evaluate both sides with equally many repeats"
        )
    codes = left["benchmark"].combine_chunks().dictionary_encode()
    where = codes.indices.to_numpy()
    return {name: both.of(where == code) for code, name in enumerate(codes.dictionary.to_pylist())}


def _items(rows: Iterable[Answer] | pa.Table, name: str) -> pa.Table:
    """One line an item, in the order of benchmark and id, repeats added up and checked."""
    table = as_table(rows)
    if not len(table):
        raise PawlError(
            f"the {name} has no rows", fix="evaluate it again: 'dvc repro -f' on its stage"
        )
    repeat = table["repeat"].to_numpy()
    if len(odd := np.flatnonzero((repeat < 0) | (repeat >= MAX_REPEATS))):
        first = int(odd[0])
        where = f"item {table['item_id'][first].as_py()}"
        raise PawlError(
            f"the {name} has a row with repeat {repeat[first]}",
            where=where,
            fix="repeats count from 0",
        )
    table = table.append_column("lenient", lenient_column(table))
    wanted = [
        ("repeat", "count"),
        ("repeat", "count_distinct"),
        *((name, end) for name in ("repeat", "gold") for end in ("min", "max")),
    ]
    wanted += [("correct", "sum"), ("lenient", "sum"), ("score", "sum")]
    items = (
        table.group_by(["benchmark", "item_id"])
        .aggregate(wanted)
        .sort_by([("benchmark", "ascending"), ("item_id", "ascending")])
    )
    _refuse(
        items,
        pc.not_equal(items["repeat_count"], items["repeat_count_distinct"]),
        "duplicated in the {}",
        name,
        "an item is one row a repeat",
    )
    _refuse(
        items,
        pc.not_equal(items["gold_min"], items["gold_max"]),
        "with two answer keys in the {}",
        name,
        "an item has one answer",
    )
    shape = np.stack(
        [items[f"repeat_{part}"].to_numpy() for part in ("min", "max", "count")], axis=1
    )
    # one number for each shape
    codes, counts = np.unique(shape @ [MAX_REPEATS**2, MAX_REPEATS, 1], return_counts=True)
    odd = shape @ [MAX_REPEATS**2, MAX_REPEATS, 1] != codes[counts.argmax()]
    _refuse(
        items,
        pa.array(odd),
        "in the {} without the repeats that the others have",
        name,
        "each item is asked equally often",
    )
    return items


def _refuse(items: pa.Table, wrong: Any, what: str, name: str, rule: str) -> None:
    if pc.any(wrong).as_py():
        keys = _keys(items.filter(wrong))
        raise PawlError(
            f"{_count(keys)} {what.format(name)}: {_names(keys)}", fix=f"evaluate it again: {rule}"
        )


def _side(items: pa.Table) -> Side:
    correct, lenient_sum, score = (
        items[f"{name}_sum"].to_numpy() for name in ("correct", "lenient", "score")
    )
    return Side(
        int(items["repeat_count"][0].as_py()),
        correct.astype(np.int64),
        lenient_sum.astype(np.int64),
        score.astype(np.float64),
    )


def _keys(items: pa.Table) -> list[tuple[str, str]]:
    return list(zip(items["benchmark"].to_pylist(), items["item_id"].to_pylist(), strict=True))


def _count(keys: Sequence[Any] | set[Any]) -> str:
    return f"{len(keys)} item{'s' if len(keys) > 1 else ''}"


def _names(keys: Iterable[tuple[str, str]]) -> str:
    ordered = sorted(set(keys))
    return ", ".join(f"{benchmark}/{item}" for benchmark, item in ordered[:3]) + (
        ", ..." if len(ordered) > 3 else ""
    )
