"""What cannot go together is refused by name before anything heavy is imported."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.schema import Launcher
from stages.train.combinations import check_combinations
from tests.train.test_arguments import train

LOCAL: dict[str, Any] = {"kind": "local", "workers": 1, "nodes": 1, "checkpoint_steps": 50}
TORCHRUN = {**LOCAL, "kind": "torchrun", "workers": 2}

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, list[str]]] = [
    (
        {"finetuning_type": "full", "quantization_bit": 4},
        LOCAL,
        "transformers",
        ["train.quantization_bit", "train=qlora"],
    ),
    (
        {"finetuning_type": "full", "use_dora": True},
        LOCAL,
        "transformers",
        ["train.use_dora", "belongs to LoRA"],
    ),
    (
        {"finetuning_type": "oft", "pissa_init": True},
        LOCAL,
        "transformers",
        ["train.pissa_init", "belongs to LoRA"],
    ),
    (
        {"pissa_init": True, "quantization_bit": 4},
        LOCAL,
        "transformers",
        ["train.pissa_init", "quantised"],
    ),
    (
        {"pissa_init": True, "stage": "dpo"},
        LOCAL,
        "transformers",
        ["train.pissa_init", "train.pref_loss=orpo"],
    ),
    (
        {"pissa_init": True, "use_dora": True},
        LOCAL,
        "transformers",
        ["train.use_dora", "choose one"],
    ),
    (
        {"pissa_init": True, "parallel": "zero3"},
        TORCHRUN,
        "transformers",
        ["PiSSA", "zero3", "train.parallel=zero2"],
    ),
    (
        {"quantization_bit": 4, "parallel": "zero3"},
        TORCHRUN,
        "transformers",
        ["train.quantization_bit", "zero3", "zero2"],
    ),
    (
        {"quantization_bit": 4, "parallel": "fsdp"},
        TORCHRUN,
        "transformers",
        ["train.quantization_bit", "fsdp", "parallel=none"],
    ),
    (
        {"extra": {"pure_bf16": True}, "parallel": "zero3"},
        TORCHRUN,
        "transformers",
        ["train.extra.pure_bf16", "zero3"],
    ),
    ({"parallel": "zero2"}, LOCAL, "transformers", ["launcher.kind", "launcher=torchrun"]),
    (
        {"parallel": "zero2"},
        TORCHRUN,
        "transformers",
        ["train.parallel", "make deepspeed-env", "not installed", "fsdp"],
    ),
    ({}, {**LOCAL, "workers": 4}, "transformers", ["launcher.workers", "launcher=torchrun"]),
    ({}, {**TORCHRUN, "workers": 0}, "transformers", ["launcher.workers", "no GPU"]),
    (
        {"quantization_bit": 4},
        LOCAL,
        "transformers",
        ["train.quantization_bit", "GPU", "train=lora"],
    ),
    ({"optim": "paged_adamw_32bit"}, LOCAL, "transformers", ["train.optim", "GPU", "adafactor"]),
    ({"optim": "schedule_free_adamw"}, LOCAL, "transformers", ["train.optim", "schedulefree"]),
    ({"lora_target": " , "}, LOCAL, "transformers", ["train.lora_target", "no module"]),
    ({"precision": "fp16"}, LOCAL, "transformers", ["train.precision", "bf16"]),
    ({"extra": {"pure_bf16": True}}, LOCAL, "transformers", ["train.extra.pure_bf16", "GPUs only"]),
    ({"stage": "dpo", "packing": True}, LOCAL, "transformers", ["train.packing", "dpo"]),
    (
        {"stage": "kto", "extra": {"neat_packing": True}},
        LOCAL,
        "transformers",
        ["train.extra.neat_packing"],
    ),
    (
        {"stage": "kto", "per_device_train_batch_size": 1},
        LOCAL,
        "transformers",
        ["train.per_device_train_batch_size", "KTO"],
    ),
    (
        {"stage": "dpo", "pref_loss": "ipo", "extra": {"dpo_label_smoothing": 0.1}},
        LOCAL,
        "transformers",
        ["dpo_label_smoothing"],
    ),
    (
        {"extra": {"load_best_model_at_end": True}, "eval_strategy": "no"},
        LOCAL,
        "transformers",
        ["train.eval_strategy", "eval loss"],
    ),
    ({"lora_rank": 1024}, LOCAL, "vllm", ["train.lora_rank", "1024", "512"]),
    (
        {"lora_rank": 512, "pissa_init": True},
        LOCAL,
        "vllm_cpu",
        ["train.lora_rank", "1024", "PiSSA doubles it"],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "launcher", "engine", "words"), REFUSED)
def test_what_cannot_work_is_refused_with_the_key_and_the_fix(
    changes: dict[str, Any],
    launcher: dict[str, Any],
    engine: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # whatever is installed here
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PawlError) as refused:
        check_combinations(train(**changes), Launcher(**launcher), engine, gpus=0)
    assert refused.value.code == 3 and refused.value.fix and refused.value.where
    for word in words:
        assert word in str(refused.value)


def test_with_the_package_and_a_gpu_the_same_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for changes, launcher in (
        ({"quantization_bit": 4}, LOCAL),
        ({"parallel": "zero2"}, TORCHRUN),
        ({"precision": "fp16"}, LOCAL),
        ({}, {**TORCHRUN, "workers": 0}),
    ):
        assert check_combinations(train(**changes), Launcher(**launcher), "vllm", gpus=2) == []
    assert (
        check_combinations(train(lora_rank=1024), Launcher(**LOCAL), "transformers", gpus=0) == []
    ), "merged, so of any rank"


@pytest.mark.parametrize(
    "changes",
    [{"use_dora": True}, {"additional_target": "embed_tokens"}, {"finetuning_type": "oft"}],
)
def test_what_vllm_does_not_serve_as_an_adapter_is_said_to_be_merged(
    changes: dict[str, Any],
) -> None:
    assert "merged" in check_combinations(train(**changes), Launcher(**LOCAL), "vllm", gpus=0)[0]


def test_nothing_heavy_is_imported_for_it() -> None:
    import subprocess

    program = (
        "import sys, stages.train.combinations; print([m for m in ('torch', 'transformers',"
        " 'llamafactory') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )
