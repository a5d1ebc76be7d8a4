"""A server lasts as long as its evaluation and holds its GPU as long."""

from __future__ import annotations

import http.server
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from stages.common import gpus, lease
from stages.common.lease import Lease, Wanted
from stages.evaluate.serve import server
from stages.evaluate.serve.commands import Command
from tests.evaluate.serve.test_engine import SERVER
from tests.gpu_machines import RTX4090, Make


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path / "server.py"


def start(
    script: Path, *, port: int = 0, gpu: bool = False
) -> AbstractContextManager[server.Running]:
    def make(free: int, held: Lease) -> Command:
        argv = [sys.executable, str(script), "--port", str(port or free)]
        return Command(argv, "m", held.environment())

    wanted = Wanted(gpus.usable()) if gpu else None
    meanwhile = (lambda: time.sleep(1)) if port else (lambda: None)
    return server.started("fake", make, script.parent / "log", 20, meanwhile, wanted)


@contextmanager
def stranger() -> Iterator[int]:
    """Another program that answers on a port; gives the port."""
    other = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        yield other.server_port
    finally:
        other.shutdown()
        other.server_close()


def test_a_port_that_another_program_took_is_not_taken_for_the_server(script: Path) -> None:
    with stranger() as port:
        with pytest.raises(
            server.ServerDiedError, match=r"(?s)ended with code 1.*Address already in use"
        ):
            with start(script, port=port):
                pass


def test_no_proxy_stands_between_us_and_our_server(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with start(script) as running:
        assert server.answers(running.port) and running.model == "m"
    with pytest.raises(OSError):
        urllib.request.build_opener(urllib.request.ProxyHandler()).open(
            "http://127.0.0.1:1/health", timeout=2
        )


def test_a_server_holds_its_gpu_while_it_serves_and_not_longer(
    script: Path, gpu_machine: Make
) -> None:
    gpu_machine(RTX4090)
    with start(script, gpu=True) as running:
        running.check()
        assert lease.likely(Wanted(gpus.usable()))[1], "a training would have to wait"
    assert not lease.likely(Wanted(gpus.usable()))[1]
    assert not server.answers(running.port)
