"""experiment=gpu24 and gpu80 fit the cards that they are for, in training and in serving, and their
comments say what is computed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu_memory
from stages.common import gpus, serving
from stages.common.config import compose, read_params
from stages.common.files import ROOT
from stages.common.schema import Config
from stages.train import memory
from stages.train.combinations import check_combinations
from tests.common.test_gpus import published
from tests.gpu_machines import MACHINES, Make

CARDS = {"gpu24": "1 x 24 GB", "gpu80": "1 x 80 GB"}


def composed(name: str, folder: Path, *overrides: str) -> Config:
    (folder / "params.yaml").write_text(
        compose([f"experiment={name}", *overrides]), encoding="utf-8"
    )
    return read_params(
        "model", "train", "engine", "evaluate", "launcher", path=folder / "params.yaml"
    )


def needed(found: Config, **changes: object) -> float:
    """GiB for rows that fill cutoff_len."""
    train = replace(found.train, **changes)
    return memory.estimate(
        gpu_memory.MODELS["qwen2.5-7b"].shape(train.lora_rank), train, tokens=train.cutoff_len
    )["total"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_the_longest_rows_fit_without_a_warning_and_the_model_can_be_served(
    name: str, tmp_path: Path, gpu_machine: Make
) -> None:
    gpu_machine(*MACHINES[CARDS[name]])
    found = composed(name, tmp_path)
    assert found.model.repo == "Qwen/Qwen2.5-7B-Instruct"
    assert needed(found) * (1 + memory.ERROR) < gpus.visible()[0].free_gib, (
        "with the estimate's error"
    )
    serving.check_serving(found.engine, published("qwen2.5-7b", tmp_path))
    assert check_combinations(found.train, found.launcher, found.engine.kind, gpus=1) == []
    assert found.train.micro_steps == 1 and found.evaluate.concurrency > 64


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_what_its_comments_say_that_it_takes_is_what_is_estimated(
    name: str, tmp_path: Path
) -> None:
    found, text = (
        composed(name, tmp_path),
        (ROOT / f"conf/experiment/{name}.yaml").read_text(encoding="utf-8"),
    )
    computed = {needed(found)}
    if name == "gpu24":
        qlora = composed(
            name,
            tmp_path,
            "train=qlora",
            "train.cutoff_len=2048",
            "train.per_device_train_batch_size=1",
        )
        computed |= {
            needed(found, gradient_checkpointing=False),
            needed(found, cutoff_len=2048),
            needed(qlora),
        }
    else:
        computed |= {needed(found, gradient_checkpointing=False, per_device_train_batch_size=2)}
    # the weights, in serving
    said = {float(number) for number in re.findall(r"(\d+\.\d) GiB", text)} - {14.2}
    assert said == {round(gib, 1) for gib in computed}


def test_a_smaller_card_is_not_enough(tmp_path: Path) -> None:
    """So the check can fail."""
    assert needed(composed("gpu80", tmp_path)) > 24 * (1 + memory.ERROR)
    assert needed(composed("gpu24", tmp_path)) > 16 * (1 + memory.ERROR)
