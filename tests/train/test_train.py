"""Training: what LLaMA-Factory is told, what is kept, and how its failures read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.train import __main__ as stage
from stages.train import launch
from stages.train.arguments import arguments
from stages.train.losses import losses_csv, summarize, trainer_state


def config(**changes: Any) -> dict[str, Any]:
    train = read_params("train").train
    for name, value in changes.items():
        setattr(train, name, value)
    return arguments(train, model="models/base", data="data/train", output="out", use_cpu=True)


def test_every_declared_training_parameter_reaches_the_trainer_or_the_launcher() -> None:
    used = {"name", "precision", "gradient_checkpointing", "device"}  # these decide other keys or our own process
    declared = set(vars(read_params("train").train)) - used
    assert declared <= set(config())
    assert "template" not in config(), "served with the model's own chat template, so trained with it"


def test_precision_and_checkpointing_are_translated() -> None:
    assert config(precision="bf16")["bf16"] is True
    assert config(precision="fp16")["fp16"] is True
    assert not {"bf16", "fp16"} & set(config(precision="fp32"))
    assert config(gradient_checkpointing=True)["disable_gradient_checkpointing"] is False


@pytest.mark.e2e
def test_llamafactory_itself_accepts_every_key(tmp_path: Path) -> None:
    from llamafactory.hparams.parser import _TRAIN_ARGS
    from transformers import HfArgumentParser

    known = {name for kind in _TRAIN_ARGS for name in kind.__dataclass_fields__}
    assert HfArgumentParser(_TRAIN_ARGS)
    assert not set(config()) - known


def state(tmp_path: Path, losses: list[float]) -> Path:
    history: list[dict[str, Any]] = [{"step": step, "epoch": step / 10, "loss": loss} for step, loss in enumerate(losses, 1)]
    history.append({"step": len(losses), "epoch": 1.0, "train_runtime": 12.5})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": len(losses), "epoch": 1.0}))
    return tmp_path


def test_losses_come_from_the_trainers_record(tmp_path: Path) -> None:
    record = trainer_state(state(tmp_path, [2.0, 1.0, 0.5]))
    assert summarize(record) == {"initial_loss": 2.0, "final_loss": 0.5, "best_eval_loss": None, "steps": 3, "epochs": 1.0}
    assert losses_csv(record).splitlines()[:2] == ["step,epoch,split,loss", "1,0.1000,train,2.000000"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_fails_the_stage(tmp_path: Path, bad: float) -> None:
    with pytest.raises(PawlError, match="at step 2"):
        trainer_state(state(tmp_path, [1.0, bad]))


def test_a_run_that_logged_nothing_fails_the_stage(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no loss"):
        trainer_state(state(tmp_path, []))


@pytest.mark.parametrize("rows", [None, "", "\n\n"])
def test_no_training_rows_is_refused_before_the_trainer_starts(tmp_path: Path, rows: str | None) -> None:
    (tmp_path / "dataset_info.json").write_text('{"train": {"file_name": "train.jsonl"}}')
    if rows is not None:
        (tmp_path / "train.jsonl").write_text(rows)
    with pytest.raises(PawlError, match="no training rows"):
        stage.count_rows(tmp_path)


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (
            1,
            "x\nRuntimeError: [enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: out of memory",
            ["batch_size"],
        ),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ["per_device_train_batch_size"]),
        (
            1,
            "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
            ["disk is full"],
        ),
        (-9, "", ["signal 9", "batch_size"]),
        (124, "", ["launcher.timeout_h (2 hours)"]),
        (1, "Traceback\nKeyError: 'x'", ["exit code 1", "KeyError: 'x'", "train.log"]),
    ],
)
def test_a_failed_trainer_says_why_on_one_screen(code: int, log: str, words: list[str]) -> None:
    text = str(launch.failure(code, log + "\n" + "noise " * 5000, timeout_s=7200))
    for word in words:
        assert word in str(launch.failure(code, log, timeout_s=7200))
    assert len(text.splitlines()) < 24 and max(map(len, text.splitlines())) < 260


def test_equal_training_gives_equal_bytes(tmp_path: Path) -> None:
    kept = []
    for order in (["q_proj", "v_proj"], ["v_proj", "q_proj"]):  # peft keeps them in a set, whose order changes from run to run
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        (scratch / "adapter_model.safetensors").write_bytes(b"weights")
        (scratch / "training_args.bin").write_bytes(b"host name and time")
        (scratch / "adapter_config.json").write_text(json.dumps({"target_modules": order, "r": 16}))
        stage.keep_adapter(scratch, tmp_path / "adapter")
        kept.append({path.name: path.read_bytes() for path in (tmp_path / "adapter").iterdir()})
    assert kept[0] == kept[1] and set(kept[0]) == {"adapter_model.safetensors", "adapter_config.json"}
