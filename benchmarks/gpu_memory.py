"""What `--check` estimates for published models on a GPU, beside what others measured there.

python -m benchmarks.gpu_memory [--write]
    prints the section Memory of docs/gpu.md, or writes it there

Nothing is downloaded: of each model the few sizes that its config.json holds are below. Others
write GB and mean GiB, as nvidia-smi and PyTorch count.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf

from stages.common.files import ROOT, write_text
from stages.common.schema import Train
from stages.train import memory

DOCUMENT = ROOT / "docs/gpu.md"
BEGIN, END = (
    "<!-- python -m benchmarks.gpu_memory --write -->\n",
    "<!-- end of benchmarks.gpu_memory -->\n",
)


@dataclass(frozen=True)
class Model:
    """Sizes of a model. `fused`: its attention has one matrix for queries, keys and values, as Qwen
    1 has.
    """

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    biased: bool = False
    fused: bool = False
    longest: int = 32_768

    def linear(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the linear layers of one layer."""
        key = self.hidden // self.heads * self.kv_heads
        attention = (
            [(self.hidden, self.hidden + 2 * key)]
            if self.fused
            else [(self.hidden, self.hidden), *[(self.hidden, key)] * 2]
        )
        return [
            *attention,
            (self.hidden, self.hidden),
            *[(self.hidden, self.mlp)] * 2,
            (self.mlp, self.hidden),
        ]

    def shape(self, rank: int) -> memory.Shape:
        """With an adapter of this rank on every linear layer."""
        key = self.hidden // self.heads * self.kv_heads
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        norms = self.layers * 2 * self.hidden + self.hidden
        biases = self.layers * (self.hidden + 2 * key) if self.biased else 0
        weights = self.layers * sum(inputs * outputs for inputs, outputs in self.linear())
        return memory.Shape(
            parameters=embeddings + norms + biases + weights,
            trainable=self.layers
            * rank
            * sum(inputs + outputs for inputs, outputs in self.linear()),
            layers=self.layers,
            hidden=self.hidden,
            attention=self.hidden + 2 * key,
            mlp=self.mlp,
            vocabulary=self.vocabulary,
            longest=self.longest,
            unquantized=embeddings + norms + biases,
        )


MODELS = {
    "llama3-8b": Model(32, 4096, 14336, 32, 8, 128256),
    "qwen2.5-7b": Model(28, 3584, 18944, 28, 4, 152064, biased=True),
    "qwen2.5-0.5b": Model(24, 896, 4864, 14, 2, 151936, tied=True, biased=True),
    "llama2-7b": Model(32, 4096, 11008, 32, 32, 32000),
    "qwen-1.8b": Model(24, 2048, 5504, 16, 16, 151936, biased=True, fused=True),
    "qwen-7b": Model(32, 4096, 11008, 32, 32, 151936, biased=True, fused=True),
    "qwen-14b": Model(40, 5120, 13696, 40, 40, 152064, biased=True, fused=True),
}
METHODS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "LoRA, checkpointing": {"gradient_checkpointing": True},
    "LoRA, checkpointing, Liger": {
        "gradient_checkpointing": True,
        "extra": {"enable_liger_kernel": True},
    },
    "QLoRA": {"gradient_checkpointing": True, "quantization_bit": 4},
}


@dataclass(frozen=True)
class Measured:
    """GiB that others measured, by tokens of a row."""

    by: str
    model: str
    method: str
    rank: int
    batch: int
    gib: dict[int, float]


UNSLOTH = Measured(
    "Unsloth",
    "llama3-8b",
    "QLoRA",
    32,
    1,
    {932: 12, 2551: 16, 5789: 24, 12264: 40, 15502: 48, 28454: 80},
)
_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


def _qwen(model: str, *gib: float) -> Measured:
    return Measured(
        "Qwen", model, "LoRA, checkpointing", 64, 1, dict(zip(_LENGTHS, gib, strict=True))
    )


MEASURED = [
    UNSLOTH,
    Measured("LLaMA-Factory", "llama2-7b", "QLoRA", 8, 1, {1024: 6, 2048: 7, 4096: 9}),
    _qwen("qwen-1.8b", 6.7, 7.4, 8.4, 11.0, 16.2, 21.8),
    _qwen("qwen-7b", 20.1, 20.4, 21.5, 23.8, 29.7, 36.6),
    _qwen("qwen-14b", 34.6, 35.1, 35.3, 37.4, 42.5, 55.2),
]


def section(**changes: Any) -> Train:
    """conf/train/lora.yaml with changes, whatever the present experiment is."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/train/lora.yaml"))
    return replace(Train(**plain), **changes)


def estimate(model: str, method: str, tokens: int, batch: int, rank: int) -> float:
    train = section(per_device_train_batch_size=batch, lora_rank=rank, **METHODS[method])
    return memory.estimate(MODELS[model].shape(rank), train, tokens=tokens)["total"]


def differences() -> list[tuple[Measured, int, float, float]]:
    """Each measurement: its tokens, the estimate, and by what share of the measurement that is
    off.
    """
    return [
        (
            one,
            tokens,
            found := estimate(one.model, one.method, tokens, one.batch, one.rank),
            found / gib - 1,
        )
        for one in MEASURED
        for tokens, gib in one.gib.items()
    ]


def text() -> str:
    lines = [
        (
            "GiB on each GPU, as `python -m stages.train --check` estimates them, for rows of 4,096"
            " tokens and an adapter of rank"
        ),
        (
            "16 on every linear layer in bfloat16. QLoRA checkpoints gradients too, as train=qlora"
            " does. Liger is"
        ),
        (
            "`+train.extra.enable_liger_kernel=true`; held-out rows (`data.eval_fraction`) need"
            " whole logits all the same, which"
        ),
        "`--check` counts and this table does not.",
        "",
        f"| model | batch | {' | '.join(METHODS)} |",
        f"|---|---:|{'---:|' * len(METHODS)}",
    ]
    for model in ("llama3-8b", "qwen2.5-7b", "qwen2.5-0.5b"):
        for batch in (1, 4, 8):
            found = (f"{estimate(model, method, 4096, batch, 16):.1f}" for method in METHODS)
            lines.append(f"| {model} | {batch} | {' | '.join(found)} |")
    lines += [
        "",
        "The estimate beside what others measured on GPUs, one row at a time:",
        "",
        "| measured by | training | tokens | measured | estimate | difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for one, tokens, found, off in differences():
        what = f"{one.model}, {one.method}, rank {one.rank}"
        lines.append(
            f"| {one.by} | {what} | {tokens:,} | {one.gib[tokens]:g} | {found:.1f} |"
            f" {round(100 * off):+d} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="into docs/gpu.md")
    if not parser.parse_args().write:
        print(text(), end="")
        return
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    write_text(DOCUMENT, before + BEGIN + "\n" + text() + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
