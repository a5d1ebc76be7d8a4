"""A GPU is one process's at a time, across clones; who finds none free waits, says for whom, and
gets it in the end.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common import gpus, lease
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.lease import Wanted
from tests.gpu_machines import BUSY4090, DIVIDED, H100, OLD_DRIVER, RTX4090, Make

WORKER = """
import sys
from stages.common import gpus, lease
lease._POLL_S = 0.05
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
            [sys.executable, "-c", WORKER, str(least), str(most)],
            cwd=main,
            env=env,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

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


def test_the_second_of_two_workers_on_one_card_waits_and_says_for_whom(
    tmp_path: Path, gpu_machine: Make, workers: list[Worker]
) -> None:
    gpu_machine(RTX4090)
    first = begin(workers, tmp_path, "fit-lynx")
    assert first.next() == "has 0"
    second = begin(workers, tmp_path, "calm-owl")
    waits = second.next()
    assert (
        waits == "train: waits for a GPU: GPU 0 is held by train of fit-lynx (process"
        f" {first.process.pid})"
    )
    first.end()
    assert second.next().startswith("train: has GPU 0 after") and second.next() == "has 0"
    assert [path.name for path in (tmp_path / ".pawl/gpu").glob("GPU*")] == [
        "GPU-00000000-aaaa.lock"
    ]


def test_eight_workers_on_eight_cards_do_not_wait(
    tmp_path: Path, gpu_machine: Make, workers: list[Worker]
) -> None:
    gpu_machine(*[H100] * 8)
    for number in range(8):
        begin(workers, tmp_path, f"w{number}")
    assert sorted(worker.next() for worker in workers) == [f"has {number}" for number in range(8)]


def test_a_killed_worker_leaves_its_card_to_the_next(
    tmp_path: Path, gpu_machine: Make, workers: list[Worker]
) -> None:
    gpu_machine(RTX4090)
    first, second = begin(workers, tmp_path, "a"), None
    assert first.next() == "has 0"
    second = begin(workers, tmp_path, "b")
    assert "waits" in second.next()
    first.process.kill()
    assert "has GPU 0" in second.next()


def test_two_that_gather_all_cards_and_one_that_needs_one_all_get_theirs(
    tmp_path: Path, gpu_machine: Make, workers: list[Worker]
) -> None:
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
    left = [again, late]
    until = time.monotonic() + 60
    while left and time.monotonic() < until:  # either may be first, and the other waits for it
        for worker in list(left):
            if worker.next(0.1).startswith("has"):
                worker.end()
                left.remove(worker)
    assert not left


def test_a_clone_locks_in_the_main_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        ([60, 70, 80], 1, 1, "2"),
        ([80, 80, 80], 1, 3, "0,1,2"),
        ([80, 1, 80], 1, 3, "0,2"),
        ([80, 1, 80], 3, 3, "0,1,2"),
        ([1, 2, 3], 1, 1, "2"),
        ([1, 2, 3], 2, 3, "1,2"),
    ],
)
def test_the_cards_with_most_free_memory_are_taken(
    gpu_machine: Make,
    monkeypatch: pytest.MonkeyPatch,
    free: list[int],
    least: int,
    most: int,
    got: str,
) -> None:
    """And those that other programs fill only if there are too few others."""
    gpu_machine(*(replace(H100, free=gib * 1024) for gib in free))
    monkeypatch.setattr(lease, "_SETTLE_S", -1.0)
    assert shown(Wanted(gpus.usable(), least, most)) == got


def test_a_card_that_strangers_fill_is_not_taken_while_another_will_become_free(
    gpu_machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine(BUSY4090, RTX4090)
    monkeypatch.setattr(lease, "_SETTLE_S", -1.0)
    wanted = Wanted(gpus.usable())
    with lease.leased(wanted, "test") as held:
        assert [card.index for card in held.cards] == [1]
        with pytest.raises(
            PawlError, match="waited 0 h for a GPU: GPU 1 is held by test of "
        ) as failed:
            lease.take(wanted, "other", limit_s=0)
    assert failed.value.fix == f"wait for it, or end it: kill {os.getpid()}"
    assert shown(wanted) == "1", "and who gave up holds nothing"


def test_a_full_machine_is_named_as_such(
    gpu_machine: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_machine(BUSY4090)
    with pytest.raises(PawlError, match="programs that are not Pawl's") as failed:
        lease.take(Wanted(gpus.usable()), "train", limit_s=0)
    assert "CUDA_VISIBLE_DEVICES" in failed.value.fix


def test_only_what_the_user_shows_is_taken(
    gpu_machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine(*[H100] * 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000003,1")
    assert shown(Wanted(gpus.usable(), 1, 4)) == "1,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not lease.take(Wanted(gpus.usable()), "test").cards


def test_an_instance_of_a_divided_card_keeps_the_name_by_which_it_is_shown(
    gpu_machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
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
