"""Children never outlive their stage, and a stage never runs twice in one working tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.common import process
from stages.common.errors import PawlError
from stages.common.files import ROOT

PARENT = """
import pathlib, sys
from stages.common import process
worker = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
server = f"import os, subprocess, sys; print(os.getpid(), flush=True); subprocess.run([sys.executable, '-c', {worker!r}])"
process.start([sys.executable, "-c", server], log=pathlib.Path(sys.argv[1])).wait()
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_a_child_and_its_workers_die_with_a_killed_stage(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(log)], cwd=ROOT)
    while len(pids := process.tail(log).split()) < 2:
        time.sleep(0.05)
    assert all(alive(int(pid)) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert all(gone_within(int(pid), 5) for pid in pids)


def test_a_child_ends_with_its_own_exit_code_or_signal(tmp_path: Path) -> None:
    for program, code in (
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
    ):
        assert process.run([sys.executable, "-c", program], log=tmp_path / "log") == code


def test_a_child_that_ignores_signals_is_killed_with_its_workers(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "log"
    child = process.start([sys.executable, "-c", stubborn], log=log)
    while not process.tail(log):
        time.sleep(0.05)
    worker = int(process.tail(log))
    process.stop(child, grace_s=0.3)
    assert child.returncode == -signal.SIGKILL
    assert gone_within(worker, 5)


def test_a_child_that_runs_too_long_is_ended(tmp_path: Path) -> None:
    begun = time.monotonic()
    code = process.run(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        log=tmp_path / "log",
        timeout_s=0.5,
        poll_s=0.1,
    )
    assert code == 124 and time.monotonic() - begun < 20


def test_an_error_in_the_watcher_ends_the_child(tmp_path: Path) -> None:
    def watch() -> None:
        raise RuntimeError("Ctrl-C")

    started = tmp_path / "pid"
    child = (
        f"import os, time, pathlib; pathlib.Path({str(started)!r}).write_text(str(os.getpid()));"
        " time.sleep(600)"
    )
    with pytest.raises(RuntimeError):
        process.run([sys.executable, "-c", child], log=tmp_path / "log", poll_s=1, watch=watch)
    assert not started.exists() or gone_within(int(started.read_text()), 5)


def test_a_stage_does_not_run_twice_at_once(tmp_path: Path) -> None:
    with process.stage_lock("only-for-this-test"):
        program = (
            "from stages.common import process\nwith process.stage_lock('only-for-this-test'): pass"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
        )
        assert (
            done.returncode and "already running" in done.stderr and str(os.getpid()) in done.stderr
        )
    with process.stage_lock("only-for-this-test"):
        pass
    (ROOT / ".pawl/only-for-this-test.lock").unlink()


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no-such-program"):
        process.start(["no-such-program"], log=tmp_path / "log")


def test_the_tail_of_a_log_shows_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(
        b"start\n 10%|#\r 50%|##\r100%|####\n\nTraceback\xff\nValueError: x\n"
    )
    assert process.tail(tmp_path / "log").splitlines() == [
        "start",
        "100%|####",
        "Traceback\ufffd",
        "ValueError: x",
    ]
    assert process.tail(tmp_path / "none") == ""


@pytest.mark.parametrize("ended", [True, False])
def test_a_dead_dvc_holds_no_lock_even_while_it_is_a_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """A container without an init never reaps an orphan, and DVC takes a zombie for a process at
    work.
    """
    monkeypatch.setattr(process, "ROOT", tmp_path)
    lock = tmp_path / ".dvc/tmp/rwlock"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", "input()", "repro", "train"], stdin=subprocess.PIPE
    )
    try:
        lock.write_text(
            json.dumps(
                {"write": {"/x": {"pid": holder.pid, "cmd": "/bin/dvc repro train"}}, "read": {}}
            )
        )
        if ended:
            holder.kill()
            assert gone_within(holder.pid, 10), "not reaped: a zombie"
        assert process.dvc_processes() == ([] if ended else [str(holder.pid)])
        process.forget_dead_dvc()
        assert lock.exists() is not ended
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize(
    "command", ["/venv/bin/dvc repro", "/site-packages/dvc/__main__.py repro -f train", "dvc", ""]
)
def test_a_stranger_with_the_number_of_a_dead_dvc_holds_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Numbers of processes are given again; DVC asks only whether one lives, and refuses to run
    until somebody removes its lock.
    """
    monkeypatch.setattr(process, "ROOT", tmp_path)
    lock = tmp_path / ".dvc/tmp/rwlock"
    lock.parent.mkdir(parents=True)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        info = {"pid": stranger.pid, "cmd": command}
        lock.write_text(json.dumps({"write": {"/x": info}, "read": {"/y": [info]}}))
        assert process.dvc_processes() == []
        process.forget_dead_dvc()
        assert not lock.exists()
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["asyncio.run(asyncio.sleep(30))", "threading.Event().wait(30)", "swallow()"]
)
def test_a_stage_that_takes_too_long_ends_with_the_key_that_says_how_long(
    program: str, tmp_path: Path
) -> None:
    code = f"""
import asyncio, threading, time
from stages.common.errors import run_main
from stages.common.process import time_limit
def swallow():  # as a loop over rows does with a bad one
    for _ in range(300):
        try: time.sleep(0.1)
        except Exception: pass
def main():
    with time_limit(0.3 / 3600):
        {program}
run_main("x", main)
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "longer than launcher.timeout_h" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert time.monotonic() - begun < 15


def test_a_stage_in_time_is_left_alone_afterwards() -> None:
    with process.time_limit(0.2 / 3600):
        pass
    time.sleep(0.3)
