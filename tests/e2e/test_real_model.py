"""A real language model through the real trainer and every engine that this machine has."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.common.reports.evaluation import Row, read_rows
from tests.conftest import ROOT, copy_repository, run_in

pytestmark = pytest.mark.e2e

# the default, with fewer rows and items
SMALL = [
    "data.max_rows=64",
    "benchmark.val_items=12",
    "benchmark.test_items=4",
    "train.max_steps=8",
    "train.logging_steps=1",
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct from its package, fine-tuned for eight steps and asked the validation
    items.
    """
    folder = copy_repository(tmp_path_factory.mktemp("real"))
    (folder / ".venv-serve").symlink_to(ROOT / ".venv-serve")
    run_in(folder, sys.executable, "-m", "stages.common.config", *SMALL)
    run_in(folder, "dvc", "repro", "eval_val")
    return folder


def test_a_real_model_is_fetched_converted_and_stops_by_itself(real: Path) -> None:
    base = json.loads((real / "models/base.json").read_text())
    assert base["parameters"] == 134_515_008
    assert "Paris" in base["generation_check"]["text"] and base["generation_check"]["tokens"] < 20


def test_real_training_lowers_the_loss(real: Path) -> None:
    report = json.loads((real / "reports/train.json").read_text())
    assert report["steps"] == 8 and report["trainable_parameters"] == 4_884_480
    assert report["final_loss"] < 0.8 * report["initial_loss"]


@pytest.mark.parametrize("engine", ["vllm_cpu", "vllm"])
def test_every_engine_serves_the_fine_tuned_model(
    real: Path, engine: str, need: Callable[[str], None]
) -> None:
    need("serve")
    need(engine)
    if engine == "vllm":
        need("gpu")
        need("compiler")
    before = read_rows(real / "reports/eval_val/val.jsonl", Row)
    # float32 on both sides, so that an answer differs by a near tie alone, and not by the precision
    run_in(
        real,
        sys.executable,
        "-m",
        "stages.common.config",
        *SMALL,
        f"engine={engine}",
        "engine.dtype=float32",
    )
    run_in(real, "dvc", "repro", "eval_val")
    after = read_rows(real / "reports/eval_val/val.jsonl", Row)
    run_in(real, sys.executable, "-m", "stages.evaluate", "--base", "--split", "val")
    base = read_rows(real / "reports/baseline/val.jsonl", Row)
    run_in(real, sys.executable, "-m", "stages.common.config", *SMALL)
    run_in(real, "dvc", "repro", "eval_val")
    assert [row.item_id for row in after] == [row.item_id for row in before] and len(after) == 24
    assert different(before, after) <= 2, (
        "near ties, of which another kind of CPU or GPU may turn one"
    )
    assert different(base, after) > 12, "the base answers in the adapter's place"


def different(one: list[Row], other: list[Row]) -> int:
    return sum(
        first.prediction != second.prediction for first, second in zip(one, other, strict=True)
    )
