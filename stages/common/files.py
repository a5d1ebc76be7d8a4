"""Files that are either whole or absent: everything is written beside its name and then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError

ROOT = Path(__file__).resolve().parents[2]
"""The checkout this code runs from (a temporary clone under `dvc exp run --temp` or a queue
worker).
"""


def main_root() -> Path:
    """The repository that the user works in: ROOT, or, inside a temporary clone, the one that DVC
    made it from.
    """
    return Path(os.environ.get("DVC_ROOT") or ROOT).resolve()


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text under a temporary name, flush it to disk, then rename it to `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a failed write or flush does not say where
        raise
    finally:
        partial.unlink(missing_ok=True)


def to_json(value: Any) -> str:
    """One form for every JSON report: sorted keys, no NaN, a newline at the end."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, to_json(value))


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, streaming; a lone surrogate is escaped, since UTF-8 cannot
    carry it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                line = json.dumps(row, ensure_ascii=False, allow_nan=False)
                file.write(
                    line if line.isascii() or _encodable(line) else json.dumps(row, allow_nan=False)
                )
                file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path | str) -> Any:
    """Read one JSON document.

    Raises:
        PawlError: the file is missing or broken; says which line.
    """
    try:
        return json.loads(
            Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=without_repeats
        )
    except FileNotFoundError:
        raise PawlError(
            "a file that this step needs is missing",
            where=str(path),
            fix="run 'dvc repro' to make it",
        ) from None
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise PawlError(
            f"not valid JSON: {error}",
            where=f"{path}{line}",
            fix="restore the file or delete it and run 'dvc repro'",
        ) from None


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys, for JSON's reader, which would take the last value of a key that
    stands there twice.

    Raises:
        ValueError: a key occurs twice.
    """
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r:.60} occurs twice")
    return value


def read_object(path: Path | str) -> dict[str, Any]:
    """Read one JSON object, such as a report.

    Raises:
        PawlError: the file is missing or broken, or holds something else; or what no report of ours
            can hold, NaN or half a character.
    """
    value = read_json(path)
    fix = "restore the file or delete it and run 'dvc repro'"
    if not isinstance(value, dict):
        raise PawlError(
            f"expected a JSON object, found {type(value).__name__}", where=str(path), fix=fix
        )
    try:
        to_json(value).encode("utf-8")
    except (ValueError, RecursionError):
        raise PawlError(
            "it holds a number that is not finite, or half a character", where=str(path), fix=fix
        ) from None
    return value


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, one at a time.

    Raises:
        PawlError: missing file, or a line that is no JSON object; names the line, counted from 1.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line, object_pairs_hook=without_repeats)
                except (ValueError, RecursionError) as error:
                    raise PawlError(
                        f"broken line: {error}",
                        where=f"{path}:{number}",
                        fix="correct or remove that line",
                    ) from None
                if not isinstance(row, dict):
                    raise PawlError(
                        f"expected a JSON object, found {type(row).__name__}",
                        where=f"{path}:{number}",
                        fix="write one JSON object a line",
                    )
                yield row
    except FileNotFoundError:
        raise PawlError(
            "a file that this step needs is missing",
            where=str(path),
            fix="run 'dvc repro' to make it, or correct the path",
        ) from None
    except UnicodeDecodeError as error:
        raise PawlError(
            f"not UTF-8 text: {error.reason} at byte {error.start}",
            where=str(path),
            fix="convert the file to UTF-8",
        ) from None


@contextmanager
def fresh_folder(path: Path | str) -> Iterator[Path]:
    """Give an empty folder beside `path`; it takes `path`'s place when the block ends without an
    error, and is removed otherwise.

    A folder left by a killed run is cleared first.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def part(report: Any, key: str) -> dict[str, Any]:
    """The object under a key of a report; {} where it is absent or no object, so that whoever looks
    into it finds nothing.
    """
    value = report.get(key) if isinstance(report, dict) else None
    return value if isinstance(value, dict) else {}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; a list, and a mapping without content, stays one
    value.
    """
    if isinstance(value, dict) and value:
        return {
            key: leaf
            for name, part in value.items()
            for key, leaf in flatten(part, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: value}


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path | str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_folder(folder: Path | str, pattern: str = "*") -> str:
    """Hash the names and contents of the files in `folder` (recursively) that match `pattern`."""
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(folder).rglob(pattern) if p.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()
