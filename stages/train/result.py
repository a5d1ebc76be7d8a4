"""What a training leaves in models/adapter: an adapter, or a whole model, and the figures of the
run.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import fresh_folder, sha256_file, sha256_text, write_json
from stages.common.reports.training import TrainReport
from stages.common.schema import Train
from stages.train import log
from stages.train.launch import LOG, Run
from stages.train.losses import summarize

_WHOLE = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "value_head.safetensors",
)
_PEAK_TFLOPS = {
    "H200 NVL": 835,
    "H200": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "A10G": 70,
    "A10": 125,
    "RTX A6000": 155,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "T4": 65,
}
"""Dense 16-bit matrix rates in the makers' data sheets, TFLOP/s, by words of the device's name; the
first that matches. Cards of notebooks share a name and not a rate.
"""


def keep(output: Path, base: Path, target: Path, train: Train, origin: str = "models/base") -> str:
    """Keep what serving needs, in a form that depends on nothing but the training: no times, no
    host, no order of a Python set.

    An adapter has adapter_config.json; anything else is a whole model, with the base's own
    tokenizer and chat template beside it.

    Args:
        origin: what adapter_config.json calls its base: a repository of the hub, or a path in this
            repository, never one of this machine.

    Returns:
        The hash of the weights: of the one file, or of the names and hashes of several.

    Raises:
        PawlError: the trainer left no weights.
    """
    if train.pissa_init:
        output = output / "pissa_converted"
    with fresh_folder(target) as folder:
        if (output / "adapter_config.json").is_file():
            shutil.copyfile(
                output / "adapter_model.safetensors", folder / "adapter_model.safetensors"
            )
            config = json.loads((output / "adapter_config.json").read_text(encoding="utf-8"))
            for name in ("target_modules", "modules_to_save"):
                if isinstance(config.get(name), list):
                    config[name].sort()
            write_json(folder / "adapter_config.json", config | {"base_model_name_or_path": origin})
            if (output / "value_head.safetensors").is_file():
                shutil.copyfile(
                    output / "value_head.safetensors", folder / "value_head.safetensors"
                )
        else:
            for path in sorted(path for pattern in _WHOLE for path in output.glob(pattern)):
                shutil.copyfile(path, folder / path.name)
            for name in ("config.json", "generation_config.json"):
                if (folder / name).is_file():
                    settings = json.loads((folder / name).read_text(encoding="utf-8"))
                    write_json(
                        folder / name,
                        {
                            key: value
                            for key, value in settings.items()
                            if not key.endswith("_name_or_path")
                        },
                    )
            for path in _companions(base, folder):
                shutil.copyfile(path, folder / path.name)
        weights = sorted(folder.glob("*.safetensors"))
        if not weights:
            raise PawlError(
                "the trainer left no weights", where=str(output), fix="see .pawl/logs/train.log"
            )
        if len(weights) == 1:
            return sha256_file(weights[0])
        listed = "".join(f"{path.name} {sha256_file(path)}\n" for path in weights)
        return sha256_text(listed)


def _companions(base: Path, folder: Path) -> list[Path]:
    """Tokenizer, template and other small files of the base: what LLaMA-Factory saves of them it
    may have changed for training.
    """
    small = (".json", ".jinja", ".model", ".txt", ".py")
    own = {path.name for path in folder.iterdir()}
    found = (
        path
        for path in base.iterdir()
        if path.is_file() and path.suffix in small and not path.name.endswith(".index.json")
    )
    return sorted(path for path in found if path.name not in own)


def report(run: Run, state: dict[str, Any], sha256: str) -> TrainReport:
    """reports/train.json of a training, from its trainer's record and the hash of its weights."""
    return TrainReport(**summarize(state), **figures(run, state, sha256))


def figures(run: Run, state: dict[str, Any], sha256: str) -> dict[str, Any]:
    """The part of reports/train.json that is not in the trainer's record.

    Rates are of this attempt (a resumed run measures what it did itself), in tokens that are no
    padding. FLOP are the model's: forward 2 N a token, backward 2 N through all parameters and 2
    for each one that is trained (Kaplan et al. 2020, arXiv:2001.08361, with the weight gradients of
    frozen parameters left out; recomputed activations are not counted). Tokens and rates are None
    if the trainer did not count tokens.
    """
    told = run.figures
    total, trained = told["total_parameters"], told["trainable_parameters"]
    rate = _rate(told)
    flops = rate * (4 * total + 2 * trained) if rate is not None else None
    peak = _peak(told.get("gpu", ""))
    report = {
        "rows": run.preflight["rows"],
        "tokens": None if rate is None else state.get("num_input_tokens_seen") or 0,
        "trainable_parameters": trained,
        "total_parameters": total,
        "adapter_sha256": sha256,
        "processes": told["processes"],
        "runtime_s": round(run.seconds, 1),
        "tokens_per_s": None if rate is None else round(rate, 1),
        "tflop_per_s": None if flops is None else round(flops / 1e12, 4),
        "utilisation": (
            round(flops / 1e12 / peak / told["processes"], 4)
            if peak and flops is not None
            else None
        ),
        "peak_memory_gib": round(run.peak_memory_gib, 2),
        "peak_gpu_memory_gib": round(told["peak_gpu_memory_gib"], 2) if "gpu" in told else None,
        "estimated_memory_gib": round(run.preflight["memory"]["estimate_gib"]["total"], 2),
    }
    norms = [
        float(entry["grad_norm"])
        for entry in state.get("log_history", [])
        if entry.get("grad_norm") is not None
    ]
    if norms and all(map(math.isfinite, norms)):
        report |= {"highest_grad_norm": round(max(norms), 4), "last_grad_norm": round(norms[-1], 4)}
    report["warnings"] = [*run.preflight["warnings"], *log.warnings(LOG)]
    return report | (
        {"resumed_from_step": told["resumed_from_step"]} if told["resumed_from_step"] else {}
    )


def _rate(told: dict[str, Any]) -> float | None:
    """Tokens a second, None if they were not counted."""
    if told["tokens"] is None:
        return None
    return float(told["tokens"] / told["seconds"]) if told["seconds"] else 0.0


def _peak(gpu: str) -> int | None:
    if "Laptop" in gpu:
        return None
    return next(
        (
            rate
            for name, rate in _PEAK_TFLOPS.items()
            if re.search(rf"\b{name}\b(?! (?:D|Ti)\b)", gpu)
        ),
        None,
    )
