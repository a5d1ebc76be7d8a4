"""Errors for people: what happened, where, and how to mend it, on one screen."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.common.redaction import redact


class PawlError(Exception):
    """A failure that the reader can act on.

    Args:
        what: one sentence, what went wrong.
        where: file, key or line that caused it ("" where there is none).
        fix: what to do about it ("" where nothing is known).
        details: for the failure record alone, under the names of `failure.record`: exit_code, tail,
            traceback, ...
        code: the exit code of the command (3: refused before anything was run).
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        details: dict[str, Any] | None = None,
        code: int = 1,
    ) -> None:
        super().__init__(what)
        self.what, self.where, self.fix, self.details, self.code = (
            what,
            where,
            fix,
            details or {},
            code,
        )

    def fields(self) -> dict[str, str]:
        """For a program that reads it."""
        return {"what": redact(self.what), "where": redact(self.where), "fix": redact(self.fix)}

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


def no_room(path: Path | str, *, quota: bool = False) -> PawlError:
    """Why nothing more can be written at a path: a used-up quota, no inodes for new files, or a
    full disk.
    """
    folder = next(
        (each for each in (Path(path or "."), *Path(path or ".").parents) if each.is_dir()),
        Path.cwd(),
    )
    free = f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB free"
    disk, again = os.statvfs(folder), "and run again"
    if quota:
        return PawlError(
            f"the disk quota is used up ({free} on the disk)",
            where=str(path),
            fix=f"remove files of yours, or ask for more, {again}",
        )
    if disk.f_files and not disk.f_favail:  # a file system without a table of inodes says 0 of 0
        what = f"the disk has no inodes left for new files ({free}, which is not what is missing)"
        return PawlError(
            what,
            where=str(path),
            fix=(
                "remove many small files, such as caches of packages ('df -i' shows the disk),"
                f" {again}"
            ),
        )
    return PawlError(
        f"the disk is full ({free})",
        where=str(path),
        fix=f"free some space (.pawl/merged can be rebuilt) {again}",
    )


def from_os_error(error: OSError) -> PawlError:
    """Translate the operating system's refusals that a person can mend."""
    path = str(error.filename2 or error.filename or "")  # of a copy, the target
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_room(path, quota=error.errno == errno.EDQUOT)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PawlError(
            "no permission to write or read here",
            where=path,
            fix="check the owner and mode of that path, then run again",
        )
    return PawlError(
        f"{error.strerror or error}", where=path, fix="check that path, then run again"
    )


def run_main(name: str, main: Callable[[], int | None]) -> None:
    """Run an entry point: exit 0 on success, its own code, or a one-screen error and its code (130
    after Ctrl-C).

    PAWL_DEBUG=1 adds the traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    # a terminated stage unwinds like an interrupted one, so that its server and its temporary files
    # go with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    from dotenv import load_dotenv

    # a queue worker's clone has no .env
    for folder in dict.fromkeys((Path.cwd(), Path(os.environ.get("DVC_ROOT") or Path.cwd()))):
        # keys for us and for our children; what the environment has already comes first
        load_dotenv(folder / ".env")
    debug = bool(os.environ.get("PAWL_DEBUG"))
    start = time.monotonic()
    try:
        code = main()
    except PawlError as error:
        _show(name, f"{error}{_way_back()}", debug)
        sys.exit(error.code)
    except KeyboardInterrupt:
        print(
            f"{name}: stopped after {time.monotonic() - start:.0f} s; nothing half-written was"
            " kept",
            file=sys.stderr,
        )
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        _show(name, f"{from_os_error(error)}{_way_back()}", debug)
        sys.exit(1)
    except Exception as error:
        # the last resort of a command line: everything else is a bug of ours
        _show(
            name,
            f"{type(error).__name__}: {str(error)[:2000]}\n  fix:   this is a bug; PAWL_DEBUG=1"
            " shows the traceback",
            debug,
        )
        sys.exit(1)
    sys.exit(code or 0)


def _way_back() -> str:
    """How to undo what `dvc exp run` leaves of a failed run in the user's own tree: changed
    parameters, results removed or half new.
    """
    if os.environ.get("DVC_EXP_NAME") and os.environ.get("DVC_ROOT") == str(Path.cwd()):
        return (
            "\n  back:  'make run' for what conf/ says, or 'git restore params.yaml dvc.lock"
            " reports && dvc checkout' for the last commit"
        )
    return ""


def _show(name: str, text: str, debug: bool) -> None:
    if debug:
        print(redact(traceback.format_exc()), end="", file=sys.stderr)
    print(f"{name}: error: {redact(text)}", file=sys.stderr)
