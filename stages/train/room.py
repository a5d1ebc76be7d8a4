"""How much memory there is for a training: what the machine, the control groups above this process
and other processes leave of it.
"""

from __future__ import annotations

import time

from stages.common.machine import machine_gib as machine_gib
from stages.common.schema import Launcher, Train
from stages.train.known import refuse
from stages.train.memory import GIB, PROCESS_GPU, Shape, loading_gib

_PATIENCE_S = 15.0
"""For memory of a GPU that is about to be free: a server that the run shared ends when training
begins.
"""


def own_gib() -> float:
    """What this process holds by itself, without the files that it maps: the preflight trains
    later, or ends before training begins, and the estimate counts a process with its libraries.
    """
    import psutil

    held = psutil.Process().memory_info()
    return float(held.rss - getattr(held, "shared", held.rss)) / GIB


def check_loading(size: Shape, train: Train, launcher: Launcher, processes: int) -> None:
    """Refuse FSDP if this machine's memory cannot hold the model once for each of its `processes`,
    as it is while it is loaded.
    """
    if train.parallel != "fsdp" or (launcher.kind == "ray" and launcher.address):
        return
    needed, free = processes * loading_gib(size, train), machine_gib() + own_gib()
    if needed > free:
        what = (
            f"{processes} processes load the model into {needed:.1f} GiB of the machine's memory,"
            f" {free:.1f} GiB are free"
        )
        fix = (
            "train.parallel=zero3, which maps one copy for all of them, or fewer processes"
            " (launcher.workers)"
        )
        raise refuse(what, "train.parallel", fix)


def gpu_gib(count: int, wanted_gib: float, patience_s: float = _PATIENCE_S) -> float:
    """What other processes leave free on that GPU of `count` that has least; waits a little where
    it is less than `wanted_gib`.

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
            return float(least)
        time.sleep(0.5)
