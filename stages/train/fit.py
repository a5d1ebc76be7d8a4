"""Whether a training fits into the memory and onto the disk that it will have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from stages.common.schema import Launcher, Train
from stages.train import memory, room
from stages.train.arguments import resumable, separate
from stages.train.known import refuse


def processes(train: Train, launcher: Launcher) -> int:
    return (launcher.workers or max(1, gpus(train))) * launcher.nodes


def gpus(train: Train) -> int:
    """GPUs that a training on this machine may use."""
    import torch

    return torch.cuda.device_count() if train.device == "auto" else 0


def check_memory(
    model: Any,
    train: Train,
    targets: list[str],
    launcher: Launcher,
    longest: int,
    *,
    gpu: bool,
    free_gib: float | None = None,
    evaluates: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Refuse what cannot fit into one GPU (or this machine); between what fits and what cannot lies
    the estimate's error: a warning.

    PAWL_MEMORY=warn makes a warning of the refusal too.
    """
    size = memory.shape(model, train, targets)
    positions = size.longest
    if positions and train.cutoff_len > positions and not train.extra.get("rope_scaling"):
        fix = f"lower it to {positions} or less, or set train.extra.rope_scaling"
        raise refuse(
            f"train.cutoff_len is {train.cutoff_len}, the model has {positions} positions",
            "train.cutoff_len",
            fix,
        )
    count = processes(train, launcher)
    # the collator pads to a multiple of 8
    tokens = train.cutoff_len if train.packing or train.stage == "pt" else -(-longest // 8) * 8
    parts = memory.estimate(
        size, train, tokens=tokens, processes=count, gpu=gpu, evaluates=evaluates
    )
    total = parts["total"]
    room.check_loading(size, train, launcher, count // launcher.nodes)
    limit = free_gib or available_gib(train, launcher, total, gpu=gpu)
    rank = train.lora_rank * (2 if train.pissa_init else 1)
    need = {
        "per": "GPU" if gpu else "process",
        "estimate_gib": {name: round(value, 3) for name, value in parts.items()},
        "available_gib": None if limit is None else round(limit, 2),
        "relative_error": memory.ERROR,
        "tokens": tokens,
        "processes": count,
        "parameters": size.parameters,
        "trainable_parameters": size.trainable,
        "max_lora_rank": rank,
        "table": []
        if limit is None
        else memory.table(
            model, train, targets, limit, processes=count, gpu=gpu, evaluates=evaluates
        ),
    }
    if limit is None:
        each = "on each GPU" if gpu else "for each process"
        return need, [
            f"training needs about {total:.1f} GiB {each} of the cluster, which cannot be looked at"
            " from here"
        ]
    close = f"memory may be short: about {total:.1f} of {limit:.1f} GiB for each {need['per']}"
    if total > limit * (1 + memory.ERROR) and os.environ.get("PAWL_MEMORY") != "warn":
        what = (
            f"training needs about {total:.1f} GiB for each {need['per']}, {limit:.1f} GiB are free"
        )
        if parts["weights"] + parts["trained"] > limit:
            key, fix = "train.finetuning_type", _smaller(train)
        else:
            key, fix = "train.per_device_train_batch_size", ", or ".join(_ways(train, gpu=gpu))
        raise refuse(
            what, key, f"{fix}. With PAWL_MEMORY=warn in the environment it is tried all the same"
        )
    return need, [close] if total * (1 + memory.ERROR) > limit else []


def _smaller(train: Train) -> str:
    """If weights and optimizer alone do not fit."""
    if train.quantization_bit:
        return "choose a smaller base, or a GPU with more memory"
    return "train an adapter (train=lora, train=qlora), or shard over GPUs (train.parallel=zero3)"


def _ways(train: Train, *, gpu: bool) -> list[str]:
    """To need less memory, those first that change no result much."""
    ways = []
    if train.per_device_train_batch_size > 1:
        ways.append(
            "halve train.per_device_train_batch_size and double train.gradient_accumulation_steps"
        )
    if not train.gradient_checkpointing:
        ways.append("set train.gradient_checkpointing=true")
    if gpu and train.stage in memory.LIGER_STAGES and not train.extra.get("enable_liger_kernel"):
        ways.append(
            "set '+train.extra.enable_liger_kernel=true', which makes the logits piece by piece"
        )
    if gpu and train.finetuning_type == "lora" and not train.quantization_bit:
        ways.append("train=qlora")
    return [*ways, "shorten the rows (train.cutoff_len)"]


def available_gib(
    train: Train, launcher: Launcher, wanted_gib: float, *, gpu: bool
) -> float | None:
    """What is free on that GPU of the training that has least, or what this machine has left for
    each process; None for a cluster.
    """
    if launcher.kind == "ray" and launcher.address:
        return None
    if not gpu:
        return (room.machine_gib() + room.own_gib()) / max(1, launcher.workers)
    # what others hold of the GPUs behind them is no matter
    used = 1 if launcher.kind == "local" else launcher.workers or gpus(train)
    return room.gpu_gib(min(used, gpus(train)), wanted_gib)


def check_disk(
    model: Any, train: Train, targets: list[str], launcher: Launcher, folder: Path
) -> float:
    """Refuse a run whose checkpoints will not fit: two are kept while a third is written, and the
    result comes on top. Returns GiB.
    """
    size = memory.shape(model, train, targets)
    saved = size.parameters if train.finetuning_type in ("full", "freeze") else size.trainable
    one = (saved * 4 + size.trainable * 8) / memory.GIB
    wanted = (
        3 * one if launcher.checkpoint_steps and resumable(train, separate(launcher)) else 0
    ) + 2 * saved * 4 / memory.GIB
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / memory.GIB
    if wanted > free:
        fix = "free some space, or set launcher.checkpoint_steps=0 (a killed run then starts again)"
        raise refuse(
            f"checkpoints and result take {wanted:.1f} GiB, {free:.1f} GiB are free in {place}",
            "launcher.checkpoint_steps",
            fix,
        )
    return round(one, 3)
