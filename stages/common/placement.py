"""Over how many GPUs vLLM splits a model, and how many copies of it answer.

As few GPUs for a copy as it fits on, and the rest of the GPUs as copies.

A split costs communication at every layer, a copy costs none, so that a model that fits on one GPU
is never split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from stages.common.errors import PawlError
from stages.common.files import read_json
from stages.common.gpus import Card
from stages.common.schema import Engine

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
_OVERHEAD_GIB = 1.5
"""CUDA context, CUDA graphs and activations of vLLM on each GPU, roughly."""


@dataclass(frozen=True)
class Split:
    """`tensor`: GPUs that share a copy of the model (0: the CPU). `data`: copies."""

    tensor: int
    data: int = 1


CPU = Split(0)


@dataclass(frozen=True)
class Shape:
    """What a model's config.json says of its size.

    Attributes:
        head_width: values of a head.
        dtype: in which the weights are stored.
        widths: of the parts of an MLP, by their names there.
    """

    heads: int
    key_heads: int
    head_width: int
    layers: int
    dtype: str
    widths: dict[str, int]

    @classmethod
    def read(cls, folder: Path) -> Shape:
        config = read_json(folder / "config.json")
        config = config.get("text_config") or config
        heads = config.get("num_attention_heads") or 1
        return cls(
            heads=heads,
            key_heads=config.get("num_key_value_heads") or heads,
            head_width=config.get("head_dim") or (config.get("hidden_size") or 0) // heads,
            layers=config.get("num_hidden_layers") or 0,
            dtype=str(config.get("dtype") or config.get("torch_dtype")),
            widths={name: config.get(name) or 0 for name in _WIDTHS},
        )


def precision(wanted: str, base: Path) -> str:
    """The base's own precision for "auto": a merged model is stored in float32, and would be asked
    in another one than its base.
    """
    if wanted != "auto" or not (base / "config.json").is_file():
        return wanted
    config = read_json(base / "config.json")
    stored = str(
        config.get("dtype")
        or config.get("torch_dtype")
        or (config.get("text_config") or {}).get("dtype")
    )
    return stored if stored in ("bfloat16", "float16", "float32") else wanted


def split(engine: Engine, model_dir: Path, gpus: Sequence[Card]) -> Split:
    """The split for these GPUs, or the CPU without any. `engine.dtype`: see `precision`.

    Raises:
        PawlError: the model does not fit, or cannot be split as wanted.
    """
    if engine.kind == "transformers":
        room_gib = max(
            (card.total_gib for card in gpus), default=psutil.virtual_memory().total / 2**30
        )
        check_whole(
            model_dir,
            engine.dtype,
            engine.max_model_len,
            room_gib,
            gpus[0].name if gpus else "this machine",
        )
        return Split(min(1, len(gpus)))
    return choose(
        model_dir,
        engine.dtype,
        [card.total_gib for card in gpus],
        engine.gpu_memory_utilization,
        engine.max_model_len,
        engine.tensor_parallel,
        engine.nodes,
    )


def choose(
    model_dir: Path,
    dtype: str,
    memory_gib: Sequence[float],
    utilization: float,
    max_model_len: int,
    wanted: str,
    nodes: int = 1,
) -> Split:
    """The split for GPUs of this memory.

    Args:
        dtype: in which the weights are served.
        memory_gib: of each GPU that may be used; empty: the CPU serves.
        utilization: share of each GPU that may be taken.
        wanted: `auto`, or the number of GPUs for a copy.
        nodes: machines with as many GPUs each; the layers are divided among them, and there is one
            copy.

    Raises:
        PawlError: the model cannot be split as wanted, or does not fit.
    """
    if not memory_gib:
        return CPU
    shape = Shape.read(model_dir)
    if wanted != "auto":
        return _as_wanted(shape, int(wanted), len(memory_gib), nodes)
    need = needed_gib(model_dir, shape, dtype, max_model_len) / nodes
    room = min(memory_gib) * utilization - _OVERHEAD_GIB
    powers = []  # of two: vLLM's fast all-reduce knows no other counts
    for count in range(1, len(memory_gib) + 1):
        if count & (count - 1) == 0 and not obstacle(shape, count):
            powers.append(count)
    for tensor in powers:
        if need / tensor <= room:
            return Split(tensor, len(memory_gib) // tensor if nodes == 1 else 1)
    most = max(powers)
    raise PawlError(
        f"the model needs {need:.1f} GiB to be served, and {most} GPU(s) offer "
        f"{most * max(room, 0.0):.1f}",
        where="engine",
        fix="lower engine.max_model_len, choose engine.dtype=bfloat16, use more GPUs, "
        "or a smaller model",
    )


def check_whole(
    model_dir: Path, dtype: str, max_model_len: int, room_gib: float, where: str
) -> None:
    """Refuse a model that our own server, which holds it whole, cannot hold in so much memory.

    Args:
        where: whose memory it is.

    Raises:
        PawlError: with what it needs, and in half the precision.
    """
    if not (model_dir / "config.json").is_file():
        return
    shape = Shape.read(model_dir)
    need = needed_gib(model_dir, shape, dtype, max_model_len)
    if need <= room_gib:
        return
    half = needed_gib(model_dir, shape, "bfloat16", max_model_len)
    smaller = "use a machine with more memory, or a smaller model"
    if half <= room_gib:
        smaller = f"set engine.dtype=bfloat16, which needs {half:.1f}"
    raise PawlError(
        f"the model needs {need:.1f} GiB to be served in {dtype}, and {where} has {room_gib:.1f}",
        where="engine.dtype",
        fix=f"choose engine=vllm on a GPU ('make serve-env' once), or {smaller}",
    )


def _as_wanted(shape: Shape, wanted: int, gpus: int, nodes: int) -> Split:
    reason = obstacle(shape, wanted) if wanted <= gpus else f"only {gpus} GPU(s) can be used"
    if reason:
        raise PawlError(
            f"the model cannot be split over {wanted} GPUs: {reason}",
            where="engine.tensor_parallel",
            fix="set engine.tensor_parallel=auto",
        )
    return Split(wanted, gpus // wanted if nodes == 1 else 1)


def obstacle(shape: Shape, count: int) -> str:
    """Why vLLM cannot split a model over so many GPUs, "" if it can.

    Each GPU holds whole heads, and equal parts of the MLP. Source:
    vllm/model_executor/models/qwen2.py and distributed/utils.py, 0.33.
    """
    if shape.heads % count:
        return f"{shape.heads} attention heads"
    if shape.key_heads % count and count % shape.key_heads:
        return f"{shape.key_heads} key-value heads"
    for name, width in shape.widths.items():
        if width % count:
            return f"{name} {width}"
    return ""


def needed_gib(model_dir: Path, shape: Shape, dtype: str, max_model_len: int) -> float:
    """Memory of the weights, and of keys and values of one request of full length, GiB."""
    stored = _BYTES.get(shape.dtype, 2)
    served = _BYTES.get(dtype, stored)
    weights = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    per_token = 2 * shape.layers * shape.key_heads * shape.head_width * served
    return float(weights * served / stored + per_token * max_model_len) / 2**30
