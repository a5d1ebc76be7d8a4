"""Two processes train what one trains: the same first loss, and close ones after it, however the
model is spread over them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import run_in
from tests.train.test_stage_e2e import ENV, compose, gone, kill_at, result

pytestmark = pytest.mark.e2e

FOUR = (
    "train.device=cpu",
    "train.max_steps=4",
    "train.logging_steps=1",
    "train.gradient_accumulation_steps=1",
    "launcher.checkpoint_steps=1",
)
"""Each of the two processes takes two rows a step, which is the one process's four."""
ONE = ("train.per_device_train_batch_size=4",)
TWO = ("train.per_device_train_batch_size=2", "launcher=torchrun", "launcher.workers=2")
SPREAD = {
    "ddp": ("train.parallel=none",),
    "fsdp": ("train.parallel=fsdp", "train.gradient_checkpointing=true"),
    "fsdp, all weights": ("train.parallel=fsdp", "train=full"),
    "zero2": ("train.parallel=zero2",),
    "zero3": ("train.parallel=zero3",),
}


def losses(folder: Path) -> list[float]:
    lines = (folder / "reports/loss.csv").read_text().splitlines()[1:]
    return [float(line.split(",")[-1]) for line in lines if ",train," in line]


def run(folder: Path, *overrides: str) -> list[float]:
    compose(folder, *overrides)
    run_in(folder, sys.executable, "-m", "stages.train", env=ENV)
    return losses(folder)


@pytest.fixture(scope="module")
def alone(place: Path) -> list[float]:
    """The losses of one process."""
    return run(place, *FOUR, *ONE)


@pytest.mark.parametrize("name", SPREAD)
def test_two_processes_lose_what_one_loses(
    place: Path, alone: list[float], need: Callable[[str], None], name: str
) -> None:
    if name.startswith("zero"):
        need("deepspeed")
    found = run(place, *SPREAD[name], *FOUR, *TWO)
    assert len(found) == 4
    assert found[0] == pytest.approx(alone[0], abs=2e-4), "the model and the four rows are the same"
    assert found[-1] < found[0]
    if "all weights" not in name:
        assert found == pytest.approx(alone, rel=1e-3)
    report = json.loads((place / "reports/train.json").read_text())
    assert report["processes"] == 2


def test_a_sharded_training_that_was_killed_ends_as_if_undisturbed(
    place: Path,
) -> None:
    shape = ("train.parallel=fsdp", *FOUR, *TWO, "train.max_steps=60")
    run(place, *shape)
    undisturbed = result(place)
    (place / "reports/train.json").unlink()
    (place / "models/adapter/adapter_model.safetensors").unlink()
    kill_at(place, 20, [sys.executable, "-m", "stages.train"])
    assert gone(place)
    run(place, *shape)
    assert result(place) == undisturbed
    assert json.loads((place / "reports/train.json").read_text())["resumed_from_step"] >= 1
