"""What cannot go together, by name and without importing anything: refused before LLaMA-Factory has
to say so in its own words.
"""

from __future__ import annotations

import importlib.util

from stages.common.schema import Launcher, Train
from stages.train.known import refuse
from stages.train.packages import check_packages

_VLLM_RANK = 512
"""The largest --max-lora-rank that vLLM can be started with (vllm/config/lora.py)."""


def check_combinations(train: Train, launcher: Launcher, engine: str, gpus: int) -> list[str]:
    """Refuse combinations that cannot work, in a fixed order; returns warnings about those that
    cost something.

    Args:
        engine: kind of the engine that will serve the result.
        gpus: that this machine may use.
    """
    for check in (_methods, _stages, _sharded, _parallel, _hardware):
        check(train, launcher, gpus)
    return _serving(train, engine)


def _methods(train: Train, launcher: Launcher, gpus: int) -> None:
    kind = train.finetuning_type
    if train.quantization_bit and kind not in ("lora", "oft"):
        fix = "train an adapter (train=qlora), or set train.quantization_bit=0"
        raise refuse(
            f"a base in {train.quantization_bit} bits cannot be trained by {kind}",
            "train.quantization_bit",
            fix,
        )
    if kind == "lora" and not train.lora_target.strip(" ,"):
        raise refuse(
            "no module gets an adapter",
            "train.lora_target",
            "train.lora_target=all, or names such as q_proj,v_proj",
        )
    for name in ("use_dora", "use_rslora", "pissa_init", "additional_target"):
        if (
            getattr(train, name)
            and kind != "lora"
            and not (kind == "oft" and name == "additional_target")
        ):
            raise refuse(
                f"train.{name} belongs to LoRA, train.finetuning_type is {kind}",
                f"train.{name}",
                f"unset it, or train=lora {name}",
            )
    if train.pissa_init and train.quantization_bit:
        raise refuse(
            "PiSSA splits the base's weights, which a quantised base does not have",
            "train.pissa_init",
            "train=qlora without it",
        )
    if train.pissa_init and (
        train.stage == "kto" or (train.stage == "dpo" and train.pref_loss not in ("orpo", "simpo"))
    ):
        fix = "train.pissa_init=false, or train.pref_loss=orpo, which has no reference"
        raise refuse(
            "PiSSA changes the base, which is the reference of this loss", "train.pissa_init", fix
        )
    if train.pissa_init and train.use_dora:
        raise refuse(
            "PiSSA's conversion knows no magnitudes",
            "train.use_dora",
            "choose one: train=pissa or train=dora",
        )
    if train.extra.get("load_best_model_at_end") and train.eval_strategy == "no":
        raise refuse(
            "the best model is chosen by the eval loss, which is off",
            "train.eval_strategy",
            "train.eval_strategy=auto",
        )


def _stages(train: Train, launcher: Launcher, gpus: int) -> None:
    if train.packing and train.stage not in ("sft", "pt"):
        raise refuse(
            f"packing joins rows, which the loss of {train.stage} compares",
            "train.packing",
            "train.packing=false",
        )
    if train.extra.get("neat_packing") and train.stage != "sft":
        raise refuse(
            "neat_packing is for supervised rows",
            "train.extra.neat_packing",
            "leave it out, or train.stage=sft",
        )
    if train.stage == "kto" and train.per_device_train_batch_size < 2:
        fix = "raise it to 2 or more (8 is usual), and lower train.gradient_accumulation_steps"
        raise refuse(
            "KTO compares the rows of a batch with one another",
            "train.per_device_train_batch_size",
            fix,
        )
    if (
        train.stage == "dpo"
        and train.extra.get("dpo_label_smoothing")
        and train.pref_loss != "sigmoid"
    ):
        raise refuse(
            "dpo_label_smoothing is of the sigmoid loss",
            "train.extra.dpo_label_smoothing",
            "leave it out, or train.pref_loss=sigmoid",
        )


def _parallel(train: Train, launcher: Launcher, gpus: int) -> None:
    if train.parallel == "none":
        if launcher.kind == "local" and launcher.workers > 1:
            fix = "launcher=torchrun (or ray) for several processes"
            raise refuse(
                f"launcher.workers is {launcher.workers}, but launcher.kind is local: one process",
                "launcher.workers",
                fix,
            )
        return
    if launcher.kind == "local":
        raise refuse(
            f"train.parallel is {train.parallel}, which spreads a model over processes",
            "launcher.kind",
            "launcher=torchrun (or ray)",
        )
    if train.parallel.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        fix = "make deepspeed-env, or train.parallel=fsdp, which needs nothing more"
        raise refuse(
            f"train.parallel is {train.parallel}, but the package deepspeed is not installed",
            "train.parallel",
            fix,
        )


def _sharded(train: Train, launcher: Launcher, gpus: int) -> None:
    if train.parallel in ("zero3", "fsdp"):
        if train.pissa_init:
            fix = "train.parallel=zero2 (or none), or train.pissa_init=false"
            raise refuse(
                f"PiSSA needs whole matrices, {train.parallel} leaves a part of each in each"
                " process",
                "train.pissa_init",
                fix,
            )
        if train.quantization_bit:
            fix = (
                "train.parallel=none (each GPU holds a copy of the base), or zero2; or train=lora"
                " without quantization"
            )
            raise refuse(
                f"a base in {train.quantization_bit} bits cannot be sharded by {train.parallel}",
                "train.quantization_bit",
                fix,
            )
        if train.extra.get("pure_bf16") and train.parallel == "zero3":
            raise refuse(
                "pure_bf16 is incompatible with zero3", "train.extra.pure_bf16", "leave it out"
            )


def _hardware(train: Train, launcher: Launcher, gpus: int) -> None:
    here = launcher.kind != "ray"  # a Ray cluster has its own machines
    check_packages(train, gpu=bool(gpus) or not here)
    if train.precision == "fp16" and here and not gpus:
        raise refuse("fp16 trains on GPUs only", "train.precision", "train.precision=bf16")
    if train.extra.get("pure_bf16") and here and not gpus:
        raise refuse(
            "pure_bf16 trains on GPUs only",
            "train.extra.pure_bf16",
            "leave it out: train.precision=bf16 keeps float32 copies",
        )
    if launcher.kind == "torchrun" and not launcher.workers and not gpus:
        fix = "set launcher.workers (processes on the CPU), or launcher=local"
        raise refuse(
            "launcher.workers is 0, one for each GPU, and there is no GPU", "launcher.workers", fix
        )


def _serving(train: Train, engine: str) -> list[str]:
    vllm = engine.startswith("vllm")
    if train.finetuning_type == "lora" and vllm:
        # the converted adapter holds the change of both factors
        rank = train.lora_rank * (2 if train.pissa_init else 1)
        if rank > _VLLM_RANK:
            fix = (
                f"lower train.lora_rank{' (PiSSA doubles it)' if train.pissa_init else ''}, or"
                " engine=transformers, which merges"
            )
            raise refuse(
                f"the adapter's rank would be {rank}, vLLM serves {_VLLM_RANK} at most",
                "train.lora_rank",
                fix,
            )
    warnings = []
    named = ""
    if train.use_dora:
        named = "DoRA"
    elif train.additional_target:
        named = "additional_target"
    elif train.finetuning_type == "oft":
        named = "OFT"
    if named and vllm:
        warnings.append(
            f"{named} is not served as an adapter: it is merged into the base before each"
            " evaluation"
        )
    if train.stage == "rm":
        warnings.append("a reward model answers no items: eval_val and eval_test will fail")
    if engine == "external":
        warnings.append("engine.kind is external: whoever runs it must load models/adapter")
    return warnings
