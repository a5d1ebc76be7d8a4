"""A stand-in for torch.cuda: it shows the GPUs that the stand-in for nvidia-smi lists and
CUDA_VISIBLE_DEVICES leaves. Computes nothing.

python -m tests.fake_cuda MODULE [ARGUMENT ...]          runs a module on that machine
"""

from __future__ import annotations

import functools
import runpy
import sys
from types import SimpleNamespace
from typing import Any

from stages.common import gpus

GIB = 2**30


@functools.cache  # as CUDA, which reads its environment once
def seen() -> tuple[gpus.Card, ...]:
    return tuple(card for card in gpus.visible() if not card.obstacle())


def install() -> None:
    import torch

    cuda: Any = torch.cuda
    cuda.device_count = lambda: len(seen())
    cuda.is_available = lambda: bool(seen())
    cuda.set_device = lambda device: None
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda device=0: card(device).capability
    cuda.is_bf16_supported = lambda including_emulation=True: (
        including_emulation or card(0).capability >= gpus.BFLOAT16
    )
    cuda.mem_get_info = lambda device=0: (
        int(card(device).free_gib * GIB),
        int(card(device).total_gib * GIB),
    )
    cuda.get_device_name = lambda device=0: card(device).name
    cuda.get_device_properties = lambda device=0: SimpleNamespace(
        name=card(device).name,
        major=card(device).capability[0],
        minor=card(device).capability[1],
        total_memory=int(card(device).total_gib * GIB),
        multi_processor_count=100,
    )
    start = torch.distributed.init_process_group
    # NCCL would compute
    torch.distributed.init_process_group = lambda backend=None, **given: start(
        backend="gloo", **given
    )


def card(device: Any) -> gpus.Card:
    number = getattr(device, "index", device)
    return seen()[number or 0]


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
