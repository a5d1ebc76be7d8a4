"""The NVIDIA GPUs of this machine, as nvidia-smi lists them, and which of them this process may
use. Loads no CUDA.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stages.common.errors import PawlError
from stages.common.files import main_root, write_json

_FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.total",
    "memory.free",
    "driver_version",
    "compute_cap",
    "mig.mode.current",
)
UNTRIED = (
    "not yet run on a GPU by its makers; 'make gpu-check' proves it on this machine in 10 minutes"
)
"""Said by doctor, `--check` and a vLLM server until gpu-check has passed here. Empty, it is said
nowhere.
"""
_WSL = "/usr/lib/wsl/lib/nvidia-smi"
"""Where Windows puts it into WSL 2, which is on the path of no cron job, service or SSH command."""
_PROOF = Path(".pawl/gpu-check.json")
_PATIENCE_S = 20.0
_SPARE_GIB = 1.0
"""Of what is free on a GPU, left over: CUDA takes some for itself before vLLM looks, and a desktop
needs a little more at times.
"""
_FOR_GPUS_ALONE = ("bitsandbytes", "liger_kernel")
DRIVER = (580, 65)
"""The least driver for CUDA 13, which the pinned torch and vLLM are built for (NVIDIA's CUDA 13.0
release notes).
"""
CAPABILITY = (7, 5)
"""The oldest GPU that they hold kernels for (torch.cuda.get_arch_list of 2.15.0: sm_75 and
later).
"""
BFLOAT16 = (8, 0)
"""From here on a GPU computes in bfloat16; older ones emulate it in training, and vLLM refuses
it.
"""


@dataclass(frozen=True)
class Card:
    """A GPU. Memory in GiB; `capability` (0, 0) if the driver does not tell it; `mig`: it is
    divided into instances.
    """

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
        if (0, 0) < _version(self.driver) < DRIVER:
            return (
                f"driver {self.driver} is too old: CUDA 13 needs {'.'.join(map(str, DRIVER))} or"
                " later"
            )
        if (0, 0) < self.capability < CAPABILITY:
            return (
                f"compute capability {_shown(self.capability)} is too old: {_shown(CAPABILITY)} is"
                " the least"
            )
        return ""

    def remark(self) -> str:
        """What to know of a GPU that works, "" if nothing."""
        if (0, 0) < self.capability < BFLOAT16:
            return "no bfloat16 (before Ampere): set train.precision=fp16 and engine.dtype=float16"
        return "divided into instances (MIG): one process uses one of them" if self.mig else ""

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.total_gib:.1f} GiB ({self.free_gib:.1f} free), driver"
            f" {self.driver}"
        )


def cards() -> list[Card]:
    """Every GPU of the machine; empty if there is none or the driver does not answer."""
    if not (smi := shutil.which("nvidia-smi") or shutil.which(_WSL)):
        return []
    query = [smi, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(
            query,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in found.stdout.splitlines()]
    return [_card(row) for row in rows if len(row) == len(_FIELDS) and row[0].isdecimal()]


def _card(row: list[str]) -> Card:
    index, uuid, name, total, free, driver, capability, mig = row
    return Card(
        int(index),
        uuid,
        name,
        _gib(total),
        _gib(free),
        driver,
        _version(capability),
        mig == "Enabled",
    )


def _gib(mib: str) -> float:
    return float(mib) / 1024 if mib.replace(".", "", 1).isdecimal() else 0.0


def _version(text: str) -> tuple[int, int]:
    major, minor = (*text.split("."), "", "")[:2]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def visible() -> list[Card]:
    """The GPUs that CUDA shows to this process, in its order: those that CUDA_VISIBLE_DEVICES
    names, by number or UUID, else all.

    CUDA stops at the first name that it does not know, and of a list that names a GPU twice torch
    takes nothing. A MIG instance has a name of its own and
    counts as the GPU that it is part of, with the memory of the whole.
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
        if card in shown:
            return []
        shown.append(card)
    return shown


def remarks(root: Path = Path("/")) -> list[str]:
    """What to know of this machine beside what each card says, a line each: GPUs that Pawl cannot
    use, and traps.
    """
    found = []
    if not cards():
        if (root / "dev/kfd").exists():
            found.append("an AMD GPU is here: Pawl uses NVIDIA GPUs alone, so the CPU computes")
        if (root / "dev/nvidia0").exists() or (root / "proc/driver/nvidia/version").exists():
            found.append(
                "an NVIDIA driver is here, but nvidia-smi is missing or does not answer: the GPU is"
                " not used (a container needs NVIDIA's container toolkit and the capability"
                " 'utility')"
            )
    names = sorted({card.name for card in visible()})
    if len(names) > 1:
        found.append(
            f"GPUs of several kinds are visible ({', '.join(names)}): those with most memory serve,"
            " and a training on several takes all: name those to use in CUDA_VISIBLE_DEVICES"
        )
    return found


def untried() -> str:
    """What to say before a GPU is used: UNTRIED, or "" if gpu-check has passed on GPUs and a driver
    like these.
    """
    try:
        proof = json.loads((main_root() / _PROOF).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return UNTRIED
    return "" if proof == machine() else UNTRIED


def machine() -> dict[str, list[str]]:
    """What a proof by gpu-check holds for: the kinds of GPU here, and their driver."""
    found = cards()
    return {
        "gpus": sorted({card.name for card in found}),
        "drivers": sorted({card.driver for card in found}),
    }


def prove() -> None:
    """Write down that gpu-check has passed on this machine."""
    write_json(main_root() / _PROOF, machine())


def share(wanted: float, taken: Sequence[Card]) -> float:
    """The share of each of these GPUs that vLLM may take: `wanted`, or less if other programs hold
    a part of one now.

    vLLM ends at its start if its share is not free. An instance of a divided GPU has memory of its
    own, which is not known here.

    Raises:
        PawlError: a GPU has no room at all.
    """
    uuids = {card.uuid for card in taken}
    known = [card for card in visible() if card.uuid in uuids and card.total_gib and not card.mig]
    if not known:
        return wanted
    least = min(known, key=lambda card: (card.free_gib - _SPARE_GIB) / card.total_gib)
    room = math.floor(1000 * (least.free_gib - _SPARE_GIB) / least.total_gib) / 1000
    if room <= 0:
        raise PawlError(
            f"other programs hold GPU {least.index}: {least.free_gib:.1f} of its"
            f" {least.total_gib:.1f} GiB are free",
            where=least.name,
            fix="end them (nvidia-smi lists them), or name other GPUs in CUDA_VISIBLE_DEVICES",
        )
    return min(wanted, room)


def _named(name: str, found: list[Card]) -> Card | None:
    if name.isdecimal():
        return next((card for card in found if card.index == int(name)), None)
    if name.startswith("MIG-"):
        return next((replace(card, uuid=name) for card in found if card.mig), None)
    meant = [card for card in found if name and card.uuid.startswith(name)]
    return meant[0] if len(meant) == 1 else None


def usable() -> list[Card]:
    """The visible GPUs that can compute. Of divided ones (MIG) CUDA shows a process a single
    instance, and only without whole ones.

    Raises:
        PawlError: GPUs are visible, and none of them can compute.
    """
    found = visible()
    able = [card for card in found if not card.obstacle()]
    if found and not able:
        raise PawlError(
            f"GPU {found[0].index} ({found[0].name}) cannot be used: {found[0].obstacle()}",
            where="nvidia-smi",
            fix=(
                "update the NVIDIA driver; or compute on the CPU: export CUDA_VISIBLE_DEVICES=''"
                " (training: train.device=cpu)"
            ),
        )
    return [card for card in able if not card.mig] or able[:1]


def alike(found: list[Card]) -> list[Card]:
    """Those of the kind that has most memory: a model is served by equal GPUs, and a small one for
    the display is left alone.
    """
    if not found:
        return []
    largest = max(found, key=lambda card: card.total_gib)
    return [card for card in found if card.name == largest.name]


def hide_gpu_packages() -> None:
    """Make packages for GPUs look absent in this process: on a CPU their import takes 5 s, and
    nothing uses them.
    """
    for name in _FOR_GPUS_ALONE:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
