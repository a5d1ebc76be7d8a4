"""The trainer's log: kept of each training, cut to a bound, and what it warns of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from stages.common.files import write_text
from stages.common.redaction import redact

FOLDER = Path(".pawl/logs/train")
_HEAD, _TAIL = 40_000, 120_000
"""Bytes kept of a log's beginning and of its end: a progress bar may write many MB between them."""
_KEPT = 100
"""Logs, the newest ones."""
_WARNINGS, _LENGTH, _LINE = 10, 300, 4_000
_SAID = re.compile(
    r"^\[WARNING\|[^\]]*\][^>]*>>\s*(.+)|\b\w*Warning: (.+)|^(?:\S+"
    r" ){0,3}WARNING[:\s]+(.+)|^\[[^\]]*\]\[WARNING\]\s*(.+)"
)
"""Of LLaMA-Factory and transformers, of Python's warnings module, of logging."""
_PLACE = re.compile(r"(?<![\w:/])~?/(?:[\w.+@-]+/)+[\w.+@-]*")
_EVERY_RUN = (
    "Version checking has been disabled",
    "`template` was not specified",
    "warmup_ratio is deprecated",
)
"""These come of how Pawl calls the trainer, and say nothing of this training."""


def keep(log: Path, folder: Path = FOLDER) -> Path | None:
    """Copy a log to a name of its own, so that the next training does not overwrite it. None where
    there is no log.
    """
    if not log.is_file():
        return None
    with open(log, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        text = file.read(_HEAD if size > _HEAD + _TAIL else size).decode("utf-8", "replace")
        if size > _HEAD + _TAIL:
            file.seek(-_TAIL, 2)
            text += f"\n[... {size - _HEAD - _TAIL} bytes are left out ...]\n" + file.read().decode(
                "utf-8", "replace"
            )
    target = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.log"
    write_text(target, redact(text))
    for old in sorted(folder.glob("*.log"))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return target


def warnings(log: Path) -> list[str]:
    """What a log warns of, each once, in its order: no times and no paths, since reports are in
    Git.
    """
    found = list[str]()
    for line in _lines(log):
        if not (match := _SAID.search(line)):
            continue
        said = _PLACE.sub("[path]", redact(next(filter(None, match.groups())).strip()))[:_LENGTH]
        if said not in found and not said.startswith(_EVERY_RUN):
            found.append(said)
            if len(found) == _WARNINGS:
                break
    return found


def _lines(log: Path) -> Iterator[str]:
    """Lines of a log of any size and with any bytes; a progress bar is overwritten by what comes
    behind it.
    """
    if not log.is_file():
        return
    with open(log, encoding="utf-8", errors="replace", newline="\n") as file:
        for line in iter(lambda: file.readline(_LINE), ""):
            yield line.rstrip("\r\n").rpartition("\r")[2]
