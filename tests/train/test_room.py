"""The memory that is there: a container's or a batch job's limit counts, and so does what other
processes hold of a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from stages.common.schema import Launcher
from stages.train import fit, memory, room
from tests.train.test_arguments import train

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB available and no control groups yet."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    return tmp_path


def inside(machine: Path, line: str) -> None:
    (machine / "proc/self").mkdir(parents=True, exist_ok=True)
    (machine / "proc/self/cgroup").write_text(line + "\n")


def group(
    folder: Path, limit: str, used: float, cached: float, v1: bool = False, again: float = 0
) -> None:
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if v1
        else ("memory.max", "memory.current")
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, str(int(used * GIB))), strict=True):
        (folder / name).write_text(text + "\n")
    total = "total_" if v1 else ""
    stat = (
        f"anon 1\n{total}inactive_file {int(cached * GIB)}\n{total}active_file {int(again * GIB)}\n"
    )
    (folder / "memory.stat").write_text(stat)


def test_without_limits_the_machine_decides(machine: Path) -> None:
    assert room.machine_gib(machine) == 64
    inside(machine, "0::/user.slice/job")
    group(machine / "sys/fs/cgroup/user.slice/job", "max", used=3, cached=1)
    assert room.machine_gib(machine) == 64


def test_the_limit_of_a_group_counts_less_what_is_used_but_for_cached_files(machine: Path) -> None:
    inside(machine, "0::/user.slice/job")
    group(machine / "sys/fs/cgroup/user.slice/job", str(16 * GIB), used=10, cached=4)
    assert room.machine_gib(machine) == 10


@pytest.mark.parametrize("v1", [False, True])
def test_files_that_were_read_more_than_once_are_given_back_too(machine: Path, v1: bool) -> None:
    """A base that was hashed, served and read again lies among the active files: it is no memory
    that a training lacks.
    """
    inside(machine, "4:memory:/job" if v1 else "0::/job")
    group(
        machine / f"sys/fs/cgroup{'/memory' if v1 else ''}/job",
        str(16 * GIB),
        used=14,
        cached=2,
        again=8,
        v1=v1,
    )
    assert room.machine_gib(machine) == 12


def test_the_limit_of_a_group_further_up_counts_too(machine: Path) -> None:
    inside(machine, "0::/user.slice/job/step")
    group(machine / "sys/fs/cgroup/user.slice/job/step", str(16 * GIB), used=1, cached=0)
    group(machine / "sys/fs/cgroup/user.slice", str(8 * GIB), used=6, cached=0)
    assert room.machine_gib(machine) == 2


def test_the_first_version_of_control_groups_is_read_too(machine: Path) -> None:
    inside(machine, "5:cpu:/x\n4:hugetlb,memory:/job\n0::/")
    group(machine / "sys/fs/cgroup/memory/job", str(4 * GIB), used=2, cached=1, v1=True)
    assert room.machine_gib(machine) == 3
    group(machine / "sys/fs/cgroup/memory/job", "9223372036854771712", used=2, cached=1, v1=True)
    assert room.machine_gib(machine) == 64


@pytest.mark.parametrize("line", ["0::/docker/abc", "0::/../.."])
def test_a_container_that_is_told_the_hosts_path_finds_its_limit(machine: Path, line: str) -> None:
    inside(machine, line)
    group(machine / "sys/fs/cgroup", str(4 * GIB), used=1, cached=0)
    assert room.machine_gib(machine) == 3


def test_more_used_than_allowed_leaves_nothing(machine: Path) -> None:
    inside(machine, "0::/job")
    group(machine / "sys/fs/cgroup/job", str(2 * GIB), used=3, cached=0)
    assert room.machine_gib(machine) == 0


def test_what_the_preflight_holds_itself_is_not_missing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = room.own_gib()
    held = b"x" * (GIB // 8)
    assert before + 0.12 < room.own_gib() < before + 0.2 and held
    monkeypatch.setattr(fit.room, "machine_gib", lambda: 5.0)
    monkeypatch.setattr(fit.room, "own_gib", lambda: 1.0)
    launcher = Launcher(kind="local", workers=1, nodes=1, address="")
    assert fit.available_gib(train(), launcher, 1, gpu=False) == 6
    assert (
        fit.available_gib(train(), replace(launcher, kind="torchrun", workers=2), 1, gpu=False) == 3
    )


def free_on(monkeypatch: pytest.MonkeyPatch, *readings: tuple[float, float]) -> None:
    """GPUs of 80 GiB, of which `readings` are free at each look: of GPU 0 and of GPU 1."""
    import torch

    looks = [reading for pair in readings for reading in pair]
    monkeypatch.setattr(
        torch.cuda,
        "mem_get_info",
        lambda number: (int((looks.pop(0) if len(looks) > 2 else looks[number]) * GIB), 80 * GIB),
    )
    monkeypatch.setattr(room.time, "sleep", lambda seconds: None)


def test_what_others_hold_of_a_gpu_is_not_there_and_our_own_context_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_on(monkeypatch, (79.5, 30.0))
    assert room.gpu_gib(1, wanted_gib=5) == 80
    assert room.gpu_gib(2, wanted_gib=5) == pytest.approx(30 + memory.PROCESS_GPU)


def test_a_gpu_without_room_for_a_context_has_nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    looks = [torch.OutOfMemoryError("CUDA error: out of memory"), None]

    def info(number: int) -> tuple[int, int]:
        if error := looks.pop(0) if len(looks) > 1 else looks[0]:
            raise error
        return 70 * GIB, 80 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    monkeypatch.setattr(room.time, "sleep", lambda seconds: None)
    assert room.gpu_gib(1, wanted_gib=5) > 70, "a server that filled it has gone meanwhile"
    looks[:] = [RuntimeError("CUDA error: out of memory")]
    assert room.gpu_gib(1, wanted_gib=5, patience_s=0) == 0, "refused in our words"


def test_a_server_that_is_about_to_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    free_on(monkeypatch, (79.5, 8.0), (79.5, 8.0), (79.5, 79.5))
    assert room.gpu_gib(2, wanted_gib=40) == 80
    free_on(monkeypatch, (79.5, 8.0))
    assert room.gpu_gib(2, wanted_gib=40, patience_s=0) == pytest.approx(8 + memory.PROCESS_GPU), (
        "and refused where it does not"
    )
