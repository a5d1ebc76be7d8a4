"""A shared server holds the GPU that it serves on, and gives it up to its own run at once, to another one when it is idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.common import gpus, lease, process
from stages.common.files import ROOT
from stages.common.lease import Lease, Wanted
from stages.evaluate.serve import server
from stages.evaluate.serve.commands import Command
from tests.common.test_lease import Worker
from tests.evaluate.serve.test_engine import SERVER
from tests.gpu_machines import RTX4090, Make


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_machine: Make) -> Iterator[Path]:
    """A working tree on a machine with one GPU."""
    gpu_machine(RTX4090)
    monkeypatch.setattr(server, "ROOT", tmp_path)
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    (tmp_path / "server.py").write_text(SERVER)
    yield tmp_path
    for state in (tmp_path / ".pawl/serve").glob("*.json"):
        state.with_suffix(".stop").touch()
        while state.exists():
            time.sleep(0.05)


def serve(tree: Path, key: str = "k") -> server.Running:
    def make(port: int, held: Lease) -> Command:
        return Command([sys.executable, str(tree / "server.py"), "--port", str(port)], "m", held.environment())

    wanted = Wanted(gpus.usable())
    with server.shared("vllm", key, make, tree / "log", 20, lambda: None, owner=os.getpid(), idle_s=600, wanted=wanted) as running:
        return running


def test_a_server_that_outlives_its_evaluation_keeps_the_card(tree: Path) -> None:
    assert not lease.likely(Wanted(gpus.usable()))[1]
    running = serve(tree)
    assert lease.likely(Wanted(gpus.usable()))[1], "a training would have to wait"
    known = json.loads((tree / ".pawl/serve/k.json").read_text())
    assert known["env"]["CUDA_VISIBLE_DEVICES"] == "0" and known["gpu"] is True
    assert serve(tree).port == running.port, "the next evaluation shares it"


def test_a_runs_own_server_makes_way_for_its_training(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else each would wait for the other for as long as the server may be idle."""
    running = serve(tree)
    held = lease.take(Wanted(gpus.usable()), "train", limit_s=15)  # sooner than a stranger would get it
    assert [card.index for card in held.cards] == [0] and not server._answers(running.port)
    held.close()
    assert "train: waits for a GPU: GPU 0 is held by vllm server of" in capsys.readouterr().out


def test_a_runs_next_server_makes_the_one_before_give_its_card_back(tree: Path) -> None:
    one = serve(tree, "one")
    two = serve(tree, "two")
    assert server._answers(two.port) and not server._answers(one.port)


def test_a_server_between_two_evaluations_is_not_ended_by_another_run(tree: Path) -> None:
    running = serve(tree)
    other = Worker(lease._folder().parents[1], "calm-owl")
    try:
        assert "held by vllm server" in other.next()
        running.check()
    finally:
        other.process.kill()
        other.process.wait()


KEEP = """
import sys
from pathlib import Path
from stages.evaluate.serve import server
server._IDLE_S = 0.5
server.keep(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("waited_for", [True, False])
def test_an_idle_server_ends_if_another_run_waits_for_its_card(tree: Path, waited_for: bool) -> None:
    state = tree / ".pawl/serve/k.json"
    state.parent.mkdir(parents=True)
    port = server.free_port()
    argv = [sys.executable, str(tree / "server.py"), "--port", str(port)]
    known = {"argv": argv, "env": {}, "port": port, "log": str(tree / "log"), "owners": [os.getpid()], "idle_s": 600, "gpu": True}
    state.write_text(json.dumps(known))
    with subprocess.Popen([sys.executable, "-c", KEEP, str(state)], cwd=ROOT) as keeper:
        while not process.locked(state.with_suffix(".alive")):
            time.sleep(0.05)
        told = {"serves": str(state), "root": "/another/tree"}
        for _ in range(12):
            if waited_for:
                lease._ask_to_end(told)
            time.sleep(0.25)
        if not waited_for:
            assert keeper.poll() is None
            lease._ask_to_end(told | {"root": str(ROOT)})
        assert keeper.wait(30) == 0 and not state.exists()


RUN = """
import os, sys
from pathlib import Path
from stages.common import gpus, lease
from stages.evaluate.serve import server
from stages.evaluate.serve.commands import Command
tree = server.ROOT = lease.ROOT = Path(sys.argv[1])
def make(port, held):
    return Command([sys.executable, str(tree.parent / "server.py"), "--port", str(port)], "m", held.environment())
wanted = lease.Wanted(gpus.usable())
with server.shared("vllm", "k", make, tree / "log", 60, lambda: None, owner=os.getpid(), idle_s=600, wanted=wanted):
    print("serves", flush=True)
with lease.leased(wanted, "train") as held:
    print("trains on", held.cards[0].index, flush=True)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_two_runs_that_each_serve_and_then_train_never_wait_for_one_another_for_ever(tree: Path, count: int, gpu_machine: Make) -> None:
    gpu_machine(*[RTX4090] * count)
    runs = []
    for name in ("a", "b"):
        (tree / name).mkdir()
        (tree / name / "stages").symlink_to(ROOT / "stages")
        env = {**os.environ, "DVC_ROOT": str(tree), "DVC_EXP_NAME": name, "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-c", RUN, str(tree / name)]
        runs.append(subprocess.Popen(argv, cwd=tree / name, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        said = [run.communicate(timeout=100)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], said
    assert all("serves" in text and "trains on" in text for text in said)
    assert ("waits for a GPU" in "".join(said)) or count == 2
