"""The NVIDIA GPUs of this machine, as nvidia-smi lists them, and which of them this process may use. Loads no CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace

from stages.common.errors import PawlError

_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version", "compute_cap", "mig.mode.current")
_PATIENCE_S = 20.0
DRIVER = (580, 65)
"""The least driver for CUDA 13, which the pinned torch and vLLM are built for (NVIDIA's CUDA 13.0 release notes)."""
CAPABILITY = (7, 5)
"""The oldest GPU that they hold kernels for (torch.cuda.get_arch_list of 2.15.0: sm_75 and later)."""
BFLOAT16 = (8, 0)
"""From here on a GPU computes in bfloat16; older ones emulate it in training, and vLLM refuses it."""


@dataclass(frozen=True)
class Card:
    """A GPU. Memory in GiB; `capability` (0, 0) if the driver does not tell it; `mig`: it is divided into instances."""

    index: int
    uuid: str
    name: str
    total_gib: float
    free_gib: float
    driver: str
    capability: tuple[int, int]
    mig: bool = False

    def obstacle(self) -> str:
        """Why nothing here can compute on this GPU, "" if it can."""
        if _version(self.driver) < DRIVER:
            return f"driver {self.driver} is too old: CUDA 13 needs {'.'.join(map(str, DRIVER))} or later"
        if (0, 0) < self.capability < CAPABILITY:
            return f"compute capability {_shown(self.capability)} is too old: {_shown(CAPABILITY)} is the least"
        return ""

    def remark(self) -> str:
        """What to know of a GPU that works, "" if nothing."""
        if (0, 0) < self.capability < BFLOAT16:
            return "no bfloat16 (before Ampere): set train.precision=fp16 and engine.dtype=float16"
        return "divided into instances (MIG): one process uses one of them" if self.mig else ""

    def __str__(self) -> str:
        return f"{self.name}, {self.total_gib:.1f} GiB ({self.free_gib:.1f} free), driver {self.driver}"


def cards() -> list[Card]:
    """Every GPU of the machine; empty if there is none or the driver does not answer."""
    if not (smi := shutil.which("nvidia-smi")):
        return []
    query = [smi, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in found.stdout.splitlines()]
    return [_card(row) for row in rows if len(row) == len(_FIELDS) and row[0].isdigit()]


def _card(row: list[str]) -> Card:
    index, uuid, name, total, free, driver, capability, mig = row
    return Card(int(index), uuid, name, _gib(total), _gib(free), driver, _version(capability), mig == "Enabled")


def _gib(mib: str) -> float:
    return float(mib) / 1024 if mib.replace(".", "", 1).isdigit() else 0.0


def _version(text: str) -> tuple[int, int]:
    major, minor = (*text.split("."), "", "")[:2]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def visible() -> list[Card]:
    """The GPUs that CUDA shows to this process, in its order: those that CUDA_VISIBLE_DEVICES names, by number or UUID, else all.

    CUDA stops at the first name that it does not know. A MIG instance has a name of its own and counts as the GPU that it is part of, with
    the memory of the whole.
    """
    found = cards()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    shown: list[Card] = []
    for name in (part.strip() for part in chosen.split(",")):
        card = _named(name, found)
        if card is None:
            break
        shown.append(card)
    return shown


def _named(name: str, found: list[Card]) -> Card | None:
    if name.isdigit():
        return next((card for card in found if card.index == int(name)), None)
    if name.startswith("MIG-"):
        return next((replace(card, uuid=name) for card in found if card.mig), None)
    return next((card for card in found if name and card.uuid.startswith(name)), None)


def usable() -> list[Card]:
    """The visible GPUs that can compute. Of divided ones (MIG) CUDA shows a process a single instance, and only without whole ones.

    Raises:
        PawlError: GPUs are visible, and none of them can compute.
    """
    found = visible()
    able = [card for card in found if not card.obstacle()]
    if found and not able:
        raise PawlError(
            f"GPU {found[0].index} ({found[0].name}) cannot be used: {found[0].obstacle()}",
            where="nvidia-smi",
            fix="update the NVIDIA driver; or compute on the CPU: export CUDA_VISIBLE_DEVICES='' (training: train.device=cpu)",
        )
    return [card for card in able if not card.mig] or able[:1]


def alike(found: list[Card]) -> list[Card]:
    """Those of the kind that has most memory: a model is served by equal GPUs, and a small one for the display is left alone."""
    if not found:
        return []
    largest = max(found, key=lambda card: card.total_gib)
    return [card for card in found if card.name == largest.name]
