"""Processes that serve a model: started, awaited, watched, stopped; of one evaluation alone, or shared by all of a run.

python -m stages.evaluate.serve.server STATE           keeps a shared server (`shared` starts it)

A shared server belongs to the runs that asked for it (their `dvc repro`): a keeper process holds it while one of them lives or an
evaluation uses it, and ends it when neither is so, when it was idle for its time, when another server is wanted in its place, or, on
a GPU, when training begins or when another run has waited a while for the GPU. Locks say who is alive, and the kernel drops those of a
killed process. A server on GPUs holds their leases (lease.py).
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common import process
from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, write_json
from stages.common.lease import Lease, Wanted, exclusive, leased, take
from stages.common.redaction import redact_file
from stages.evaluate.serve.commands import Command
from stages.evaluate.serve.server_log import last_words

_POLL_S = 0.25
_LOCKS = Path("/proc/locks")
_YIELD_S = 60.0  # how long another server may take to end when this one is wanted
_IDLE_S = 20.0  # after which a server ends if another run waits for its GPU; the next evaluation of a run begins sooner
_FRESH_S = 10.0  # a run that waits says so again and again

Make = Callable[[int, Lease], Command]
"""The command of a server that listens on a port and computes on leased GPUs."""


class ServerDiedError(PawlError):
    """A server ended by itself; holds its last lines."""


@dataclass(frozen=True)
class Running:
    """A server that answered. `check` raises ServerDiedError where it has ended since."""

    port: int
    check: Callable[[], None]


def free_port() -> int:
    """A port on the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def private(
    name: str, make: Make, log: Path, startup_s: float, meanwhile: Callable[[], None], wanted: Wanted | None = None
) -> Iterator[Running]:
    """A server for as long as the block lasts, and not longer than this process. `wanted`: the GPUs to lease for it.

    Raises:
        PawlError: it does not get ready (its last lines are in the error), or no GPU becomes free.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with leased(wanted or Wanted(), f"{name} server") as lease:
        started = make(free_port(), lease)
        server = process.start(started.argv, log=log, env={**started.env, "PYTHONPATH": str(ROOT)})
        try:
            running = Running(started.port, lambda: _check(server.poll() is not None, server, log))
            await_ready(name, running, log, startup_s, meanwhile)
            yield running
        finally:
            process.stop(server)
            redact_file(log)


@contextmanager
def shared(
    name: str, key: str, make: Make, log: Path, startup_s: float, meanwhile: Callable[[], None], *,
    owner: int, idle_s: float, wanted: Wanted | None = None,
) -> Iterator[Running]:  # fmt: skip
    """The run's server with this key, started where there is none; it goes on when the block ends.

    Args:
        key: hash of all that shapes the server; another key is another server.
        owner: the process with which it ends.
        wanted: the GPUs to lease for it; None: the CPU serves.

    Raises:
        PawlError: it does not get ready (its last lines are in the error), or no GPU becomes free.
    """
    folder = ROOT / ".pawl" / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    state, use = folder / f"{key}.json", folder / f"{key}.use"
    with open(use, "a", encoding="utf-8") as lock:
        with exclusive(folder / "start"):
            fcntl.flock(lock, fcntl.LOCK_SH)  # before it is looked for: from here on the keeper does not end it as unused
            known = _read(state)
            if known is None:
                _make_room(folder, state)
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_bytes(b"")
                known = _start(name, make, state, log, {"owners": [owner], "idle_s": idle_s}, wanted)
            elif owner not in known["owners"]:
                write_json(state, known | {"owners": [*known["owners"], owner]})
        served = Path(known["log"])
        running = Running(known["port"], lambda: _check(not process.locked(state.with_suffix(".alive")), None, served))
        await_ready(name, running, served, startup_s, meanwhile)
        yield running


def owner_of_this_run() -> int | None:
    """The process that a shared server ends with: PAWL_RUN_PID, or the `dvc` that this process descends from. None: share nothing."""
    if given := os.environ.get("PAWL_RUN_PID", ""):
        return int(given) if given.isdigit() else None
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
            if any(Path(word).name == "dvc" for word in words[:3]):
                return pid
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return None


def await_ready(name: str, running: Running, log: Path, startup_s: float, meanwhile: Callable[[], None]) -> None:
    """Wait until a server answers; `meanwhile` is called once, first.

    Raises:
        PawlError: it ended, or took longer than `startup_s`.
    """
    begun = told = time.monotonic()
    waited = False
    meanwhile()
    while not _answers(running.port):
        running.check()
        if not waited:
            print(f"starting {name} (log: {log})")
        waited, now = True, time.monotonic()
        if now - begun > startup_s:
            lines, fix = last_words(log)
            fix = fix or "raise engine.startup_timeout_s if it was still loading"
            raise PawlError(f"{name} was not ready after {startup_s:g} s; its last lines:\n{lines}", where=str(log), fix=fix)
        if now - told > 15:
            told = now
            print(f"  still starting after {now - begun:.0f} s")
        time.sleep(_POLL_S)
    running.check()  # what answers may be another server that took the port
    if waited:
        print(f"{name} is ready after {time.monotonic() - begun:.0f} s")


def _answers(port: int) -> bool:
    try:
        with direct().open(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (OSError, http.client.HTTPException):  # refused, cut or timed out: not ready yet
        return False


def direct() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy between us and ourselves


def _check(ended: bool, server: subprocess.Popen[bytes] | None, log: Path) -> None:
    if ended:
        code = f" with code {server.returncode}" if server else ""
        lines, fix = last_words(log)
        raise ServerDiedError(f"the server ended{code}; its last lines:\n{lines}", where=str(log), fix=fix)


# --- the keeper of a shared server


def keep(state: Path) -> int:
    """Run the server of a state file until nothing needs it."""
    known = json.loads(state.read_text(encoding="utf-8"))
    with open(state.with_suffix(".alive"), "a", encoding="utf-8") as alive, open(state.with_suffix(".use"), "a", encoding="utf-8") as use:
        fcntl.flock(alive, fcntl.LOCK_EX)
        server = process.start(known["argv"], log=Path(known["log"]), env={**known["env"], "PYTHONPATH": str(ROOT)})
        try:
            last_used = time.monotonic()
            while server.poll() is None:
                time.sleep(_POLL_S)
                try:
                    fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    last_used = time.monotonic()
                    continue
                known = _read_json(state) or known
                orphaned = not any(process.alive(owner) for owner in known["owners"])
                unwanted = state.with_suffix(".stop").exists() or (known["gpu"] and _training(state.parents[1]))
                idle_s = min(known["idle_s"], _IDLE_S) if _is_waited_for(state) else known["idle_s"]
                if orphaned or unwanted or time.monotonic() - last_used > idle_s:
                    break  # with the lock: who wants it now waits, and finds it gone
                fcntl.flock(use, fcntl.LOCK_UN)
        finally:
            process.stop(server)
            redact_file(Path(known["log"]))
            for suffix in (".json", ".stop", ".wanted"):
                state.with_suffix(suffix).unlink(missing_ok=True)
    return 0


def _start(name: str, make: Make, state: Path, log: Path, about: dict[str, Any], wanted: Wanted | None) -> dict[str, Any]:
    """Start a server and its keeper, which takes over the leases. Returns what is known of it."""
    lease = take(wanted or Wanted(), f"{name} server")
    try:
        started = make(free_port(), lease)
        known = about | {"argv": started.argv, "env": started.env, "port": started.port, "log": str(log), "gpu": wanted is not None}
        for suffix in (".stop", ".wanted"):
            state.with_suffix(suffix).unlink(missing_ok=True)  # meant for the one before
        write_json(state, known)
        _start_keeper(name, state, log, lease)
    finally:
        lease.close()
    return known


def _start_keeper(name: str, state: Path, log: Path, lease: Lease) -> None:
    """Start a keeper and wait until it holds its lock, so that from then on its end can be seen."""
    with open(log, "ab") as file:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "stages.evaluate.serve.server", str(state)], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, pass_fds=lease.descriptors(),
        )  # fmt: skip
    lease.note(f"{name} server", keeper.pid, serves=state)
    while not process.locked(state.with_suffix(".alive")):
        if keeper.poll() is not None:
            state.unlink(missing_ok=True)
            raise PawlError(f"the server's keeper ended:\n{last_words(log)[0]}", where=str(log))
        time.sleep(0.05)


def _make_room(folder: Path, wanted: Path) -> None:
    """End the run's other servers: two of them do not fit on one GPU. One that is in use is waited for."""
    until = time.monotonic() + _YIELD_S
    for state in folder.glob("*.json"):
        if state != wanted and _read(state):
            state.with_suffix(".stop").touch()
            while process.locked(state.with_suffix(".alive")) and time.monotonic() < until:
                time.sleep(0.1)


def _read(state: Path) -> dict[str, Any] | None:
    """A state file whose keeper lives."""
    return _read_json(state) if process.locked(state.with_suffix(".alive")) else None


def _read_json(state: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _is_waited_for(state: Path) -> bool:
    """Whether another run waits for this server's GPU."""
    try:
        return time.time() - state.with_suffix(".wanted").stat().st_mtime < _FRESH_S
    except OSError:
        return False


def _training(folder: Path) -> bool:
    """Whether a process holds the train stage's lock; asked of the kernel's list, since trying the lock could fail the stage."""
    try:
        inode = (folder / "train.lock").stat().st_ino
        return any(f":{inode} " in line for line in _LOCKS.read_text(encoding="ascii").splitlines())
    except OSError:
        return False


def training_can_be_seen() -> bool:
    """Whether a shared server on a GPU learns that training begins. Some sandboxes (gVisor) have no list of locks."""
    return _LOCKS.is_file()


if __name__ == "__main__":
    run_main("server", lambda: keep(Path(sys.argv[1])))
