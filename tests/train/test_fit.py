"""Whether a training fits: refused with what helps, or with PAWL_MEMORY=warn tried all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import gpu_memory
from stages.common.errors import PawlError
from stages.common.schema import Launcher
from stages.train import fit, memory
from tests.train.test_memory import SIZE

LOCAL = Launcher(kind="local", workers=1, nodes=1, address="")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`free(gib, model)`: a GPU with so much free memory, and the base."""

    def make(gib: float, model: str = "qwen2.5-7b") -> None:
        monkeypatch.setattr(fit, "gpus", lambda train: 1)
        monkeypatch.setattr(fit.room, "gpu_gib", lambda count, wanted: gib)
        monkeypatch.setattr(
            memory,
            "shape",
            lambda *given: replace(gpu_memory.MODELS[model].shape(16), longest=32_768),
        )
        monkeypatch.setattr(memory, "table", lambda *given, **where: [])

    monkeypatch.delenv("PAWL_MEMORY", raising=False)
    return make


def refused(section: Any, *, gpu: bool = True) -> PawlError:
    with pytest.raises(PawlError, match="training needs about") as error:
        fit.check_memory(None, section, [], LOCAL, 2048, gpu=gpu)
    assert error.value.code == 3
    return error.value


def test_a_refusal_names_what_helps_and_not_what_is_done_already(free: Any) -> None:
    free(20.0)
    section = gpu_memory.section(cutoff_len=2048)
    first = refused(section).fix
    for word in (
        "per_device_train_batch_size",
        "gradient_checkpointing",
        "enable_liger_kernel",
        "train=qlora",
        "train.cutoff_len",
    ):
        assert word in first
    done = replace(
        section,
        per_device_train_batch_size=1,
        gradient_checkpointing=True,
        quantization_bit=4,
        extra={"enable_liger_kernel": True},
    )
    free(5.0)
    last = refused(replace(done, cutoff_len=32_768)).fix
    for word in (
        "per_device_train_batch_size",
        "gradient_checkpointing",
        "enable_liger_kernel",
        "train=qlora",
    ):
        assert word not in last
    assert "finetuning_type" in refused(gpu_memory.section(finetuning_type="full")).where


def test_a_person_who_knows_better_is_warned_and_not_refused(
    free: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(20.0)
    section = gpu_memory.section(cutoff_len=2048)
    assert "PAWL_MEMORY=warn" in refused(section).fix
    monkeypatch.setenv("PAWL_MEMORY", "warn")
    _, warnings = fit.check_memory(None, section, [], LOCAL, 2048, gpu=True)
    assert warnings[0].startswith("memory may be short")


def test_on_a_cpu_no_gpu_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAWL_MEMORY", raising=False)
    monkeypatch.setattr(memory, "shape", lambda *given: SIZE)
    monkeypatch.setattr(fit.room, "machine_gib", lambda: 1.2)
    monkeypatch.setattr(fit.room, "own_gib", lambda: 0.0)
    fix = refused(gpu_memory.section(cutoff_len=2048), gpu=False).fix
    assert "liger" not in fix and "qlora" not in fix
