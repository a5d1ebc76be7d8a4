"""What a killed agent left running. DVC dies with it, but the stage that DVC had started goes on,
and nobody would record its result.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from stages.common.files import ROOT

MARK = "PAWL_AGENT_TREE"
"""In the environment of everything that the agent of a working tree starts, and so of what these
start.
"""


def find() -> list[int]:
    """Processes of this working tree's agent, without this one and what it runs under."""
    wanted, mine, found = f"{MARK}={ROOT}\0".encode(), _ancestors(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or another user's
            if int(folder.name) not in mine and wanted in (folder / "environ").read_bytes() + b"\0":
                found.append(int(folder.name))
    return sorted(found)


def _ancestors() -> set[int]:
    pid, found = os.getpid(), set()
    while pid > 1:
        found.add(pid)
        try:
            pid = int(
                Path(f"/proc/{pid}/stat")
                .read_text(encoding="utf-8", errors="replace")
                .rpartition(")")[2]
                .split()[1]
            )
        except (OSError, IndexError, ValueError):
            break
    return found


def end(grace_s: float = 10.0) -> list[int]:
    """End them: SIGINT, then SIGTERM, then SIGKILL, `grace_s` seconds apart; gives the processes
    that there were.

    A git command is waited for instead: it is short, and half of a commit helps nobody.
    """
    there = find()
    deadline = time.monotonic() + grace_s
    while any(_name(pid) == "git" for pid in find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        left = find()
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        deadline = time.monotonic() + grace_s
        while left and find() and time.monotonic() < deadline:
            time.sleep(0.05)
    return there


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def git_at_work() -> bool:
    """Whether any git command runs in this working tree, be it a person's."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _name(int(folder.name)) == "git" and (folder / "cwd").readlink().is_relative_to(
                ROOT
            ):
                return True
    return False
