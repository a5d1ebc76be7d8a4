"""What a setting needs that may be absent: a package, a GPU, a model of a certain kind.

LLaMA-Factory and transformers say so after the model is loaded, or warn and train without it.
Packages that LLaMA-Factory's own parser looks for (unsloth, galore_torch, ...) are left to it.
"""

from __future__ import annotations

import importlib.util
import re

from stages.common.schema import Train
from stages.train.known import refuse

_OPTIMIZERS = (
    (r"adamw_torch_[48]bit", "torchao"),
    (r"galore", "galore_torch"),
    (r"apollo", "apollo_torch"),
    (r"\w*lomo$", "lomo_optim"),
    (r"grokadamw", "grokadamw"),
    (r"schedule_free", "schedulefree"),
    (r"stable_adamw", "optimi"),
    (r"adamw_apex", "apex"),
    (r"adamw_anyprecision", "torchdistx"),
    (r"\w*8bit|paged|ademamix|lion|rmsprop_bnb", "bitsandbytes"),
)
"""By the beginning of an optimizer's name, the first that matches
(transformers/trainer_optimizer.py).
"""
_ATTENTION = {"fa2": "flash_attn", "fa3": "flash_attn_interface"}
_FP8 = {"auto": "torchao", "torchao": "torchao", "te": "transformer_engine", "msamp": "msamp"}
_QUANTIZERS = {"bnb": "bitsandbytes", "hqq": "hqq", "eetq": "eetq"}
_SHIPPED = ("bitsandbytes", "liger_kernel")
_LIGER = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4v",
    "granite",
    "llama",
    "llava",
    "mistral",
    "mixtral",
    "mllama",
    "olmo2",
    "paligemma",
    "phi3",
    "qwen2",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "gpt_oss",
)
"""Types of models that LLaMA-Factory 0.9.5 applies Liger to (model/model_utils/liger_kernel.py)."""
_SHIFTED = ("llama",)
"""And shift_attn (extras/constants.py)."""


def check_packages(train: Train, gpu: bool) -> None:
    """Refuse what needs a GPU or a package that is absent. `gpu`: there is one, or a cluster may
    have one.
    """
    if train.quantization_bit:
        package = _QUANTIZERS.get(
            str(train.extra.get("quantization_method", "bnb")), "bitsandbytes"
        )
        _need(
            package,
            gpu,
            "train.quantization_bit",
            "a base in 4 or 8 bits",
            "train=lora, which trains without",
        )
    if package := next(
        (package for pattern, package in _OPTIMIZERS if re.match(pattern, train.optim)), ""
    ):
        fix = "train.optim=adamw_torch_fused, or adafactor for less memory"
        _need(
            package,
            gpu or package != "bitsandbytes",
            "train.optim",
            f"train.optim={train.optim}",
            fix,
        )
    attention = str(train.extra.get("flash_attn", ""))
    if attention in _ATTENTION:
        fix = "leave it out: torch's own attention (sdpa) is then taken"
        _need(_ATTENTION[attention], gpu, "train.extra.flash_attn", f"flash_attn={attention}", fix)
    if train.extra.get("enable_liger_kernel"):
        _need(
            "liger_kernel",
            gpu,
            "train.extra.enable_liger_kernel",
            "enable_liger_kernel",
            "leave it out",
        )
    if train.extra.get("fp8"):
        package = _FP8.get(str(train.extra.get("fp8_backend", "auto")), "torchao")
        _need(package, gpu, "train.extra.fp8", "fp8", "leave it out: train.precision=bf16")
    if train.extra.get("use_unsloth_gc"):
        _offload(train, gpu)


def check_model(train: Train, kind: str) -> None:
    """Refuse what LLaMA-Factory would warn of and train without. `kind`: model_type of the base's
    config.json.
    """
    for name, kinds in (("enable_liger_kernel", _LIGER), ("shift_attn", _SHIFTED)):
        if train.extra.get(name) and kind not in kinds:
            raise refuse(
                f"LLaMA-Factory has no {name} for models of type {kind}",
                f"train.extra.{name}",
                "leave it out",
            )


def _need(package: str, gpu: bool, key: str, what: str, fix: str) -> None:
    if not gpu:
        raise refuse(f"{what} works on a GPU alone", key, fix)
    if importlib.util.find_spec(package) is None:
        how = (
            "run 'make' again, which installs it on Linux"
            if package in _SHIPPED
            else f"install {package}"
        )
        raise refuse(
            f"{what} needs the package {package}, which is not installed", key, f"{fix}; or {how}"
        )


def _offload(train: Train, gpu: bool) -> None:
    key = "train.extra.use_unsloth_gc"
    if not gpu:
        raise refuse(
            "use_unsloth_gc moves what a GPU keeps to the machine's memory, and there is no GPU",
            key,
            "leave it out",
        )
    if not train.gradient_checkpointing:
        raise refuse(
            "use_unsloth_gc is a kind of gradient checkpointing, which is off",
            key,
            "set train.gradient_checkpointing=true",
        )
