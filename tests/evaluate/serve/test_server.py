"""A run's evaluations share one server, which ends with the run, when idle, or where it is in the way; never sooner, never later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.lease import Lease, Wanted
from stages.evaluate.serve import server
from stages.evaluate.serve.commands import Command
from tests.evaluate.serve.test_engine import SERVER


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(server, "ROOT", tmp_path)
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    (tmp_path / "server.py").write_text(SERVER)
    yield tmp_path
    for state in (tmp_path / ".pawl/serve").glob("*.json"):
        state.with_suffix(".stop").touch()
    wait(lambda: not list((tmp_path / ".pawl/serve").glob("*.json")))


def shared(
    root: Path, key: str = "k", owner: int | None = None, idle_s: float = 60, gpu: bool = False
) -> AbstractContextManager[server.Running]:
    def make(port: int, lease: Lease) -> Command:
        return Command([sys.executable, str(root / "server.py"), "--port", str(port)], "m")

    owner = os.getpid() if owner is None else owner
    wanted = Wanted() if gpu else None
    return server.shared("fake", key, make, root / f"{key}.log", 20, lambda: None, owner=owner, idle_s=idle_s, wanted=wanted)


def wait(true: object, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.05)


def answers(port: int) -> bool:
    return server._answers(port)


def engine_of(root: Path) -> psutil.Process:
    """The server's process."""
    commands = {process: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    [found] = [
        process for process, argv in commands.items() if str(root / "server.py") in argv and not any("leash" in word for word in argv)
    ]
    return found


def test_the_next_evaluation_finds_the_server_running(root: Path) -> None:
    with shared(root) as first:
        pass
    with shared(root) as second:
        assert second.port == first.port and answers(first.port)
        second.check()


def test_it_ends_when_its_run_is_gone_and_not_before(root: Path) -> None:
    run = subprocess.Popen(["sleep", "60"])
    with shared(root, owner=run.pid) as running:
        run.kill()
        run.wait()
        time.sleep(1)
        running.check()
        assert answers(running.port), "an evaluation uses it still"
    wait(lambda: not answers(running.port))
    wait(lambda: not list((root / ".pawl/serve").glob("*.json")))


def test_a_killed_evaluation_and_a_killed_keeper_leave_nothing_behind(root: Path) -> None:
    with shared(root, owner=os.getpid()) as running:
        pid = engine_of(root)
        keeper = pid.parent().ppid()  # above its leash
        os.kill(keeper, signal.SIGKILL)
        wait(lambda: not pid.is_running() or pid.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(server.ServerDiedError):
            running.check()
    with shared(root) as again:
        assert answers(again.port), "the next one starts another"


def test_unused_for_its_time_it_ends(root: Path) -> None:
    with shared(root, idle_s=0.5) as running:
        time.sleep(1.2)
        assert answers(running.port)
    wait(lambda: not answers(running.port))


def test_another_server_takes_its_place_and_memory(root: Path) -> None:
    with shared(root, "one") as one:
        pass
    with shared(root, "two") as two:
        assert answers(two.port) and not answers(one.port)


def test_on_a_gpu_it_makes_way_for_training(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(root, gpu=True) as running:
        pass
    lock = root / ".pawl" / "train.lock"
    lock.parent.mkdir(exist_ok=True)
    code = f"import fcntl,time; f=open({str(lock)!r},'a'); fcntl.flock(f,2); print('held',flush=True); time.sleep(20)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as training:
        training.stdout.readline()  # type: ignore[union-attr]
        wait(lambda: not answers(running.port))
        training.kill()


def test_a_server_that_does_not_start_shows_its_last_lines(root: Path) -> None:
    (root / "server.py").write_text("import sys; print('cannot allocate 4 GiB', flush=True); sys.exit(3)")
    with pytest.raises(PawlError, match="cannot allocate 4 GiB"), shared(root):
        pass
    assert not list((root / ".pawl/serve").glob("*.json"))


def test_a_port_that_another_program_took_is_not_taken_for_the_server(root: Path) -> None:
    with shared(root) as other:

        def make(port: int, lease: Lease) -> Command:
            return Command([sys.executable, str(root / "server.py"), "--port", str(other.port)], "m")

        with pytest.raises(server.ServerDiedError, match=r"(?s)ended with code 1.*Address already in use"):
            with server.private("fake", make, root / "second.log", 20, lambda: time.sleep(1)):
                pass


def test_the_owner_is_the_dvc_that_this_process_descends_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAWL_RUN_PID", raising=False)
    code = "from stages.evaluate.serve.server import owner_of_this_run as o; print(o())"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert bare.stdout.strip() == "None"
    dvc = tmp_path / "dvc"
    dvc.write_text(
        f"import os, subprocess, sys\nprint(os.getpid(), flush=True)\nsubprocess.run(['sh', '-c', '{sys.executable} -c \"{code}\"'])\n"
    )
    done = subprocess.run([sys.executable, str(dvc)], capture_output=True, text=True, cwd=ROOT)
    pid, owner = done.stdout.split()
    assert pid == owner
    monkeypatch.setenv("PAWL_RUN_PID", "77")
    assert server.owner_of_this_run() == 77


def test_no_proxy_stands_between_us_and_our_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with shared(root) as running:
        assert answers(running.port)
    with pytest.raises(OSError):
        urllib.request.build_opener(urllib.request.ProxyHandler()).open("http://127.0.0.1:1/health", timeout=2)
