"""Child processes that never outlive their stage, and stages that never run twice at once.

python -m stages.common.process
    forget what a killed `dvc repro` had locked ('make run' does it first)
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stages.common import failure, leash
from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT
from stages.common.redaction import redact_file

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this child when its parent is gone, so that `kill -9` of a stage
    leaves no trainer or server behind.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(
    argv: Sequence[str], *, log: Path, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `argv` in a process group of its own that does not outlive this process, with output
    appended to `log`.

    Raises:
        PawlError: the program does not exist.
    """
    environment = {**os.environ, **(env or {})}
    if not shutil.which(argv[0], path=environment.get("PATH")):
        raise PawlError(
            f"program not found: {argv[0]}",
            fix="run 'make' to install it, and activate the environment",
        )
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], grace_s: float = 10) -> None:
    """End a process and its group: SIGINT, then SIGTERM, then SIGKILL, `grace_s` seconds apart."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None and sign is not signal.SIGKILL:
            continue
        try:
            os.killpg(process.pid, sign)  # also when the leader is gone: its workers may not be
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def run(
    argv: Sequence[str],
    *,
    log: Path,
    env: dict[str, str] | None = None,
    timeout_s: float | None = None,
    watch: Callable[[], None] | None = None,
    poll_s: float = 1,
) -> int:
    """Run to the end and return the exit code; 124 after `timeout_s` seconds. `watch` is called
    about every `poll_s` seconds.

    Whatever ends this call (a signal, an error in `watch`), the whole group ends with it.
    """
    process = start(argv, log=log, env=env)
    begun = time.monotonic()
    try:
        while True:
            try:
                return process.wait(poll_s)
            except subprocess.TimeoutExpired:
                if watch:
                    watch()
                if timeout_s and time.monotonic() - begun > timeout_s:
                    return 124
    finally:
        stop(process)
        redact_file(log)


def tail(log: Path, characters: int = 4000) -> str:
    """The end of a log, carriage returns of progress bars resolved to the last state of each
    line.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * characters))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return "\n".join(line for line in lines if line.strip())[-characters:]


@contextmanager
def stage_lock(stage: str, record_failure: bool = True) -> Iterator[None]:
    """Hold the working tree's lock on a stage; the kernel drops it when the process dies. A failure
    inside is recorded (failure.py).

    DVC forgets the stage it had started when DVC alone is killed; a second run would then write
    into the same folders.

    Raises:
        PawlError: another process holds it; names that process.
    """
    folder = ROOT / ".pawl"
    folder.mkdir(exist_ok=True)
    with open(folder / f"{stage}.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise PawlError(
                f"{stage} is already running in this working tree (process {holder})",
                fix=f"wait for it, or end it: kill {holder}",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        if not record_failure:
            yield
            return
        with failure.recorded(stage):
            yield


class _Over(BaseException):
    """The time is up. No Exception, so that no handler of one bad row or request takes it for its
    own.
    """


@contextmanager
def time_limit(hours: float) -> Iterator[None]:
    """End the block after `hours`, launcher.timeout_h, as an error; what it has on disk by then
    stays for the next run.

    Raises:
        PawlError: it took longer.
    """

    def stop(*_: object) -> None:
        raise _Over

    before = signal.signal(signal.SIGALRM, stop)
    # again every 30 s, should something have taken the first for its own
    signal.setitimer(signal.ITIMER_REAL, hours * 3600, 30)
    try:
        yield
    except _Over:
        fix = (
            "raise launcher.timeout_h, or do less; the next run goes on from the replies that were"
            " there by then"
        )
        what = f"this stage took longer than launcher.timeout_h ({hours:g} hours)"
        raise PawlError(
            what, where="launcher.timeout_h", fix=fix, details={"timed_out": True}
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def locked(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def dvc_processes() -> list[str]:
    """The living processes that hold DVC's repository lock (between stages), or its read-write lock
    (while a stage runs).
    """
    folder = ROOT / ".dvc" / "tmp"
    if locked(folder / "lock"):
        return [
            (folder / "lock").read_text(encoding="utf-8", errors="replace").strip()[:20]
            or "unknown"
        ]
    try:
        locks = json.loads((folder / "rwlock").read_text(encoding="utf-8"))
        infos = [
            *locks.get("write", {}).values(),
            *(info for infos in locks.get("read", {}).values() for info in infos),
        ]
        return sorted(
            {
                str(int(info["pid"]))
                for info in infos
                if info and _holds(int(info["pid"]), str(info["cmd"]))
            }
        )
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return []  # absent or broken: DVC itself will say so


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which a container without an init keeps for ever, does
    not.
    """
    try:
        os.kill(pid, 0)
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
            != "Z"
        )
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True  # another user's process, or no /proc


def _holds(pid: int, command: str) -> bool:
    """Whether a process runs and is the one that wrote this command into DVC's lock: the number of
    a dead one may be another's by now.

    The first word differs between `dvc` and `python -m dvc`, so the arguments after it are
    compared.
    """
    if not alive(pid):
        return False
    try:
        now = (
            Path(f"/proc/{pid}/cmdline")
            .read_text(encoding="utf-8", errors="replace")
            .replace("\0", " ")
            .strip()
        )
    except OSError:
        return True  # another user's process, or no /proc
    given = command.partition(" ")[2].strip()
    return now.endswith(f" {given}") if given else "dvc" in now


def forget_dead_dvc() -> None:
    """Remove DVC's read-write lock where all its holders are dead. DVC itself takes a zombie, and a
    stranger with the number of a dead process, for a holder at work, and refuses to run.
    """
    if not dvc_processes():
        (ROOT / ".dvc" / "tmp" / "rwlock").unlink(missing_ok=True)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m stages.common.process", description=__doc__, formatter_class=raw
    ).parse_args()
    forget_dead_dvc()
    return 0


if __name__ == "__main__":
    run_main("process", main)
