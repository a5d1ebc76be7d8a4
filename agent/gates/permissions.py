"""Who may change which parameter: the one list, which `try`, the gate `reach` and Optuna's space
all ask.

Every key of the open sections stands here once, and tests/agent/test_permissions.py compares the
list with the schema: a new parameter without a decision fails there. A section that is not named
here is closed to every experiment.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any

LOOP = "loop"
"""The agent may change it in its loop, and so may a person in `try`."""
PERSON = "person"
"""A person may change it in `try`: it says where things come from, what they cost, how they are run
or told, or it is luck.
"""
HAND = "hand"
"""No experiment changes it: it guards the benchmark from the training data."""

_LLM = (
    "base_url",
    "model",
    "api_key_env",
    "concurrency",
    "timeout_s",
    "retries",
    "price_in",
    "price_out",
)
MAY: dict[str, tuple[str, ...]] = {
    LOOP: (
        "model.repo",
        "model.revision",
        "model.dtype",
        "data.max_rows",
        "data.stratify",
        "data.eval_fraction",
        "data.think_tags",
        "data.near_duplicates",
        *(
            f"data.sources.*.{name}"
            for name in (
                "settings",
                "prompt",
                "count",
                "weight",
                "recipe",
                "tier",
                "candidates",
                "verify",
            )
        ),
        *(
            f"data.teacher.{tier}.{name}"
            for tier in ("strong", "weak")
            for name in ("temperature", "max_output_tokens")
        ),
        *(
            f"train.{name}"
            for name in (
                "stage",
                "finetuning_type",
                "learning_rate",
                "num_train_epochs",
                "max_steps",
                "per_device_train_batch_size",
                "gradient_accumulation_steps",
                "cutoff_len",
                "packing",
                "template",
                "lora_rank",
                "lora_alpha",
                "lora_dropout",
                "lora_target",
                "additional_target",
                "use_rslora",
                "use_dora",
                "pissa_init",
                "oft_block_size",
                "freeze_trainable_layers",
                "quantization_bit",
                "optim",
                "lr_scheduler_type",
                "warmup_ratio",
                "weight_decay",
                "max_grad_norm",
                "neftune_noise_alpha",
                "label_smoothing_factor",
                "pref_loss",
                "pref_beta",
                "pref_ftx",
                "simpo_gamma",
                "kto_chosen_weight",
                "kto_rejected_weight",
                "precision",
                "gradient_checkpointing",
                "extra",
            )
        ),
    ),
    PERSON: (
        "model.name",
        "model.source",
        "model.package",
        "model.sha256",
        "model.file",
        "model.path",
        "model.licence",
        "model.date",
        *(
            f"model.inference.{name}"
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "max_output_tokens",
                "context",
                "think_open",
                "think_close",
                "think_begun",
                "template",
            )
        ),
        "data.name",
        "data.seed",
        "data.filters",
        "data.required_tags",
        "data.languages",
        "data.teacher.max_tokens",
        "data.teacher.max_cost",
        *(
            f"data.sources.*.{name}"
            for name in (
                "kind",
                "task",
                "path",
                "format",
                "columns",
                "repo",
                "subset",
                "revision",
                "split",
                "package",
                "sha256",
                "answers",
                "licence",
                "ignore",
            )
        ),
        *(f"data.teacher.{tier}.{name}" for tier in ("strong", "weak") for name in _LLM),
        "train.name",
        "train.seed",
        "train.parallel",
        "train.device",
        *(
            f"train.{name}"
            for name in ("eval_strategy", "eval_steps", "logging_steps", "micro_steps")
        ),
        *(
            f"launcher.{name}"
            for name in (
                "name",
                "kind",
                "workers",
                "nodes",
                "node_rank",
                "master_addr",
                "master_port",
                "address",
                "storage",
                "max_failures",
                "checkpoint_steps",
                "timeout_h",
            )
        ),
    ),
    HAND: (
        "data.ngram",
        "data.fuzzy",
        "data.max_contamination",
        "data.max_bad_fraction",
        "data.sources.*.part",
    ),
}
OPEN = ("model", "data", "train", "launcher")
"""The sections that an experiment may change; the others measure it, and no experiment may change
what it is measured by.
"""
CLOSED = ("experiment", "benchmark", "engine", "evaluate", "judge", "tracking", "agent")
OPEN_TO_LOOP = tuple(name for name in OPEN if any(key.startswith(f"{name}.") for key in MAY[LOOP]))
"""The sections in which the agent's loop may change something."""

EXTRA = "train.extra."
"""Below this, keys are LLaMA-Factory's and need not be there yet."""
LOOP_EXTRA = (
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "apollo_rank",
    "apollo_scale",
    "apollo_update_interval",
    "asft_alpha",
    "badam_mode",
    "badam_switch_interval",
    "badam_update_ratio",
    "block_diag_attn",
    "dataloader_drop_last",
    "disable_shuffling",
    "double_quantization",
    "dpo_label_smoothing",
    "eaft_alpha",
    "early_stopping_steps",
    "enable_liger_kernel",
    "flash_attn",
    "freeze_extra_modules",
    "freeze_trainable_modules",
    "galore_rank",
    "galore_scale",
    "galore_update_interval",
    "ld_alpha",
    "loraplus_lr_embedding",
    "loraplus_lr_ratio",
    "mask_history",
    "mixture_of_depths",
    "module_dropout",
    "neat_packing",
    "optim_args",
    "pissa_iter",
    "pref_bco_weight",
    "pure_bf16",
    "quantization_method",
    "quantization_type",
    "rope_scaling",
    "shift_attn",
    "train_on_prompt",
    "train_sampling_strategy",
    "upcast_layernorm",
    "upcast_lmhead_output",
    "use_adam_mini",
    "use_apollo",
    "use_asft_loss",
    "use_badam",
    "use_dft_loss",
    "use_eaft_loss",
    "use_galore",
    "use_llama_pro",
    "use_muon",
    "warmup_steps",
)
"""Arguments of LLaMA-Factory that shape how a model learns. The other 300 say where things lie,
what is sent where, what is logged and what runs, and a new version adds more: they are a person's,
unless they stand here.
"""

_READ_IF: dict[str, tuple[str, tuple[str, ...]]] = {
    "model.repo": ("model.source", ("hub",)),
    "model.revision": ("model.source", ("hub",)),
    "model.path": ("model.source", ("path",)),
    "model.package": ("model.source", ("package",)),
    "model.file": ("model.source", ("package",)),
    "train.lora_*": ("train.finetuning_type", ("lora",)),
    "train.use_rslora": ("train.finetuning_type", ("lora",)),
    "train.use_dora": ("train.finetuning_type", ("lora",)),
    "train.pissa_init": ("train.finetuning_type", ("lora",)),
    "train.oft_block_size": ("train.finetuning_type", ("oft",)),
    "train.freeze_trainable_layers": ("train.finetuning_type", ("freeze",)),
    "train.additional_target": ("train.finetuning_type", ("lora", "oft")),
    "train.pref_beta": ("train.stage", ("dpo", "kto")),
    "train.pref_loss": ("train.stage", ("dpo",)),
    "train.pref_ftx": ("train.stage", ("dpo",)),
    "train.simpo_gamma": ("train.pref_loss", ("simpo",)),
    "train.kto_*": ("train.stage", ("kto",)),
    "train.num_train_epochs": ("train.max_steps", ("-1", "0")),
}
"""Keys that decide nothing unless another key has one of these values."""


def who(key: str) -> str:
    """LOOP, PERSON or HAND for a dotted key; "" for one that the list does not hold."""
    if key.startswith(EXTRA):
        return LOOP if key.removeprefix(EXTRA) in LOOP_EXTRA else PERSON
    found = (
        level for level, patterns in MAY.items() for pattern in patterns if _matches(key, pattern)
    )
    return next(found, "")


def _matches(key: str, pattern: str) -> bool:
    """A `*` stands for one name; settings, columns and template hold names of others, one level
    below.
    """
    parts, wanted = key.split("."), pattern.split(".")
    if (
        wanted[-1] in ("settings", "columns", "template")
        and wanted[0] != "train"
        and len(parts) == len(wanted) + 1
    ):
        parts = parts[:-1]
    return len(parts) == len(wanted) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True)
    )


def unread(key: str, params: dict[str, Any]) -> str:
    """Why a key decides nothing under these parameters; "" if it does. With it, an experiment would
    change nothing and yet be recorded.
    """
    for pattern, (decider, values) in _READ_IF.items():
        if (
            fnmatch.fnmatchcase(key, pattern)
            and decider in params
            and str(params[decider]) not in values
        ):
            return f"{key} is not read while {decider} is {params[decider]}"
    parts = key.split(".")
    if key.startswith("data.sources.") and parts[-1] in ("tier", "candidates", "verify"):
        recipe = f"{'.'.join(parts[:-1])}.recipe"
        if recipe in params and not params[recipe]:
            return f"{key} is not read while {recipe} is empty"
    if key.startswith(("data.teacher.strong.", "data.teacher.weak.")):
        sources = {
            name.removesuffix(".recipe")
            for name, value in params.items()
            if name.endswith(".recipe") and value
        }
        if not any(params.get(f"{source}.tier", "strong") == parts[2] for source in sources):
            return f"{key} is not read: no source asks that teacher"
    return ""


_KEEPS_PARTS = ("count", "weight", "prompt", "recipe", "tier", "candidates", "verify", "licence")
"""Of a source, what does not decide which rows lie in its train, val and test parts."""


def moves_a_part(keys: set[str], params: dict[str, Any]) -> str:
    """The changed key by which rows would move between the parts of a source that takes one; ""
    where none does.
    """
    for name, part in params.items():
        source = re.fullmatch(r"(data\.sources\.[^.]+)\.part", name)
        if not source or part not in ("train", "val", "test"):
            continue
        if "data.seed" in keys:
            return "data.seed"
        own = sorted(key for key in keys if key.startswith(f"{source[1]}."))
        if moved := [
            key
            for key in own
            if key.removeprefix(f"{source[1]}.").split(".")[0] not in _KEEPS_PARTS
        ]:
            return moved[0]
    return ""
