"""The first hour with one 24 GB card: each trap that a newcomer meets is a clear line, or is gone
(docs/gpu.md lists them).
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common import doctor, gpus, lease, placement, serving
from stages.common.errors import PawlError
from stages.common.lease import Lease, Wanted
from stages.common.placement import Split
from stages.evaluate.serve import engine
from stages.evaluate.serve.commands import Command
from tests.common.test_gpus import published
from tests.conftest import ROOT
from tests.evaluate.serve.test_engine import settings, value
from tests.gpu_machines import OLD_DRIVER, RTX4090, Make


def said_by_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["doctor"])
    doctor.main()
    return capsys.readouterr().out


def test_1_an_old_driver_is_named_with_the_one_that_is_needed(
    gpu_machine: Make, monkeypatch, capsys
) -> None:
    gpu_machine(OLD_DRIVER)
    said = said_by_doctor(monkeypatch, capsys)
    assert "BAD  GPU 0: NVIDIA GeForce RTX 4090" in said
    assert "driver 550.90.07 is too old: CUDA 13 needs 580.65 or later" in said
    assert "fine-tuning on the CPU" in said
    with pytest.raises(PawlError, match=r"cannot be used: driver 550\.90\.07 is too old") as error:
        gpus.usable()
    assert "update the NVIDIA driver" in error.value.fix and "train.device=cpu" in error.value.fix


def test_2_a_7b_model_in_the_default_engine_is_refused_before_it_fills_the_gpu(
    gpu_machine: Make, tmp_path: Path
) -> None:
    gpu_machine(RTX4090)
    base = published("qwen2.5-7b", tmp_path)
    with pytest.raises(
        PawlError,
        match=r"needs 28\.5 GiB to be served in float32, and NVIDIA GeForce RTX 4090 has 24\.0",
    ) as error:
        placement.split(settings("transformers", dtype="float32"), base, gpus.usable())
    assert (
        "engine=vllm" in error.value.fix
        and "engine.dtype=bfloat16, which needs 14.3" in error.value.fix
    )
    assert placement.split(
        settings("transformers", dtype="bfloat16"), base, gpus.usable()
    ) == Split(1)


def test_2_it_is_refused_before_a_training_that_could_not_be_evaluated(
    gpu_machine: Make, tmp_path: Path
) -> None:
    base = published("qwen2.5-7b", tmp_path)
    gpu_machine(RTX4090)
    with pytest.raises(PawlError, match="to be served in float32") as error:
        serving.check_serving(settings("transformers", dtype="float32"), base)
    assert "engine=vllm" in error.value.fix
    serving.check_serving(settings("vllm", dtype="bfloat16"), base)
    with pytest.raises(PawlError, match="to be served"):
        serving.check_serving(
            settings("vllm", dtype="bfloat16"), published("llama-3.3-70b", tmp_path)
        )
    for kind in ("external", "vllm_cpu"):
        serving.check_serving(settings(kind, dtype="float32"), published("llama-3.3-70b", tmp_path))
    gpu_machine()
    # it may train on a cluster; evaluation has its own word on it
    serving.check_serving(settings("vllm", dtype="bfloat16"), base)


def test_2_a_model_that_fits_nowhere_is_advised_no_precision(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="this machine has 16") as error:
        placement.check_whole(
            published("llama-3.3-70b", tmp_path), "float32", 1024, 16.0, "this machine"
        )
    assert "bfloat16" not in error.value.fix


def test_3_a_container_without_a_compiler_is_told_before_vllm_starts(
    gpu_machine: Make, monkeypatch, tmp_path: Path
) -> None:
    gpu_machine(RTX4090)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.delenv("CC", raising=False)
    assert "apt-get install gcc" in doctor.no_compiler(Path(sys.executable))


def test_4_a_desktop_that_holds_a_part_of_the_card_leaves_the_rest_to_vllm(
    gpu_machine: Make, tmp_path: Path
) -> None:
    gpu_machine(replace(RTX4090, free=21_000))
    base = published("qwen2.5-7b", tmp_path)
    (base / "chat_template.jinja").write_text("x")
    chosen = placement.split(settings("vllm", dtype="bfloat16"), base, gpus.usable())
    taken = lease.take(engine._wanted(settings("vllm"), chosen, gpus.usable()), "test")
    try:
        started: Command = engine._command(
            settings("vllm"), base, None, chosen, "python", True, 9100, taken
        )
    finally:
        taken.close()
    share = float(value(started.argv, "--gpu-memory-utilization"))
    assert share * RTX4090.total <= 21_000 - 1024 and share > 0.8


def test_5_what_qlora_needs_is_installed_with_the_rest() -> None:
    assert any(name.startswith("bitsandbytes") for name in requires_of_pawl())
    text = (ROOT / "requirements/main.txt").read_text()
    assert "bitsandbytes==" in text and "--hash=sha256:" in text


def requires_of_pawl() -> list[str]:
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def test_6_the_second_worker_of_a_sweep_waits_for_the_card_and_says_for_whom(
    gpu_machine: Make, monkeypatch, capsys
) -> None:
    gpu_machine(RTX4090)
    monkeypatch.setattr(lease, "_POLL_S", 0.01)
    first = lease.take(Wanted(gpus.usable()), "train")
    try:
        with pytest.raises(PawlError, match="GPU 0 is held by train"):
            lease.take(Wanted(gpus.usable()), "vllm server", limit_s=0.1)
        assert "vllm server: waits for a GPU: GPU 0 is held by train" in capsys.readouterr().out
    finally:
        first.close()
    second: Lease = lease.take(Wanted(gpus.usable()), "vllm server", limit_s=0.1)
    assert [card.index for card in second.cards] == [0]
    second.close()
