"""What the agent may touch, and what it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import reach
from tests.agent.scenes import GOOD, KNOWN, moved


@pytest.mark.parametrize(
    "key",
    [
        "benchmark.seed", "judge.alpha", "engine.dtype", "evaluate.max_output_tokens", "experiment.incumbent", "agent.budget.trials",
        "tracking.kind",
        "launcher.kind", "data.ngram", "data.max_contamination", "data.max_bad_fraction", "data.sources.mine.path",
        "data.sources.mine.part",
        "data.sources.mine.kind", "data.sources.mine.task", "model.path", "model.package", "model.sha256", "train.device", "train.name",
        "train.extra.output_dir", "train.extra.trust_remote_code", "train.extra.hub_token", "train.extra.dataset_dir",
        "train.extra.report_to", "train.extra.ref_model", "train.extra.eval_dataset",
        "stages/judge/evidence.py", "",
    ],
)  # fmt: skip
def test_an_edit_outside_is_refused(key: str) -> None:
    assert [each.gate for each in reach.check(moved(key, 1, 2), KNOWN)] == ["reach"]


@pytest.mark.parametrize("key", ["train.learning_rate", "data.max_rows", "data.sources.mine.count", "train.extra.neftune_noise_alpha"])
def test_training_and_data_are_open(key: str) -> None:
    assert reach.check(moved(key, 1, 2), KNOWN) == []


def test_another_model_is_an_option_of_its_own_kind() -> None:
    assert "model_variant" in reach.check(moved("model.repo", "a/b", "a/c"), KNOWN)[0].reason
    assert reach.check(moved("model.repo", "a/b", "a/c", kind="model_variant"), KNOWN) == []


def test_what_does_not_compose_is_refused_with_the_reason() -> None:
    known = replace(KNOWN, resolve=lambda overrides: "out of range" if "train.lora_rank=32" in overrides else "")
    assert [(each.option, each.reason) for each in reach.check(GOOD, known)] == [("rank-32", "out of range")]
