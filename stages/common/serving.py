"""Whether this machine can serve a model at all, asked before time is spent on training it. Only
refuses, and shapes no result.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from stages.common import placement
from stages.common.gpus import alike, usable

KEYS = tuple(
    f"engine.{name}"
    for name in (
        "kind",
        "dtype",
        "max_model_len",
        "gpu_memory_utilization",
        "tensor_parallel",
        "nodes",
    )
)
"""What it reads of params.yaml."""


def check_serving(engine: Any, model_dir: Path) -> None:
    """Weights, and keys and values of one request, against the GPUs or the memory of this machine.

    A machine without a GPU may train on a cluster's, or check what another will do: evaluation
    refuses engine=vllm there by itself.

    Raises:
        PawlError: the model does not fit.
    """
    gpus = [] if engine.kind in ("external", "vllm_cpu") else alike(usable())
    if engine.kind == "transformers" or gpus:
        asked = copy.copy(engine)
        asked.dtype = placement.precision(engine.dtype, model_dir)
        placement.split(asked, model_dir, gpus)
