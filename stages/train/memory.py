"""How much memory a training needs on each GPU (or on this machine, on a CPU), from the model's
config.json and the method alone.

The parameters are counted on the meta device, where a model of any size costs nothing. What a
process holds at its peak:

    weights       bytes of the precision a parameter (4-bit: 0.53 with NF4's scales, and embeddings,
    head and norms keep the precision);
                  twice if DPO or KTO train whole weights
    trained       a float32 copy (LLaMA-Factory trains in float32), its gradient, and the
    optimizer's state activations   for each token of a batch: every layer's inputs, or with
    gradient checkpointing one vector a layer and one layer whole logits        for each token of a
    batch: the vocabulary, in the precision, in float32 and as gradient; Liger's loss makes them
                  piece by piece, and only an evaluation holds them whole
    allocator     on a GPU: what it holds beyond its tensors
    process       the interpreter with its libraries, or the CUDA context

ZeRO and FSDP divide what they shard by the number of processes; nothing is ever summed over GPUs.
FSDP keeps frozen weights in float32 (accelerate 1.11 casts them). Without sharding several
processes exchange gradients in buckets, which are a second copy of them. The constants were fitted
to peaks measured on a CPU (tests/train/test_memory.py has them and the error), the allocator's
share to what others measured on GPUs (python -m benchmarks.gpu_memory compares the two).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stages.common.schema import Train

GIB = 2**30
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_STATE = {"adafactor": 0.1, "sgd": 0, "lion": 4, "rmsprop": 4}
"""Bytes of optimizer state a parameter, by the beginning of its name; AdamW, the rest, holds two
float32 moments.
"""

# kept for the backward pass by one layer, for each token: so many times the hidden, the attention's
# (q, k, v) and the MLP's width, each of so many bytes. Half precision saves little here: norms keep
# float32 copies, and so does an adapter's branch; DoRA keeps outputs too.
_HIDDEN, _ATTENTION, _MLP = 5, 1, 4
_KEPT_BYTES, _KEPT_BYTES_WHOLE, _DORA_BYTES = 4.0, 3.2, 5.0
# bytes for each token and word of the vocabulary, by the bytes of the precision
_LOGITS = {2: 13.5, 4: 16.0}
_REFERENCE_LOGITS = 9.0  # bytes likewise, for the reference's answer to the same rows
_EVALUATED_LOGITS = 10.0  # bytes likewise, without a gradient
# bytes for each token and hidden unit: a piece of the logits, and the gradient that comes of it
_LIGER_LOGITS = 8.0
# in others LLaMA-Factory asks Liger for whole logits (model/loader.py)
LIGER_STAGES = ("sft", "pt")
_ALLOCATOR_SHARE = 0.08
_PROCESS_CPU, PROCESS_GPU = 1.13, 0.9  # GiB
_FSDP_STORED = 4
ERROR = 0.15
"""What the estimate may be off by. It is within 5 % of the ten peaks that it was fitted to; other
models and GPUs get a margin.
"""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; parameters are counts."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    attention: int
    mlp: int
    vocabulary: int
    longest: int
    unquantized: int
    """Parameters that keep their precision when the base is loaded in 4 or 8 bits: all that are no
    linear layer, and the head.
    """


def meta_model(config: Any) -> Any:
    """The model's modules without their weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def shape(model: Any, train: Train, targets: list[str]) -> Shape:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv = getattr(config, "num_key_value_heads", None) or heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trainable=trainable(model, train, targets),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        attention=(heads + 2 * kv) * width,
        mlp=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        longest=getattr(config, "max_position_embeddings", None) or 0,
        unquantized=unquantized(model),
    )


def unquantized(model: Any) -> int:
    import torch

    head = model.get_output_embeddings()
    linear = (
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    )
    whole: int = sum(parameter.numel() for parameter in model.parameters())
    return int(whole - sum(module.weight.numel() for module in linear))


def trainable(model: Any, train: Train, targets: list[str]) -> int:
    """Parameters that the method trains. `targets`: last names of the modules that get an
    adapter.
    """
    if train.finetuning_type == "full":
        return sum(parameter.numel() for parameter in model.parameters())
    if train.finetuning_type == "freeze":
        layers, chosen = (
            model.config.get_text_config().num_hidden_layers,
            train.freeze_trainable_layers,
        )
        wanted = (
            range(max(0, layers - chosen), layers) if chosen > 0 else range(min(-chosen, layers))
        )
        numbers = (
            (re.search(r"\.(\d+)\.", name), parameter.numel())
            for name, parameter in model.named_parameters()
        )
        return sum(count for found, count in numbers if found and int(found[1]) in wanted)
    extra = [name.strip() for name in train.additional_target.split(",") if name.strip()]
    total = 0
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last in extra:
            total += sum(parameter.numel() for parameter in module.parameters())
        elif last in targets and hasattr(module, "in_features"):
            total += _adapter(module.in_features, module.out_features, train)
    return total


def _adapter(inputs: int, outputs: int, train: Train) -> int:
    if train.finetuning_type == "oft":  # one skew-symmetric matrix for each block of inputs
        return (
            inputs // train.oft_block_size * train.oft_block_size * (train.oft_block_size - 1) // 2
        )
    return train.lora_rank * (inputs + outputs) + (outputs if train.use_dora else 0)


def estimate(
    size: Shape,
    train: Train,
    *,
    tokens: int,
    processes: int = 1,
    gpu: bool = True,
    evaluates: bool = False,
) -> dict[str, float]:
    """GiB at the peak of one process, by what it goes to, and their `total`.

    Args:
        tokens: length of the longest row, after padding.
        evaluates: held-out rows are evaluated meanwhile, in batches of the same size.
    """
    precision = _BYTES[train.precision]
    share_weights = processes if train.parallel in ("zero3", "fsdp") else 1
    share_state = processes if train.parallel != "none" else 1
    second = size.parameters * precision if _is_whole(train) and needs_reference(train) else 0
    copy, gradient, state = _trained_bytes(train)
    buckets = gradient if processes > 1 and train.parallel == "none" else 0
    rows = train.per_device_train_batch_size * (2 if train.stage in ("dpo", "rm", "kto") else 1)
    activations, logits = (
        rows * tokens * _activations(size, train),
        rows * tokens * _logits(size, train),
    )
    if evaluates:  # one layer at a time, and no gradients: what training keeps is not there then
        logits = max(logits, rows * tokens * size.vocabulary * _EVALUATED_LOGITS - activations)
    parts = {
        "weights": (_frozen_bytes(size, train) + second) / share_weights,
        "trained": (
            size.trainable * (copy / share_weights + (gradient + state) / share_state + buckets)
        ),
        "activations": activations,
        "logits": logits,
    }
    parts["allocator"] = sum(parts.values()) * _ALLOCATOR_SHARE if gpu else 0.0
    parts["process"] = (PROCESS_GPU if gpu else _PROCESS_CPU) * GIB
    return {name: value / GIB for name, value in (parts | {"total": sum(parts.values())}).items()}


def _is_whole(train: Train) -> bool:
    return train.finetuning_type in ("full", "freeze")


def _frozen_bytes(size: Shape, train: Train) -> float:
    frozen, precision = frozen_parameters(size, train), _BYTES[train.precision]
    if train.quantization_bit:
        return (
            size.unquantized * precision
            + (frozen - size.unquantized) * {4: 0.53, 8: 1.05}[train.quantization_bit]
        )
    return frozen * max(precision, _FSDP_STORED if train.parallel == "fsdp" else 0)


def _trained_bytes(train: Train) -> tuple[float, float, float]:
    """Bytes of a trained parameter, of its gradient, and of the optimizer's state."""
    state = next(
        (value for name, value in _STATE.items() if train.optim.startswith(name)),
        2 if "8bit" in train.optim else 8,
    )
    # without float32 copies, and the state is as precise as the parameter
    if train.extra.get("pure_bf16"):
        return 2, 2, state if "8bit" in train.optim else state / 2
    return 4, 4, state


def _activations(size: Shape, train: Train) -> float:
    """Bytes kept for the backward pass, for each token."""
    whole, precision = _is_whole(train), _BYTES[train.precision]
    layer = (_HIDDEN * size.hidden + _ATTENTION * size.attention + _MLP * size.mlp) * (
        _KEPT_BYTES_WHOLE if whole else _KEPT_BYTES
    )
    if train.use_dora:
        layer += (2 * size.hidden + size.attention + 2 * size.mlp) * _DORA_BYTES
    if train.gradient_checkpointing:
        # which it moves to the machine's memory
        inputs = 1 if train.extra.get("use_unsloth_gc") else size.layers
        return inputs * size.hidden * precision + layer
    # below the first layer that is trained nothing is kept
    deep = (
        min(size.layers, train.freeze_trainable_layers) if train.finetuning_type == "freeze" else 0
    )
    return (deep if deep > 0 else size.layers) * layer


def _logits(size: Shape, train: Train) -> float:
    """Bytes of the loss and its gradient, for each token."""
    if train.extra.get("enable_liger_kernel") and train.stage in LIGER_STAGES:
        return size.hidden * _LIGER_LOGITS
    return size.vocabulary * (
        _LOGITS[_BYTES[train.precision]] + (_REFERENCE_LOGITS if needs_reference(train) else 0)
    )


def frozen_parameters(size: Shape, train: Train) -> int:
    """Parameters of the base that are not trained. An adapter comes on top of the base."""
    return size.parameters - (size.trainable if _is_whole(train) else 0)


def loading_gib(size: Shape, train: Train) -> float:
    """GiB of the host's memory that each process holds until FSDP has sharded the model.

    Rank 0 reads the weights and sends them to the others, but transformers 5.6 gives each of the
    others a whole model of zeros first.
    """
    frozen = frozen_parameters(size, train)
    return (frozen * _BYTES[train.precision] + (size.parameters - frozen) * 4) / GIB


def needs_reference(train: Train) -> bool:
    """Whether a second model is loaded: an adapter is its own reference when it is switched off."""
    return train.stage == "kto" or (
        train.stage == "dpo" and train.pref_loss not in ("orpo", "simpo")
    )


def longest_that_fits(size: Shape, train: Train, limit_gib: float, **where: Any) -> int:
    """The longest row, in tokens, that fits; 0 where none does. No longer than the model's
    positions.
    """
    low, high = 0, size.longest or 131_072
    while low < high:
        middle = (low + high + 1) // 2
        if estimate(size, train, tokens=middle, **where)["total"] <= limit_gib:
            low = middle
        else:
            high = middle - 1
    return low


def table(
    model: Any, train: Train, targets: list[str], limit_gib: float, **where: Any
) -> list[dict[str, Any]]:
    """For each method: parameters trained, and the longest row that fits, without and with gradient
    checkpointing.
    """
    from dataclasses import replace

    methods: dict[str, dict[str, Any]] = {
        "lora": {"finetuning_type": "lora", "quantization_bit": 0},
        "qlora": {"finetuning_type": "lora", "quantization_bit": 4},
        "freeze": {"finetuning_type": "freeze", "quantization_bit": 0},
        "full": {"finetuning_type": "full", "quantization_bit": 0},
    }
    rows = []
    for name, changes in methods.items():
        chosen = replace(train, **changes)
        size = shape(model, chosen, targets)
        fits = {
            label: longest_that_fits(
                size, replace(chosen, gradient_checkpointing=on), limit_gib, **where
            )
            for label, on in (("longest_tokens", False), ("longest_tokens_checkpointing", True))
        }
        rows.append({"method": name, "trainable_parameters": size.trainable, **fits})
    return rows
