"""A process that serves a model: started, awaited, watched, stopped with its evaluation.

Every evaluation starts a server of its own. A start was measured on two busy cores: 11 to 13 s with
the engine transformers and SmolLM2-135M, 39 to 51 s with vLLM's CPU build. OpenCompass is imported
meanwhile. One server for all three evaluations of a run would save two starts at most: 24 s of the
default's 11 minutes, by calculation. On a GPU, where it has to make way for training, it would save
one, and vLLM's start there was not measured.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stages.common import process
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.lease import Lease, Wanted, leased
from stages.common.redaction import redact_file
from stages.evaluate.serve.commands import Command
from stages.evaluate.serve.server_log import last_words

_POLL_S = 0.25

Make = Callable[[int, Lease], Command]
"""The command of a server that listens on a port and computes on leased GPUs."""


class ServerDiedError(PawlError):
    """A server ended by itself; holds its last lines."""


@dataclass(frozen=True)
class Running:
    """A server that answered.

    Attributes:
        model: what requests must ask for.
        check: raises ServerDiedError if it has ended since.
    """

    port: int
    model: str
    check: Callable[[], None]


def free_port() -> int:
    """A port on the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    name: str,
    make: Make,
    log: Path,
    startup_s: float,
    meanwhile: Callable[[], None],
    wanted: Wanted | None = None,
) -> Iterator[Running]:
    """A server for as long as the block lasts, and not longer than this process.

    Args:
        meanwhile: called once, while the server starts.
        wanted: the GPUs to lease for it.

    Raises:
        PawlError: it does not get ready (its last lines are in the error), or no GPU becomes free.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with leased(wanted or Wanted(), f"{name} server") as lease:
        command = make(free_port(), lease)
        env = {**command.env, "PYTHONPATH": str(ROOT)}
        server = process.start(command.argv, log=log, env=env)
        try:
            running = Running(command.port, command.model, lambda: _check(server, log))
            _await_ready(name, running, log, startup_s, meanwhile)
            yield running
        finally:
            process.stop(server)
            redact_file(log)


def _await_ready(
    name: str, running: Running, log: Path, startup_s: float, meanwhile: Callable[[], None]
) -> None:
    begun = told = time.monotonic()
    print(f"starting {name} (log: {log})")
    meanwhile()
    while not answers(running.port):
        running.check()
        now = time.monotonic()
        if now - begun > startup_s:
            lines, fix = last_words(log)
            fix = fix or "raise engine.startup_timeout_s if it was still loading"
            what = f"{name} was not ready after {startup_s:g} s; its last lines:\n{lines}"
            raise PawlError(what, where=str(log), fix=fix)
        if now - told > 15:
            told = now
            print(f"  still starting after {now - begun:.0f} s")
        time.sleep(_POLL_S)
    running.check()  # what answers may be another server that took the port
    print(f"{name} is ready after {time.monotonic() - begun:.0f} s")


def answers(port: int) -> bool:
    """Whether a server on this port says that it is ready."""
    try:
        with direct().open(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (OSError, http.client.HTTPException):  # refused, cut or timed out: not ready yet
        return False


def direct() -> urllib.request.OpenerDirector:
    """No proxy stands between us and ourselves."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _check(server: subprocess.Popen[bytes], log: Path) -> None:
    if server.poll() is not None:
        lines, fix = last_words(log)
        what = f"the server ended with code {server.returncode}; its last lines:\n{lines}"
        raise ServerDiedError(what, where=str(log), fix=fix)
