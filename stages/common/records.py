"""Rows of local files, JSON Lines, JSON, CSV or Parquet, streamed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.shapes import Question, question_of

LARGEST_ROW = 16 * 2**20  # bytes; a larger one is bad, and is never held in memory whole
_CHUNK = 2**20
_PARTS = re.compile(r'(?P<open>[\[{])|(?P<close>[\]}])|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BETWEEN = re.compile(r"[ \t\r\n,]*")


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used: where it is (file:line), why, and its beginning as it stands in the file."""

    where: str
    reason: str
    raw: str = ""


def parse(
    path: Path, shown: str, form: str = "", columns: dict[str, str] | None = None, *, unanswered: bool = False
) -> Iterator[tuple[str, Question] | Bad]:
    """Every row of a file, in its order, as (file:line, question) or as a bad row.

    Args:
        shown: the file's name in messages.
        form: one of the formats of shapes.py; "" to tell it by each row's keys.
        unanswered: a question without an answer is a row too.
        columns: our key to the file's own: {"question": "Problem"}.

    Raises:
        PawlError: UTF-16, a broken JSON array or Parquet file, an unknown kind of file.
    """
    columns = columns or {}
    for where, value, raw in _values(path, shown):
        if isinstance(value, _Broken):
            yield Bad(where, value.reason, raw)
            continue
        if columns and isinstance(value, dict):
            others = {key: part for key, part in value.items() if key not in columns and key not in columns.values()}
            value = others | {ours: value[theirs] for ours, theirs in columns.items() if theirs in value}
        try:
            yield where, question_of(value, form, unanswered=unanswered)
        except ValueError as error:
            yield Bad(where, str(error), raw or _beginning(value))


def _beginning(value: Any) -> str:
    return json.dumps(value, default=str)[:2000]


# --- files


@dataclass(frozen=True)
class _Broken:
    reason: str


_Values = Iterator[tuple[str, Any, str]]
"""(file:line, the row or what is wrong with it, its beginning as text)"""


def _values(path: Path, shown: str) -> _Values:
    suffix = path.suffix.lower()
    with open(path, "rb") as file:
        head = file.read(_CHUNK)
    if suffix in (".parquet", ".pq") or head[:4] == b"PAR1":
        return _parquet(path, shown)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PawlError("this is UTF-16, not UTF-8 text", where=shown, fix=f"iconv -f UTF-16 -t UTF-8 {shown} > new.jsonl")
    if suffix in (".csv", ".tsv"):
        return _csv(path, shown)
    if suffix in (".jsonl", ".ndjson"):
        return _lines(path, shown)
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"["):
        return _array(path, shown)
    first = begin.split(b"\n", 1)[0]
    if _is_object(first) or path.stat().st_size > 4 * LARGEST_ROW:
        return _lines(path, shown)  # whatever its name, and one row alone is such a file too
    return _document(path, shown)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _lines(path: Path, shown: str) -> _Values:
    with open(path, "rb") as file:
        number = 0
        while raw := file.readline(LARGEST_ROW + 1):
            number += 1
            where = f"{shown}:{number}"
            if len(raw) > LARGEST_ROW:
                beginning = raw[:2000].decode("utf-8", "replace")
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(_CHUNK)
                yield where, _Broken(f"a row of more than {LARGEST_ROW >> 20} MiB"), beginning
                continue
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield where, _loaded(raw), raw[:2000].decode("utf-8", "replace").rstrip("\r\n")


def _loaded(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8").strip(), parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        return _Broken(f"not UTF-8 at byte {error.start} of the line")
    except json.JSONDecodeError as error:
        return _Broken(f"not JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        return _Broken("nested too deeply")
    except ValueError as error:
        return _Broken(str(error))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r:.60} occurs twice")
    return value


def _array(path: Path, shown: str) -> _Values:
    """The elements of a JSON array, one at a time: the file is never in memory whole."""
    decoder = json.JSONDecoder()
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        text = file.read(_CHUNK).lstrip()
        at, number, ended = 1, 0, False
        while True:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                return
            try:
                _, end = decoder.raw_decode(text, at)
                whole = ended or end < len(text)  # a number at the end of what was read may go on
            except RecursionError:
                end = _end(text, at)
                whole = end > 0
            except ValueError:
                whole = False
            if whole:
                yield f"{shown}[{number}]", _loaded(text[at:end].encode("utf-8", "surrogateescape")), text[at : min(end, at + 2000)]
                at, number = end, number + 1
                continue
            if ended or len(text) - at > 2 * LARGEST_ROW:
                what = f"the JSON array is broken after its element {number - 1}" if text[at:].strip() else "the JSON array does not end"
                raise PawlError(what, where=shown, fix="write one JSON object a line: then a broken row costs no other")
            more = file.read(max(_CHUNK, len(text) - at))
            text, at, ended = text[at:] + more, 0, not more


def _end(text: str, at: int) -> int:
    """Where the list or object that begins at `at` ends, however deep its nest; 0 where it does not end in this text."""
    depth = 0
    for part in _PARTS.finditer(text, at):
        if part["open"]:
            depth += 1
        elif part["close"]:
            depth -= 1
            if not depth:
                return part.end()
    return 0


def _document(path: Path, shown: str) -> _Values:
    """A file that is one JSON object: a row, or a wrapper of the only list of objects in it; lines where it is neither."""
    value = _loaded(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        return _lines(path, shown)
    lists = [part for part in value.values() if isinstance(part, list) and part and all(isinstance(row, dict) for row in part)]
    rows = lists[0] if len(lists) == 1 and not {"messages", "conversations"} & value.keys() else [value]
    return ((f"{shown}[{number}]", row, "") for number, row in enumerate(rows))


def _csv(path: Path, shown: str) -> _Values:
    csv.field_size_limit(LARGEST_ROW)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        header = file.readline(_CHUNK)
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if ";" in header and "," not in header else ","
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            names = next(reader, [])
            if len(names) != len(set(names)):
                raise PawlError("two columns have one name", where=f"{shown}:1", fix="rename one of them")
        except csv.Error as error:
            raise PawlError(f"the header cannot be read: {error}", where=f"{shown}:1", fix="write names of columns, with commas") from None
        while True:
            try:
                fields = next(reader, None)
            except csv.Error as error:
                yield f"{shown}:{reader.line_num}", _Broken(f"not CSV: {error}"), ""
                continue
            if fields is None:
                return
            where = f"{shown}:{reader.line_num}"
            if fields and len(fields) != len(names):
                yield where, _Broken(f"{len(fields)} fields, the header has {len(names)}"), delimiter.join(fields)[:2000]
            elif fields:
                yield where, dict(zip(names, fields, strict=True)), delimiter.join(fields)[:2000]


def _parquet(path: Path, shown: str) -> _Values:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    yield f"{shown}[{number}]", row, ""
                    number += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PawlError(f"the Parquet file cannot be read: {str(error)[:200]}", where=shown, fix="write it again") from None
