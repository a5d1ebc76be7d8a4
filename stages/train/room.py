"""How much memory there is for a training: what the machine, the control groups above this process and other processes leave of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from stages.common.schema import Launcher, Train
from stages.train.known import refuse
from stages.train.memory import GIB, PROCESS_GPU, Shape, loading_gib

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
_V2 = ("memory.max", "memory.current", "inactive_file", "active_file")
_PATIENCE_S = 15.0
"""For memory of a GPU that is about to be free: a server that the run shared ends when training begins."""


def machine_gib(root: Path = Path("/")) -> float:
    """What is available on the machine, or less where a control group (container, batch job, systemd) allows less."""
    import psutil

    return float(min([psutil.virtual_memory().available, *_left(root)])) / GIB


def own_gib() -> float:
    """What this process holds by itself, without the files that it maps: the preflight trains later, or ends before training begins, and
    the estimate counts a process with its libraries."""
    import psutil

    held = psutil.Process().memory_info()
    return float(held.rss - getattr(held, "shared", held.rss)) / GIB


def _left(root: Path) -> Iterator[int]:
    """Bytes that each limited control group above this process has left. Cached files count as used there and are given back when asked,
    also those read more than once (active), as a base model is."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        limit, usage, *cached = _V1 if controllers else _V2
        inside = PurePosixPath(path.strip("/"))
        # a container without a namespace of its own is told the host's path, and finds its group where the root would be
        for part in {base, base / inside, *(base / above for above in inside.parents)}:
            try:
                most, used = int((part / limit).read_text()), int((part / usage).read_text())  # "max" is no number: not limited
                stat = dict(entry.split() for entry in (part / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            yield max(0, most - used + sum(int(stat.get(name, 0)) for name in cached))


def check_loading(size: Shape, train: Train, launcher: Launcher, processes: int) -> None:
    """Refuse FSDP if this machine's memory cannot hold the model once for each of its `processes`, as it is while it is loaded."""
    if train.parallel != "fsdp" or (launcher.kind == "ray" and launcher.address):
        return
    needed, free = processes * loading_gib(size, train), machine_gib() + own_gib()
    if needed > free:
        what = f"{processes} processes load the model into {needed:.1f} GiB of the machine's memory, {free:.1f} GiB are free"
        fix = "train.parallel=zero3, which maps one copy for all of them, or fewer processes (launcher.workers)"
        raise refuse(what, "train.parallel", fix)


def gpu_gib(count: int, wanted_gib: float, patience_s: float = _PATIENCE_S) -> float:
    """What other processes leave free on that GPU of `count` that has least; waits a little where it is less than `wanted_gib`.

    To ask takes a CUDA context, which the estimate counts as the process: it is counted as free.
    """
    import torch

    until = time.monotonic() + patience_s
    while True:
        try:
            found = [torch.cuda.mem_get_info(number) for number in range(count)]
            least = min(min(total / GIB, free / GIB + PROCESS_GPU) for free, total in found)
        except RuntimeError:  # not even room for a context
            least = 0.0
        if least >= wanted_gib or time.monotonic() > until:
            return least
        time.sleep(0.5)
