"""Why a server of models ended: the root cause, far above its log's last lines, and what helps."""

from __future__ import annotations

import re
from pathlib import Path

from stages.common.process import tail

_TAIL = 2500
"""Characters of a log's end that fit on one screen."""
_FIRST = re.compile(r"(?:^|\s)(?:\w+\.)*(?:\w*Error|\w*Exception|AssertionError)\b: .+")
_NO_CAUSE = re.compile(
    r"See root cause above|Engine core initialization failed|EngineDeadError", re.IGNORECASE
)
_FIXES = (
    (
        r"less than desired GPU memory utilization",
        "lower engine.gpu_memory_utilization: another program holds a part of the GPU",
    ),
    (
        r"KV cache is needed, which is larger|"
        r"max seq len .* larger than the maximum number of tokens",
        "lower engine.max_model_len",
    ),
    (
        r"driver on your system is too old",
        "update the NVIDIA driver ('make doctor' says which one is needed)",
    ),
    (
        r"no kernel image is available",
        "this GPU is too old for the installed torch: choose engine=transformers",
    ),
    (
        r"Failed to find C compiler|Python\.h: No such file",
        "install a C compiler and Python's headers (gcc, python3-dev): Triton needs them",
    ),
    (
        r"Failed to import Ray|No module named 'ray'",
        "run 'make serve-env' again: a model over several machines needs Ray there",
    ),
    (r"divisible by tensor parallel size|must be divisible by", "set engine.tensor_parallel=auto"),
    (
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError",
        "the GPUs cannot talk to each other: try engine.tensor_parallel=1, or NCCL_P2P_DISABLE=1",
    ),
    (
        r"out of memory|OutOfMemoryError",
        "lower engine.gpu_memory_utilization or engine.max_model_len, or free the GPU",
    ),
    (r"Address already in use", "run it again: another program took the port"),
    (
        r"Failed to infer device type",
        "vLLM sees no GPU: choose engine=vllm_cpu, or 'make serve-env' on the machine with the GPU",
    ),
)


def cause(log: Path) -> tuple[str, str]:
    """The first error of a log that names a cause, and the known fix; "" for what is not found."""
    first = ""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            for line in file:
                line = line.rstrip()[-500:]
                for pattern, fix in _FIXES:
                    if re.search(pattern, line):
                        return line.strip(), fix
                if not first and _FIRST.search(line) and not _NO_CAUSE.search(line):
                    first = line.strip()
    except OSError:
        pass
    return first, ""


def last_words(log: Path) -> tuple[str, str]:
    """What to show of a log, the cause first, and the fix ("" if none is known)."""
    found, fix = cause(log)
    end = tail(log, _TAIL)
    return (f"{found}\n...\n{end}" if found and found not in end else end), fix
