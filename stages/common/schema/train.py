"""Training, and how it is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.rules import aside, checks, choice, number


@dataclass
class Train:
    """Fine-tuning by LLaMA-Factory; names are its own where they are unambiguous.

    Attributes:
        template: a template of LLaMA-Factory; empty: the tokenizer's own chat template, which is
            what the model is served with.
        lora_target, additional_target: module names with commas between them; `all` linear layers;
            empty: no further modules.
        quantization_bit: 0 (not quantised), 4 or 8.
        freeze_trainable_layers: the last n layers, or the first -n.
        neftune_noise_alpha, label_smoothing_factor: 0 switches off.
        eval_strategy: auto is `steps` where data/train has an eval set, else `no`.
        eval_steps: below 1 a share of all steps.
        pref_*, simpo_gamma, kto_*: read by the stages dpo and kto only (ORPO and SimPO are losses
            of dpo).
        parallel: how parameters, gradients and optimizer state are spread over the processes of the
            launcher.
        device: auto is the GPU where there is one.
        micro_steps: steps on the longest rows before the run itself; 0: one on a GPU, none on a
            CPU; -1: none.
        extra: any other argument of LLaMA-Factory's, by its own name.
    """

    name: str = aside()
    stage: str = choice("sft", "pt", "rm", "dpo", "kto")
    finetuning_type: str = choice("lora", "oft", "freeze", "full")
    learning_rate: float = number(above=0, high=1, unit="per step")
    num_train_epochs: float = number(above=0, high=1000, unit="epochs")
    max_steps: int = number(low=-1, unit="steps")
    per_device_train_batch_size: int = number(low=1, unit="rows")
    gradient_accumulation_steps: int = number(low=1, unit="batches")
    cutoff_len: int = number(low=8, unit="tokens")
    packing: bool = MISSING
    template: str = MISSING
    lora_rank: int = number(low=1, high=1024)
    lora_alpha: int = number(low=1)
    lora_dropout: float = number(low=0, high=0.99)
    lora_target: str = MISSING
    additional_target: str = MISSING
    use_rslora: bool = MISSING
    use_dora: bool = MISSING
    pissa_init: bool = MISSING
    oft_block_size: int = number(low=1)
    freeze_trainable_layers: int = number()
    quantization_bit: int = number(low=0, high=8, unit="bits")
    optim: str = MISSING
    lr_scheduler_type: str = MISSING
    warmup_ratio: float = number(low=0, high=1)
    weight_decay: float = number(low=0, high=1)
    max_grad_norm: float = number(low=0)
    neftune_noise_alpha: float = number(low=0)
    label_smoothing_factor: float = number(low=0, high=0.99)
    pref_loss: str = choice("sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo")
    pref_beta: float = number(above=0)
    pref_ftx: float = number(low=0)
    simpo_gamma: float = number(low=0)
    kto_chosen_weight: float = number(low=0)
    kto_rejected_weight: float = number(low=0)
    seed: int = number(low=0)
    precision: str = choice("bf16", "fp16", "fp32")
    gradient_checkpointing: bool = MISSING
    parallel: str = choice("none", "zero2", "zero3", "fsdp")
    device: str = choice("auto", "cpu")
    eval_strategy: str = choice("auto", "no", "steps", "epoch")
    eval_steps: float = number(above=0, unit="steps, or below 1 a share of them")
    logging_steps: int = number(low=1, unit="steps", shapes=False)
    micro_steps: int = number(low=-1, unit="steps")
    extra: dict[str, Any] = field(default_factory=dict)


@checks(Train)
def check_train(train: Train, key: str) -> None:
    if train.quantization_bit not in (0, 4, 8):
        raise PawlError(
            f"{key}.quantization_bit is {train.quantization_bit}",
            where=f"{key}.quantization_bit",
            fix="choose 0, 4 or 8",
        )
    if train.freeze_trainable_layers == 0:
        fix = "choose n for the last n layers, -n for the first n"
        raise PawlError(
            f"{key}.freeze_trainable_layers is 0", where=f"{key}.freeze_trainable_layers", fix=fix
        )


@dataclass
class Launcher:
    """How training is started.

    Attributes:
        workers: processes on each node; 0: one for each GPU.
        nodes, node_rank, master_addr, master_port: torchrun on several machines, started on each of
            them (torch's own names).
        address: ray: of a running cluster (host:port, or auto); empty starts one on this machine.
        storage: a folder that all nodes see, for checkpoints; empty: this working tree's .pawl, or
            none on several nodes of torchrun.
        max_failures: ray: how often a failed worker group is started again from its last
            checkpoint.
        checkpoint_steps: a checkpoint that a killed training goes on from, every so many steps
            (seldomer if saving is slow); 0: none.
        timeout_h: a longer training, data stage or evaluation is stopped.
    """

    name: str = aside()
    kind: str = choice("local", "torchrun", "ray")
    workers: int = number(low=0, high=1024, unit="processes on each node")
    nodes: int = number(low=1, high=1024)
    node_rank: int = number(low=0, shapes=False)
    master_addr: str = aside()
    master_port: int = number(low=0, high=65535, shapes=False)
    address: str = aside()
    storage: str = aside()
    max_failures: int = number(low=0, high=100, shapes=False)
    checkpoint_steps: int = number(low=0, unit="steps", shapes=False)
    timeout_h: float = number(above=0, unit="hours", shapes=False)


@checks(Launcher)
def check_launcher(launcher: Launcher, key: str) -> None:
    if launcher.node_rank >= launcher.nodes:
        fix = f"ranks go from 0 to {key}.nodes - 1 = {launcher.nodes - 1}"
        raise PawlError(
            f"{key}.node_rank is {launcher.node_rank}", where=f"{key}.node_rank", fix=fix
        )
    if (
        launcher.nodes > 1
        and launcher.kind == "torchrun"
        and not (launcher.master_addr and launcher.master_port)
    ):
        fix = f"set {key}.master_addr and {key}.master_port, the same on every node"
        raise PawlError(
            f"{key}.nodes is {launcher.nodes}, but the nodes do not know where to meet",
            where=f"{key}.master_addr",
            fix=fix,
        )
