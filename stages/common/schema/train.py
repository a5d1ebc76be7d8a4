"""Training, and how it is started."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.schema.rules import choice, number


@dataclass
class Train:
    """Fine-tuning by LLaMA-Factory; names are its own where they are unambiguous."""

    name: str = MISSING
    stage: str = choice("sft")
    finetuning_type: str = choice("lora")
    learning_rate: float = number(above=0, high=1, unit="per step")
    num_train_epochs: float = number(above=0, high=1000, unit="epochs")
    max_steps: int = number(low=-1, unit="steps")
    per_device_train_batch_size: int = number(low=1, unit="rows")
    gradient_accumulation_steps: int = number(low=1, unit="batches")
    cutoff_len: int = number(low=8, unit="tokens")
    lora_rank: int = number(low=1, high=1024)
    lora_alpha: int = number(low=1)
    lora_dropout: float = number(low=0, high=0.99)
    lora_target: str = MISSING
    lr_scheduler_type: str = MISSING
    warmup_ratio: float = number(low=0, high=1)
    weight_decay: float = number(low=0, high=1)
    seed: int = number(low=0)
    precision: str = choice("bf16", "fp16", "fp32")
    gradient_checkpointing: bool = MISSING
    device: str = choice("auto", "cpu")
    logging_steps: int = number(low=1, unit="steps")


@dataclass
class Launcher:
    """How training is started."""

    name: str = MISSING
    kind: str = choice("local")
    timeout_h: float = number(above=0, unit="hours")
