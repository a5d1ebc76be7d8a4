"""What a failed stage leaves behind: .pawl/failure/STAGE.json, read by the judge's explain-failure
and by people.

`stage_lock` (process.py) does it for every stage. A stage that knows more (the exit code of its
child, the end of a log) puts that into `PawlError.details`, under the names of `record`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT
from traceback import format_exception
from typing import Any

from stages.common.errors import PawlError, from_os_error
from stages.common.files import ROOT, main_root, write_json
from stages.common.redaction import redact

FOLDER = Path(".pawl/failure")
SEES_NO_TEST = ("fetch_model", "train", "eval_val", "judge")
"""Stages of which more than the class and the error may be told. The others read test items or test
results.
"""
TAIL = 4000
"""Characters kept of a log, and of a traceback."""


@contextmanager
def recorded(stage: str) -> Iterator[None]:
    """A stage (its DVC name) at work: an earlier failure of it is forgotten, and whatever ends the
    block early is recorded and goes on.
    """
    forget(stage)
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # a full disk is told by the error itself
            record(stage, **_fields(error))
        raise
    finally:
        with suppress(OSError):
            bring_home(stage)


def bring_home(stage: str) -> None:
    """From a queue worker's clone, which is thrown away, to .pawl/workers/NAME of the main
    checkout: the stage's log and failure.
    """
    if not os.environ.get("DVC_ROOT") or main_root() == ROOT.resolve():
        return
    name = (
        re.sub(r"[^\w.-]", "-", os.environ.get("DVC_EXP_NAME") or ROOT.name)[:80].strip(".")
        or "worker"
    )
    for path in (ROOT / FOLDER / f"{stage}.json", ROOT / ".pawl" / "logs" / f"{stage}.log"):
        if path.is_file():
            target = main_root() / ".pawl" / "workers" / name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _fields(error: BaseException) -> dict[str, Any]:
    """What `record` is given for an exception that ends a stage."""
    if isinstance(error, KeyboardInterrupt):
        return {"exit_code": 130, "signal": int(SIGINT), "error": "stopped by Ctrl-C"}
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        return {
            "exit_code": code,
            "signal": max(0, code - 128),
            "error": f"ended with exit code {code}",
        }
    if isinstance(error, OSError):
        error = from_os_error(error)
    if isinstance(error, PawlError):
        return {
            "exit_code": error.code,
            "error": error.what,
            "where": error.where,
            "fix": error.fix,
            **error.details,
        }
    return {
        "exit_code": 1,
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(format_exception(error)),
    }


def record(
    stage: str,
    *,
    exit_code: int,
    signal: int = 0,
    error: str = "",
    where: str = "",
    fix: str = "",
    traceback: str = "",
    tail: str = "",
    timed_out: bool = False,
    peak_memory_gib: float | None = None,
) -> None:
    """Write .pawl/failure/<stage>.json, whole or not at all.

    Args:
        stage: the DVC stage.
        exit_code: of the process that failed: the stage's child where there is one, else the stage.
        signal: what ended that process, 0 where none did.
        error, where, fix: the message that the person saw.
        traceback: the root cause, of rank 0 where there are several processes.
        tail: the end of the log.
        peak_memory_gib: of the largest process; None where it is not known.
    """
    texts = {"error": error, "where": where, "fix": fix, "traceback": traceback, "tail": tail}
    write_json(
        ROOT / FOLDER / f"{stage}.json",
        {
            name: redact(text)[-TAIL:].encode("utf-8", "backslashreplace").decode()
            for name, text in texts.items()
        }
        | {
            "stage": stage,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "exit_code": exit_code,
            "signal": signal,
            "timed_out": timed_out,
            "peak_memory_gib": None if peak_memory_gib is None else round(peak_memory_gib, 3),
        },
    )


def read(stage: str, since: float = 0.0) -> dict[str, Any]:
    """The record of a stage's failure, if it is not older than `since` (seconds since 1970); {} if
    there is none, or half of one.
    """
    path = ROOT / FOLDER / f"{stage}.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        fresh = path.stat().st_mtime >= since
    except (OSError, ValueError, RecursionError):
        return {}
    return held if fresh and isinstance(held, dict) else {}


def explain(root: Path, left: dict[str, Any], reason: str, paid: dict[str, float]) -> None:
    """Add to a failure's record what explains it, and what a language model was paid for that:
    {cost, prompt_tokens, output_tokens}.
    """
    path = root / FOLDER / f"{left['stage']}.json"
    if path.parent == root / FOLDER and path.is_file():
        write_json(path, left | {"explained": {"reason": redact(reason), "paid": paid}})


def forget(stage: str) -> None:
    (ROOT / FOLDER / f"{stage}.json").unlink(missing_ok=True)
