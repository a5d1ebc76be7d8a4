"""A GPU is one process's at a time, across clones; who finds none free waits, says for whom, and gets it in the end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common import gpus, lease, process, server
from stages.common.commands import Command
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.lease import Lease, Wanted
from tests.common.test_engine import SERVER
from tests.gpu_machines import BUSY4090, DIVIDED, H100, OLD_DRIVER, RTX4090, Make

WORKER = """
import sys
from stages.common import gpus, lease
least, most = int(sys.argv[1]), int(sys.argv[2])
with lease.leased(lease.Wanted(gpus.usable(), least, most), "train") as held:
    print("has", *(card.index for card in held.cards), flush=True)
    sys.stdin.readline()
"""


class Worker:
    """A process in a clone of its own that wants GPUs, and holds them until it is told to end."""

    def __init__(self, main: Path, name: str, least: int = 1, most: int = 1) -> None:
        env = {**os.environ, "DVC_ROOT": str(main), "DVC_EXP_NAME": name, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(least), str(most)], cwd=main, env=env, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def next(self, patience_s: float = 60) -> str:
        """The next line that it prints; "" if none comes."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], patience_s)
        return self.process.stdout.readline().decode().strip() if ready else ""

    def end(self) -> None:
        self.process.communicate(b"\n", timeout=60)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    begun: list[Worker] = []
    yield begun
    for worker in begun:
        worker.process.kill()
        worker.process.wait()


def begin(workers: list[Worker], main: Path, name: str, least: int = 1, most: int = 1) -> Worker:
    workers.append(Worker(main, name, least, most))
    return workers[-1]


def test_the_second_of_two_workers_on_one_card_waits_and_says_for_whom(tmp_path: Path, gpu_machine: Make, workers: list[Worker]) -> None:
    gpu_machine(RTX4090)
    first = begin(workers, tmp_path, "fit-lynx")
    assert first.next() == "has 0"
    second = begin(workers, tmp_path, "calm-owl")
    waits = second.next()
    assert waits == f"train: waits for a GPU: GPU 0 is held by train of fit-lynx (process {first.process.pid})"
    first.end()
    assert second.next().startswith("train: has GPU 0 after") and second.next() == "has 0"
    assert [path.name for path in (tmp_path / ".pawl/gpu").glob("GPU*")] == ["GPU-00000000-aaaa.lock"]


def test_eight_workers_on_eight_cards_do_not_wait(tmp_path: Path, gpu_machine: Make, workers: list[Worker]) -> None:
    gpu_machine(*[H100] * 8)
    for number in range(8):
        begin(workers, tmp_path, f"w{number}")
    assert sorted(worker.next() for worker in workers) == [f"has {number}" for number in range(8)]


def test_a_killed_worker_leaves_its_card_to_the_next(tmp_path: Path, gpu_machine: Make, workers: list[Worker]) -> None:
    gpu_machine(RTX4090)
    first, second = begin(workers, tmp_path, "a"), None
    assert first.next() == "has 0"
    second = begin(workers, tmp_path, "b")
    assert "waits" in second.next()
    first.process.kill()
    assert "has GPU 0" in second.next()


def test_two_that_gather_all_cards_and_one_that_needs_one_all_get_theirs(tmp_path: Path, gpu_machine: Make, workers: list[Worker]) -> None:
    gpu_machine(H100, H100, H100)
    one = begin(workers, tmp_path, "one")
    assert one.next() == "has 0"
    all_, again = begin(workers, tmp_path, "all", 3, 3), None
    assert "waits for 3 GPUs: GPU 0 is held by train of one" in all_.next()
    again = begin(workers, tmp_path, "again", 3, 3)
    assert again.next() == "train: waits for 3 GPUs: another process gathers several"
    late = begin(workers, tmp_path, "late")
    assert "waits for a GPU" in late.next()
    one.end()
    assert "after" in all_.next() and all_.next() == "has 0 1 2"
    all_.end()
    for worker in (again, late):
        while not worker.next().startswith("has"):
            pass
        worker.end()


def test_a_clone_locks_in_the_main_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert lease._folder() == tmp_path / ".pawl/gpu"
    monkeypatch.delenv("DVC_ROOT")
    assert lease.main_root() == ROOT


def shown(wanted: Wanted) -> str | None:
    with lease.leased(wanted, "test") as held:
        return held.environment().get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("free", "least", "most", "got"),
    [
        ([60, 70, 80], 1, 1, "2"), ([80, 80, 80], 1, 3, "0,1,2"), ([80, 1, 80], 1, 3, "0,2"), ([80, 1, 80], 3, 3, "0,1,2"),
        ([1, 2, 3], 1, 1, "2"), ([1, 2, 3], 2, 3, "1,2"),
    ],
)  # fmt: skip
def test_the_cards_with_most_free_memory_are_taken(
    gpu_machine: Make, monkeypatch: pytest.MonkeyPatch, free: list[int], least: int, most: int, got: str
) -> None:
    """And those that other programs fill only if there are too few others."""
    gpu_machine(*(replace(H100, free=gib * 1024) for gib in free))
    monkeypatch.setattr(lease, "_SETTLE_S", -1.0)
    assert shown(Wanted(gpus.usable(), least, most)) == got


def test_a_card_that_strangers_fill_is_not_taken_while_another_will_become_free(gpu_machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_machine(BUSY4090, RTX4090)
    monkeypatch.setattr(lease, "_SETTLE_S", -1.0)
    wanted = Wanted(gpus.usable())
    with lease.leased(wanted, "test") as held:
        assert [card.index for card in held.cards] == [1]
        with pytest.raises(PawlError, match="waited 0 h for a GPU: GPU 1 is held by test of ") as failed:
            lease.take(wanted, "other", limit_s=0)
    assert failed.value.fix == f"wait for it, or end it: kill {os.getpid()}"
    assert shown(wanted) == "1", "and who gave up holds nothing"


def test_a_full_machine_is_named_as_such(gpu_machine: Make, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_machine(BUSY4090)
    with pytest.raises(PawlError, match="programs that are not Pawl's") as failed:
        lease.take(Wanted(gpus.usable()), "train", limit_s=0)
    assert "CUDA_VISIBLE_DEVICES" in failed.value.fix


def test_only_what_the_user_shows_is_taken(gpu_machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_machine(*[H100] * 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000003,1")
    assert shown(Wanted(gpus.usable(), 1, 4)) == "1,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not lease.take(Wanted(gpus.usable()), "test").cards


def test_an_instance_of_a_divided_card_keeps_the_name_by_which_it_is_shown(gpu_machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA knows it by a name of its own, and would find nothing under that of the whole card."""
    gpu_machine(DIVIDED)
    assert shown(Wanted(gpus.usable())) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-one,MIG-two")
    with lease.leased(Wanted(gpus.usable(), 1, 2), "test") as first:
        assert [card.uuid for card in first.cards] == ["MIG-one"] and first.environment() == {}
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-two")
        assert shown(Wanted(gpus.usable())) is None, "another instance of the same card is free"


def test_a_card_that_cannot_compute_is_left_out_or_refused(gpu_machine: Make) -> None:
    gpu_machine(OLD_DRIVER)
    with pytest.raises(PawlError, match=r"GPU 0 .* driver 550.90.07 is too old") as refused:
        gpus.usable()
    assert "train.device=cpu" in refused.value.fix
    gpu_machine(OLD_DRIVER, H100)
    assert [card.index for card in gpus.usable()] == [1]


def test_a_lock_that_cannot_be_read_is_a_lock_all_the_same(gpu_machine: Make) -> None:
    gpu_machine(H100)
    wanted = Wanted(gpus.usable())
    with lease.leased(wanted, "test"):
        (lease._folder() / "GPU-00000000-aaaa.lock").write_text('["')
        with pytest.raises(PawlError, match="GPU 0 is held by a process of another clone"):
            lease.take(wanted, "other", limit_s=0)


# --- servers


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


def test_a_server_between_two_evaluations_is_not_ended_by_another_run(tree: Path, workers: list[Worker]) -> None:
    main = lease._folder().parents[1]
    running = serve(tree)
    other = begin(workers, main, "calm-owl")
    assert "held by vllm server" in other.next()
    running.check()


KEEP = "import sys; from pathlib import Path; from stages.common import server; server._IDLE_S = 0.5; server.keep(Path(sys.argv[1]))"


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
from stages.common import gpus, lease, server
from stages.common.commands import Command
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
