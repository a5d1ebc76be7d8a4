"""Machines with GPUs that this one is not: a stand-in for nvidia-smi, first on the path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from stages.common import lease


@dataclass(frozen=True)
class Gpu:
    """What nvidia-smi tells of a GPU; memory in MiB."""

    name: str
    total: int
    free: int
    driver: str = "580.82.07"
    capability: str = "9.0"
    mig: str = "Disabled"


RTX4090 = Gpu("NVIDIA GeForce RTX 4090", 24564, 24100, capability="8.9")
BUSY4090 = Gpu("NVIDIA GeForce RTX 4090", 24564, 900, capability="8.9")
H100 = Gpu("NVIDIA H100 80GB HBM3", 81559, 81000)
DIVIDED = Gpu("NVIDIA H100 80GB HBM3", 81559, 81000, mig="Enabled")
OLD_DRIVER = Gpu("NVIDIA GeForce RTX 4090", 24564, 24100, driver="550.90.07", capability="8.9")
TURING = Gpu("Tesla T4", 15360, 15000, capability="7.5")
VOLTA = Gpu("Tesla V100-SXM2-32GB", 32768, 32000, capability="7.0")
MACHINES: dict[str, list[Gpu]] = {
    "1 x 24 GB": [RTX4090],
    "1 x 80 GB": [H100],
    "2 x 24 GB, one busy": [BUSY4090, RTX4090],
    "8 x 80 GB": [H100] * 8,
    "MIG": [DIVIDED],
    "no driver": [],
    "old driver": [OLD_DRIVER],
    "Turing": [TURING],
}

Make = Callable[..., None]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A function that makes this machine one with these GPUs; none: the driver does not answer."""
    tool, listed = folder / "nvidia-smi", folder / "nvidia-smi.lines"

    def make(*gpus: Gpu, lines: list[str] | None = None, code: int = 0) -> None:
        told = lines
        if told is None:
            rows = ((k, f"GPU-{k:08d}-aaaa", *astuple(gpu)) for k, gpu in enumerate(gpus))
            told = [", ".join(map(str, row)) for row in rows]
        listed.write_text("".join(f"{line}\n" for line in told))
        tool.write_text(f"#!/bin/sh\n/bin/cat {listed}\nexit {code if told else 9}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(lease, "main_root", lambda: folder)
    return make
