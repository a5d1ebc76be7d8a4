"""Rows of tables, CSV, TSV and Parquet, as (file:line, fields or what is wrong, the row's
beginning).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import IO, Any

from stages.common.errors import PawlError

LARGEST_ROW = 16 * 2**20  # bytes; a larger one is bad, and is never held in memory whole
CHUNK = 2**20
INDEX = "Unnamed: 0"
"""What pandas calls a first column without a name: its own count of the rows."""
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
_ESCAPE = re.compile(r"\\([tnr\\])")
_LONG = 8
"""Lines, from which a quoted field whose every line reads as a row is no prose, whatever the rest
of the file is like.
"""


@dataclass(frozen=True)
class Broken:
    """What cannot be read: why, and how many rows were lost with it."""

    reason: str
    rows: int = 1


Values = Iterator[tuple[str, Any, str]]
"""(file:line, the row or what is wrong with it, its beginning as text)"""


@dataclass(frozen=True)
class _Record:
    """What a CSV reader took for one row: its lines as they stand, its fields or what is wrong with
    it.
    """

    first: int
    lines: list[str]
    fields: list[str]
    broken: str = ""


def csv_rows(opened: Callable[[], IO[str]], shown: str, tabs: bool) -> Values:
    """The rows of a CSV file. A quote that swallows other rows costs them all, and they are
    counted.

    Args:
        opened: the file as text, from its beginning, each time it is called.

    Raises:
        PawlError: a header that cannot be read, or that names two columns alike.
    """
    with opened() as file:
        header = file.readline(CHUNK)
    skipped = 0
    if match := re.fullmatch(r'"?sep=(.)"?\s*', header):  # a line of Excel's own
        delimiter, skipped = match[1], 1
    else:
        delimiter = "\t" if tabs else _delimiter(header)
    records = _records(opened, delimiter, skipped)
    head = next(records, None)
    if head is None:
        return
    if head.broken:
        raise PawlError(
            f"the header cannot be read: {head.broken}",
            where=f"{shown}:1",
            fix="write names of columns, with commas",
        )
    names = [name.strip().strip("\ufeff") for name in head.fields]
    names[:1] = [names[0] or INDEX] if names else []
    named = [name for name in names if name]
    if len(named) != len(set(named)):
        twice = next(name for name in named if named.count(name) > 1)
        raise PawlError(
            f"two columns have one name, {twice!r:.60}",
            where=f"{shown}:1",
            fix="rename one of them",
        )
    prose = cache(lambda: _has_prose(opened, delimiter, names))
    dump = cache(lambda: delimiter == "\t" and _is_dump(opened))
    for record in records:
        for where, row, raw in _row(record, names, delimiter, shown, prose):
            if isinstance(row, dict) and any("\\" in field for field in row.values()) and dump():
                row = {
                    name: _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], field)
                    for name, field in row.items()
                }
            yield where, row, raw


def _is_dump(opened: Callable[[], IO[str]]) -> bool:
    """Whether a database wrote the file: it has fields that are \\N, and then a tab or an end of
    line inside a field is escaped too.
    """
    with opened() as file:
        return any("\\N" in line.rstrip("\r\n").split("\t") for line in file)


def _row(
    record: _Record, names: list[str], delimiter: str, shown: str, prose: Callable[[], bool]
) -> Values:
    where, lines = f"{shown}:{record.first}", len(record.lines)
    raw = "".join(record.lines)[:2000].rstrip("\r\n")
    if record.broken:
        more = (
            f"; {lines} lines are lost, up to line {record.first + lines - 1}" if lines > 1 else ""
        )
        yield where, Broken(f"not CSV: {record.broken}{more}", lines), raw
        return
    fields = record.fields
    if not fields:
        return
    while len(fields) > len(names) and not fields[-1].strip():
        fields = fields[:-1]  # of commas at the end of a line
    if len(fields) != len(names):
        yield (
            where,
            Broken(
                f"{len(fields)} fields, the header has {len(names)}",
                _rows_in(record, delimiter, names),
            ),
            raw,
        )
    elif [field.strip() for field in fields] == names:
        yield where, Broken("the header once more"), raw
    elif _swallows(record, delimiter, names) and (lines >= _LONG or not prose()):
        what = (
            f"a quote opens here and closes in line {record.first + lines - 1}, and each line"
            " between reads as a row of its own"
        )
        yield where, Broken(f"{what}; {lines} lines are lost", lines), raw
    elif byte := next(
        (ord(c) - 0xDC00 for field in fields for c in field if "\udc80" <= c <= "\udcff"), 0
    ):
        yield (
            where,
            Broken(
                f"not UTF-8: the byte 0x{byte:02x} (of Windows-1252? iconv -f WINDOWS-1252 -t"
                " UTF-8)"
            ),
            raw,
        )
    elif any(
        field.strip() for name, field in zip(names, fields, strict=True) if not name
    ) or not _counts(names, fields):
        yield where, Broken("a column without a name holds something"), raw
    else:
        yield where, {name: field for name, field in zip(names, fields, strict=True) if name}, raw


def _counts(names: list[str], fields: list[str]) -> bool:
    return names[0] != INDEX or not fields[0].strip() or fields[0].strip().isdigit()


def _delimiter(header: str) -> str:
    """The one that occurs most often outside quotes, a comma where none does."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max((",", ";", "\t", "|"), key=bare.count)


def _records(opened: Callable[[], IO[str]], delimiter: str, skipped: int) -> Iterator[_Record]:
    csv.field_size_limit(LARGEST_ROW)
    with opened() as file:
        taken: list[str] = []

        def lines() -> Iterator[str]:
            for line in file:
                taken.append(line)
                yield line

        reader = csv.reader(lines(), delimiter=delimiter, strict=True)
        first = 1
        while True:
            fields, broken = None, ""
            try:
                fields = next(reader, None)
            except csv.Error as error:
                broken = str(error)
            if fields is None and not broken:
                return
            if first > skipped:
                yield _Record(first, list(taken), fields or [], broken)
            first += len(taken)
            taken.clear()


def _rows_in(record: _Record, delimiter: str, names: list[str]) -> int:
    return (
        max(1, sum(_reads_as_row(line, delimiter, names) for line in record.lines))
        if len(record.lines) > 1
        else 1
    )


def _reads_as_row(line: str, delimiter: str, names: list[str]) -> bool:
    return line.count(delimiter) == len(names) - 1


def _swallows(record: _Record, delimiter: str, names: list[str]) -> bool:
    """Whether a record of several lines is what a stray quote makes of several rows: nearly each
    line has as many fields as the header.
    """
    count = len(record.lines)
    if count < 2 or len(names) < 2 or "".join(record.lines).replace('""', "").count('"') != 2:
        return False  # what quotes other fields too, quotes this one on purpose
    return sum(_reads_as_row(line, delimiter, names) for line in record.lines) >= (
        count if count < 10 else 0.9 * count
    )


def _has_prose(opened: Callable[[], IO[str]], delimiter: str, names: list[str]) -> bool:
    """Whether most fields of several lines in this file cannot be rows that a quote swallowed: then
    the others are prose too.
    """
    several = [
        _swallows(record, delimiter, names)
        for record in _records(opened, delimiter, 0)
        if len(record.lines) > 1
    ]
    return several.count(False) >= 3 * several.count(True)


def parquet_rows(path: Path, shown: str) -> Values:
    """The rows of a Parquet file.

    Raises:
        PawlError: a broken file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1000):
                for row in _cells(batch):
                    yield f"{shown}[{number}]", row, ""
                    number += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PawlError(
            f"the Parquet file cannot be read: {str(error)[:200]}",
            where=shown,
            fix="write it again",
        ) from None


def _cells(batch: Any) -> list[dict[str, Any]]:
    """A batch as rows, its numbers as they were meant: 0.1 of 32 bits is no 0.10000000149011612,
    and 18.50 of six places is 18.5.
    """
    import numpy as np
    import pyarrow

    rows: list[dict[str, Any]] = batch.to_pylist()
    for field in batch.schema:
        short = {"float": np.float32, "halffloat": np.float16}.get(str(field.type))
        if short:
            for row in rows:
                if row[field.name] is not None:
                    row[field.name] = float(str(short(row[field.name])))
        elif pyarrow.types.is_decimal(field.type):
            for row in rows:
                if isinstance(row[field.name], Decimal):
                    row[field.name] = row[field.name].normalize()
    return rows
