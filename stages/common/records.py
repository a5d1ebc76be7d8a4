"""Rows of local files, JSON Lines, JSON, CSV or Parquet, the text ones perhaps compressed by gzip;
streamed.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from stages.common.errors import PawlError
from stages.common.fields import Columns, Told, Unused, left_out
from stages.common.files import without_repeats
from stages.common.shapes import Question, question_of
from stages.common.tables import CHUNK as _CHUNK
from stages.common.tables import LARGEST_ROW, Broken, Values, csv_rows, parquet_rows

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
"""Of text files; a further .gz may follow."""
_PACKED = {
    b"PK\x03\x04": ("a zip archive (or a workbook of Excel)", "unzip it, or save the sheet as CSV"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "zstd -d"),
    b"\xfd7zXZ": ("compressed by xz", "xz -d"),
    b"BZh": ("compressed by bzip2", "bunzip2"),
    b"ARROW1": ("an Arrow file", "write it as Parquet"),
    b"\xd0\xcf\x11\xe0": ("an old workbook of Excel", "save the sheet as CSV"),
    b"SQLite": ("a database", "export it as CSV"),
}
"""How files begin that hold rows in a form that is not read, and what helps."""
_PARTS = re.compile(
    r'(?P<open>[\[{])|(?P<close>[\]}])|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL
)
_BETWEEN = re.compile(r"[ \t\r\n,]*")


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used: where it is (file:line), why, and its beginning as it stands in
    the file.

    Attributes:
        rows: how many rows are lost with it.
        columns: its keys, where they are of no known shape.
        unused: the key that would be lost, where that is why.
    """

    where: str
    reason: str
    raw: str = ""
    rows: int = 1
    columns: tuple[str, ...] = ()
    unused: str = ""


def parse(
    path: Path,
    shown: str,
    form: str = "",
    columns: dict[str, str] | None = None,
    *,
    ignore: Sequence[str] = (),
    unanswered: bool = False,
) -> Iterator[tuple[str, Question] | Bad]:
    """Every row of a file, in its order, as (file:line, question) or as a bad row.

    Args:
        shown: the file's name in messages.
        form: one of the formats of shapes.py; "" to tell it by each row's keys.
        unanswered: a question without an answer is a row too.
        columns: our key to the file's own: {"question": "Problem"}.
        ignore: keys of the file that change nothing of what a row means.

    Raises:
        PawlError: UTF-16, a broken JSON array or Parquet file, an unknown kind of file; a column
            that no row has.
    """
    columns = {
        ours: theirs for ours, theirs in (columns or {}).items() if theirs and ours != theirs
    }
    unseen, found, told = dict(columns), (), Told()
    for where, value, raw in _values(path, shown):
        if isinstance(value, Broken):
            yield Bad(where, value.reason, raw, value.rows)
            continue
        if isinstance(value, dict):
            found = found or tuple(value)
            unseen = (
                {ours: theirs for ours, theirs in unseen.items() if theirs not in value}
                if unseen
                else unseen
            )
            value = _own(value, columns, ignore)
        try:
            question = question_of(value, form, unanswered=unanswered)
        except ValueError as error:
            names, key = (
                error.found if isinstance(error, Columns) else (),
                (error.key if isinstance(error, Unused) else ""),
            )
            yield Bad(where, str(error), raw or _beginning(value), columns=names, unused=key)
            continue
        told.add((question.context, question.question), question.answer, value, question.unused)
        yield where, question
    if unseen and found:
        ours, theirs = next(iter(unseen.items()))
        fix = f"columns found: {', '.join(map(repr, found[:12])):.300}"
        raise PawlError(
            f"columns.{ours} names {theirs!r:.60}, which no row has", where=shown, fix=fix
        )
    if key := told.found():
        what = (
            f"rows ask the same and answer otherwise, and only {key!r:.60} tells them apart, which"
            " is not used"
        )
        fix = (
            f"columns.context={key} (of instructions columns.input={key}); or, if it means nothing,"
            f" ignore=[{key}]"
        )
        raise PawlError(what, where=shown, fix=fix)


def _own(value: dict[str, Any], columns: dict[str, str], ignore: Sequence[str]) -> dict[str, Any]:
    """A row by our names, without what is ignored, in its turns too."""
    theirs = set(columns.values())
    others = {key: part for key, part in value.items() if key not in columns and key not in theirs}
    row: dict[str, Any] = _without(
        others | {ours: value[name] for ours, name in columns.items() if name in value}, ignore
    )
    return row


def _without(value: Any, ignore: Sequence[str]) -> Any:
    if isinstance(value, list) and ignore:
        return [_without(part, ignore) if isinstance(part, dict) else part for part in value]
    if not isinstance(value, dict) or not ignore:
        return value
    return {
        key: _without(part, ignore) if isinstance(part, list) else part
        for key, part in value.items()
        if key not in ignore
    }


def _beginning(value: Any) -> str:
    return json.dumps(value, default=str)[:2000]


# --- files


def _values(path: Path, shown: str) -> Values:
    try:
        yield from _read(path, shown)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PawlError(
            f"the gzip file is damaged or cut short: {error}",
            where=shown,
            fix="copy or write it again",
        ) from None


def _read(path: Path, shown: str) -> Values:
    name = path.name.lower().removesuffix(".gz")
    with _opened(path) as file:
        head = file.read(_CHUNK)
    if head[:4] == b"PAR1" or name.endswith((".parquet", ".pq")):
        return parquet_rows(path, shown)
    for mark, (what, fix) in _PACKED.items():
        if head.startswith(mark):
            raise PawlError(f"this is {what}, not text", where=shown, fix=fix)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        b"\0\0\0\0" in (head[1:8:2], head[:8:2]) and head[:8] != bytes(8)
    ):
        raise PawlError(
            "this is UTF-16, not UTF-8 text",
            where=shown,
            fix=f"iconv -f UTF-16 -t UTF-8 {shown} > new{path.suffix}",
        )
    if name.endswith((".csv", ".tsv")):
        return csv_rows(
            lambda: io.TextIOWrapper(_opened(path), "utf-8-sig", "surrogateescape", ""),
            shown,
            name.endswith(".tsv"),
        )
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    first, _, rest = begin.partition(b"\n")
    lines = name.endswith((".jsonl", ".ndjson"))
    if begin.startswith(b"[") and not (lines and rest.strip() and _is_json(first, list)):
        return _array(path, shown)
    if lines or _is_json(first, dict) or (len(head) == _CHUNK and _is_long(path)):
        return _lines(path, shown)  # whatever its name, and one row alone is such a file too
    return _document(path, shown)


def _opened(path: Path) -> IO[bytes]:
    """The file, or what gzip compressed in it, whatever its name."""
    file = open(path, "rb")  # noqa: SIM115 - closed by whoever reads it
    if file.peek(2)[:2] != b"\x1f\x8b":
        return file
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def _is_long(path: Path) -> bool:
    """Whether a file is too long to be one object."""
    with _opened(path) as file:
        return (
            sum(len(file.read(_CHUNK)) for _ in range(4 * LARGEST_ROW // _CHUNK + 1))
            > 4 * LARGEST_ROW
        )


def _is_json(line: bytes, kind: type) -> bool:
    try:
        return isinstance(json.loads(line), kind)
    except (ValueError, RecursionError):
        return False


def _lines(path: Path, shown: str) -> Values:
    with _opened(path) as file:
        number = 0
        while raw := file.readline(LARGEST_ROW + 1):
            number += 1
            where = f"{shown}:{number}"
            if len(raw) > LARGEST_ROW:
                beginning = raw[:2000].decode("utf-8", "replace")
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(_CHUNK)
                yield where, Broken(f"a row of more than {LARGEST_ROW >> 20} MiB"), beginning
                continue
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield where, _loaded(raw), raw[:2000].decode("utf-8", "replace").rstrip("\r\n")


def _loaded(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8").strip()
        return json.loads(
            text,
            parse_float=Decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=without_repeats,
        )
    except UnicodeDecodeError as error:
        return Broken(f"not UTF-8 at byte {error.start} of the line")
    except json.JSONDecodeError as error:
        if text.startswith(("//", "#", "/*")) or text[error.pos :].strip() == ",":
            what = "a comma after a row" if text.endswith(",") else "a comment"
            return Broken(f"{what}, which JSON Lines cannot have: remove it")
        rows = _objects_in(text) if error.msg == "Extra data" else 1
        return Broken(
            f"not JSON: {error.msg} at character {error.pos + 1}"
            + (f"; {rows} rows are on one line" if rows > 1 else ""),
            rows,
        )
    except RecursionError:
        return Broken("nested too deeply")
    except ValueError as error:
        return Broken(str(error))


def _objects_in(text: str) -> int:
    """How many objects stand one after the other, the last one perhaps broken; 1 where there are
    none.
    """
    decoder, at, count = json.JSONDecoder(), 0, 0
    while at < len(text):
        count += text[at] == "{"
        try:
            _, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
    return max(1, count)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _array(path: Path, shown: str) -> Values:
    """The elements of a JSON array, one at a time: the file is never in memory whole."""
    decoder = json.JSONDecoder()
    with io.TextIOWrapper(_opened(path), "utf-8-sig", "surrogateescape") as file:  # type: ignore[type-var]
        text = file.read(_CHUNK).lstrip()
        at, number, ended = 1, 0, False
        while True:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                return _refuse_more(
                    text[at + 1 :], file, f"{shown} (after its element {number - 1})"
                )
            try:
                _, end = decoder.raw_decode(text, at)
                whole = ended or end < len(text)  # a number at the end of what was read may go on
            except RecursionError:
                end = _end(text, at)
                whole = end > 0
            except ValueError:
                whole = False
            if whole:
                yield (
                    f"{shown}[{number}]",
                    _loaded(text[at:end].encode("utf-8", "surrogateescape")),
                    text[at : min(end, at + 2000)],
                )
                at, number = end, number + 1
                continue
            if ended or len(text) - at > 2 * LARGEST_ROW:
                what = (
                    f"the JSON array is broken after its element {number - 1}"
                    if text[at:].strip()
                    else "the JSON array does not end"
                )
                raise PawlError(
                    what,
                    where=shown,
                    fix="write one JSON object a line: then a broken row costs no other",
                )
            more = file.read(max(_CHUNK, len(text) - at))
            text, at, ended = text[at:] + more, 0, not more


def _refuse_more(text: str, file: IO[str], where: str) -> None:
    while not text.strip():
        text = file.read(_CHUNK)
        if not text:
            return
    raise PawlError(
        "the file goes on after its JSON array",
        where=where,
        fix="write one array, or one object a line",
    )


def _end(text: str, at: int) -> int:
    """Where the list or object that begins at `at` ends, however deep its nest; 0 where it does not
    end in this text.
    """
    depth = 0
    for part in _PARTS.finditer(text, at):
        if part["open"]:
            depth += 1
        elif part["close"]:
            depth -= 1
            if not depth:
                return part.end()
    return 0


def _document(path: Path, shown: str) -> Values:
    """A file that is one JSON object: a row, or a wrapper of the only list of objects in it; lines
    where it is neither.
    """
    with _opened(path) as file:
        value = _loaded(file.read().removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        return _lines(path, shown)
    lists = [
        part
        for part in value.values()
        if isinstance(part, list) and part and all(isinstance(row, dict) for row in part)
    ]
    wraps = (
        len(lists) == 1
        and not {"messages", "conversations"} & value.keys()
        and not ("question" in value and "answer" in value)
    )
    rows = lists[0] if wraps else [value]
    if wraps:
        _refuse_lost(value, lists[0], shown)
    return ((f"{shown}[{number}]", row, "") for number, row in enumerate(rows))


def _refuse_lost(wrapper: dict[str, Any], rows: list[Any], shown: str) -> None:
    """A text beside the rows, such as a system prompt, is for all of them."""
    try:
        left_out(
            {
                name: part
                for name, part in wrapper.items()
                if part is not rows and name not in ("name", "description")
            },
            set(),
        )
    except Unused as error:
        raise PawlError(
            f"beside the list of rows, {error}",
            where=shown,
            fix="write it into each row, or remove it",
        ) from None
