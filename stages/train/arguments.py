"""The LLaMA-Factory configuration of a `train` section."""

from __future__ import annotations

import math
from typing import Any

from stages.common.schema import Launcher, Train

DATASET = "train"
EVAL_DATASET = "eval"
"""The names of our rows in data/train/dataset_info.json."""

_SAME_NAME = (
    "stage",
    "finetuning_type",
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "cutoff_len",
    "optim",
    "lr_scheduler_type",
    "warmup_ratio",
    "weight_decay",
    "max_grad_norm",
    "seed",
    "logging_steps",
)
_OF_METHOD = {
    "lora": (
        "lora_rank",
        "lora_alpha",
        "lora_dropout",
        "lora_target",
        "additional_target",
        "use_rslora",
        "use_dora",
        "pissa_init",
    ),
    "oft": ("oft_block_size", "additional_target"),
    "freeze": ("freeze_trainable_layers",),
    "full": (),
}
_OF_STAGE = {
    "dpo": ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma"),
    "kto": ("pref_beta", "kto_chosen_weight", "kto_rejected_weight"),
}
_NEUTRAL = {"", False}
"""Of the keys below, these values mean that the key is not given: LLaMA-Factory's own default is
then the same or None.
"""
_WHERE_SET = (
    "template",
    "packing",
    "quantization_bit",
    "neftune_noise_alpha",
    "label_smoothing_factor",
)

DECIDES_OTHERS = {
    "name",
    "precision",
    "gradient_checkpointing",
    "parallel",
    "device",
    "eval_strategy",
    "eval_steps",
    "micro_steps",
    "extra",
}
"""Fields of Train that are no argument of LLaMA-Factory's under that name."""

_TOKENS = (
    "add them to the base's tokenizer, which is the one that serves; then set"
    " train.extra.resize_vocab=true and train.additional_target=embed_tokens,lm_head"
)
SYSTEM = {
    "output_dir": "the result goes to models/adapter",
    "overwrite_output_dir": "",
    "model_name_or_path": "choose the base by conf/model/",
    "dataset": "rows come from data/train, chosen by conf/data/",
    "eval_dataset": "set data.eval_fraction",
    "dataset_dir": "",
    "val_size": "set data.eval_fraction",
    "do_train": "",
    "do_eval": "",
    "do_predict": "",
    "report_to": "MLflow has the stage track",
    "run_name": "",
    "logging_dir": "",
    "save_strategy": "set launcher.checkpoint_steps",
    "save_steps": "set launcher.checkpoint_steps",
    "save_total_limit": "",
    "save_only_model": "a checkpoint without its optimizer cannot be resumed",
    "resume_from_checkpoint": "",
    "ignore_data_skip": "a resumed run must see the same rows in the same order",
    "logging_nan_inf_filter": "",
    "push_to_hub": "",
    "bf16": "set train.precision",
    "fp16": "set train.precision",
    "use_cpu": "set train.device",
    "deepspeed": "set train.parallel",
    "fsdp": "set train.parallel",
    "fsdp_config": "set train.parallel",
    "disable_gradient_checkpointing": "set train.gradient_checkpointing",
    "gradient_checkpointing": "set train.gradient_checkpointing",
    "overwrite_cache": "",
    "tokenized_path": "",
    "plot_loss": "",
    "include_num_input_tokens_seen": "",
    "use_swanlab": "",
    "pissa_convert": "",
    "ddp_backend": "",
    "local_rank": "",
    "use_mca": "",
    "ray_num_workers": "set launcher.workers",
    "ray_init_kwargs": "set launcher.address",
    "master_addr": "set launcher.master_addr",
    "master_port": "set launcher.master_port",
    "per_device_eval_batch_size": "it is that of training",
    "auto_find_batch_size": (
        "set train.per_device_train_batch_size: a result must not depend on the memory that happens"
        " to be free"
    ),
    "add_tokens": _TOKENS,
    "add_special_tokens": _TOKENS,
    "new_special_tokens_config": _TOKENS,
    "trust_remote_code": (
        "code that comes with a model is never run; choose a base that transformers knows by itself"
    ),
    "adapter_name_or_path": "merge it and choose the result by conf/model/",
    "predict_with_generate": "evaluation is a stage of its own",
}
"""Arguments that are ours to set, and what to do instead."""

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "warmup_proportion": "warmup_ratio",
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "max_seq_length": "cutoff_len",
    "max_source_length": "cutoff_len",
    "lr_scheduler": "lr_scheduler_type",
    "dpo_beta": "pref_beta",
    "dpo_loss": "pref_loss",
    "dpo_ftx": "pref_ftx",
    "sft_packing": "packing",
    "neft_alpha": "neftune_noise_alpha",
    "neftune_alpha": "neftune_noise_alpha",
    "name_module_trainable": "freeze_trainable_modules",
    "num_layer_trainable": "freeze_trainable_layers",
    "lora_r": "lora_rank",
    "r": "lora_rank",
    "target_modules": "lora_target",
    "modules_to_save": "additional_target",
    "dora": "use_dora",
    "rslora": "use_rslora",
    "group_by_length": "train_sampling_strategy",
    "torch_dtype": "infer_dtype",
    "quantization": "quantization_bit",
}
"""Former names, and those of other trainers: the present name."""

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",  # with these two, LLaMA-Factory's gradient checkpointing is not re-entrant
    # else each process loads the whole model onto its own GPU
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",  # else the saved model is a shard of each process
}
"""Environment of a training under FSDP. The model is loaded before the trainer's own settings for
FSDP take effect.
"""


def arguments(
    train: Train,
    *,
    model: str,
    data: str,
    output: str,
    use_cpu: bool,
    has_eval: bool = False,
    checkpoint_steps: int = 0,
    distributed: bool = False,
    rows: int = 0,
    processes: int = 1,
    template: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What LLaMA-Factory's `run_exp` is given. The keys that decide where things go are ours and
    cannot be set in conf/.

    Where no template is named, LLaMA-Factory takes the model's own chat template, which is what it
    is served with.

    Args:
        rows: of data/train, 0 where they are not known.
        template: the arguments of the chat template when the model is asked (evaluate.template).
    """
    config: dict[str, Any] = {
        name: getattr(train, name) for name in (*_SAME_NAME, *_OF_METHOD[train.finetuning_type])
    }
    config |= {
        name: getattr(train, name) for name in (*_WHERE_SET, *_OF_STAGE.get(train.stage, ()))
    }
    for name in ("additional_target", "use_rslora", "use_dora", "pissa_init", *_WHERE_SET):
        if config.get(name) in _NEUTRAL:
            config.pop(name, None)
    if config.get("pissa_init"):
        # the base that serves it is the plain one, so the adapter must be a plain one
        config["pissa_convert"] = True
    config |= {
        "model_name_or_path": model,
        "dataset_dir": data,
        "dataset": DATASET,
        "output_dir": output,
        "do_train": True,
        "overwrite_output_dir": True,
        "overwrite_cache": True,
        "report_to": "none",
        "plot_loss": False,
        "include_num_input_tokens_seen": "non_padding",
        # on, the trainer logs a mean of earlier losses in place of a NaN
        "logging_nan_inf_filter": False,
        "use_cpu": use_cpu,
        "disable_gradient_checkpointing": not train.gradient_checkpointing,
    }
    config |= (
        saving(train, checkpoint_steps) | evaluating(train, has_eval) | sharding(train.parallel)
    )
    if train.precision != "fp32":
        config[train.precision] = True
    if rows:  # else a short training would log no loss
        config["logging_steps"] = min(train.logging_steps, steps(train, rows, processes))
    if "warmup_steps" in train.extra:
        config.pop("warmup_ratio")  # which the trainer would take instead
    if train.extra.get("neat_packing"):
        # the trainer would add up a mask that holds minus infinity
        config["include_num_input_tokens_seen"] = "no"
    if isinstance((template or {}).get("enable_thinking"), bool):
        config["enable_thinking"] = (template or {})["enable_thinking"]
    if distributed and use_cpu:
        config["ddp_backend"] = "gloo"
    # the trainer then wants to save when it evaluates
    if train.extra.get("load_best_model_at_end") and has_eval:
        config |= {
            "save_strategy": config["eval_strategy"],
            "save_steps": config.get("eval_steps", 500),
        }
    return config | train.extra


def steps(train: Train, rows: int, processes: int) -> int:
    """Optimizer steps of the whole training; of packed rows an upper bound."""
    batch = train.per_device_train_batch_size * train.gradient_accumulation_steps * processes
    return (
        train.max_steps
        if train.max_steps > 0
        else math.ceil(math.ceil(rows / batch) * train.num_train_epochs)
    )


def micro_steps(train: Train, use_cpu: bool) -> int:
    """Steps on the longest rows before the training itself."""
    if train.micro_steps == 0:
        return 0 if use_cpu else 1
    return max(0, train.micro_steps)


def separate(launcher: Launcher) -> bool:
    """Whether torchrun's nodes see no folder in common, so that each has only what its own
    processes save.
    """
    return launcher.nodes > 1 and not launcher.storage


def resumable(train: Train, apart: bool = False) -> bool:
    """Whether a training goes on from a checkpoint: LLaMA-Factory 0.9.5 does not where it trains a
    value head, nor where it will convert a PiSSA adapter, whose starting point it takes from the
    weights that it finds when training begins. And of nodes that are `apart` only that of rank 0
    has checkpoints: the others would start at step 0, with other optimizer states and other rows.
    """
    return train.stage != "rm" and not train.pissa_init and not apart


def saving(train: Train, checkpoint_steps: int) -> dict[str, Any]:
    if not checkpoint_steps or not resumable(train):
        return {"save_strategy": "no"}
    # two: the last may be half-written
    return {"save_strategy": "steps", "save_steps": checkpoint_steps, "save_total_limit": 2}


def evaluating(train: Train, has_eval: bool) -> dict[str, Any]:
    strategy = train.eval_strategy if has_eval else "no"
    if strategy == "no":
        return {}
    strategy = "steps" if strategy == "auto" else strategy
    chosen = {
        "eval_dataset": EVAL_DATASET,
        "eval_strategy": strategy,
        "per_device_eval_batch_size": train.per_device_train_batch_size,
    }
    return chosen | ({"eval_steps": train.eval_steps} if strategy == "steps" else {})


def sharding(parallel: str) -> dict[str, Any]:
    """DeepSpeed's or FSDP's configuration; `auto` values are the trainer's own."""
    if parallel == "none":
        return {}
    if parallel == "fsdp":
        # the trainer overwrites the environment with it
        efficient = {"cpu_ram_efficient_loading": True}
        return {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2, **efficient}}
    zero: dict[str, Any] = {
        "stage": int(parallel[-1]),
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
    }
    if parallel == "zero3":
        zero |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            # else the saved model is a shard of each process
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    names = (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    )
    precision = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return {"deepspeed": {name: "auto" for name in names} | precision | {"zero_optimization": zero}}
