"""The LLaMA-Factory configuration of a `train` section."""

from __future__ import annotations

from typing import Any

from stages.common.schema import Train

DATASET = "train"
"""The name of our rows in data/train/dataset_info.json."""

_SAME_NAME = (
    "stage", "finetuning_type", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "cutoff_len", "lora_rank", "lora_alpha", "lora_dropout", "lora_target",
    "lr_scheduler_type", "warmup_ratio", "weight_decay", "seed", "logging_steps",
)  # fmt: skip


def arguments(train: Train, *, model: str, data: str, output: str, use_cpu: bool) -> dict[str, Any]:
    """What `llamafactory-cli train` is given. The keys that decide where things go are ours and cannot be set in conf/.

    No template is named: LLaMA-Factory then takes the model's own chat template, which is what it is served with.
    """
    config: dict[str, Any] = {name: getattr(train, name) for name in _SAME_NAME}
    config |= {
        "model_name_or_path": model,
        "dataset_dir": data,
        "dataset": DATASET,
        "output_dir": output,
        "do_train": True,
        "overwrite_output_dir": True,
        "overwrite_cache": True,
        "report_to": "none",
        "save_strategy": "no",
        "plot_loss": False,
        "include_num_input_tokens_seen": "non_padding",
        "use_cpu": use_cpu,
        "disable_gradient_checkpointing": not train.gradient_checkpointing,
    }
    if train.precision != "fp32":
        config[train.precision] = True
    return config
