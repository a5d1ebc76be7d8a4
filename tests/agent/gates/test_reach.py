"""What the agent may touch, and what it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import reach
from agent.gates.proposal import Change
from tests.agent.scenes import GOOD, KNOWN, broken, moved


@pytest.mark.parametrize(
    "key",
    [
        "benchmark.seed",
        "judge.alpha",
        "engine.dtype",
        "evaluate.max_output_tokens",
        "experiment.incumbent",
        "agent.budget.trials",
        "tracking.kind",
        "launcher.kind",
        "data.ngram",
        "data.max_contamination",
        "data.max_bad_fraction",
        "data.sources.mine.path",
        "data.sources.mine.part",
        "data.sources.mine.kind",
        "data.sources.mine.task",
        "model.path",
        "model.package",
        "model.sha256",
        "train.device",
        "train.name",
        "train.extra.output_dir",
        "train.extra.trust_remote_code",
        "train.extra.hub_token",
        "train.extra.dataset_dir",
        "train.extra.report_to",
        "train.extra.ref_model",
        "train.extra.eval_dataset",
        "train.extra.swanlab_mode",
        "train.extra.seed",
        "train.extra.learning_rate",
        "train.extra.not_there_yet",
        "train.seed",
        "data.seed",
        "data.fuzzy",
        "data.sources.mine.answers",
        *(
            f"data.sources.mine.{name}"
            for name in (
                "repo",
                "revision",
                "subset",
                "split",
                "format",
                "columns",
                "columns.question",
            )
        ),
        *(
            f"data.teacher.strong.{name}"
            for name in ("model", "base_url", "api_key_env", "price_in", "price_out")
        ),
        "data.teacher.max_cost",
        "data.teacher.max_tokens",
        "data.new_since",
        "train.new_since",
        "stages/judge/evidence.py",
        "",
    ],
)
def test_an_edit_outside_is_refused(key: str) -> None:
    assert [each.gate for each in reach.check(moved(key, 1, 2), KNOWN)] == ["reach"]


@pytest.mark.parametrize(
    "key",
    ["train.learning_rate", "data.max_rows", "data.sources.mine.count", "train.extra.adam_beta2"],
)
def test_training_and_data_are_open(key: str) -> None:
    assert reach.check(moved(key, 1, 2), KNOWN) == []


def test_another_model_is_an_option_of_its_own_kind() -> None:
    assert "model_variant" in reach.check(moved("model.repo", "a/b", "a/c"), KNOWN)[0].reason
    assert reach.check(moved("model.repo", "a/b", "a/c", kind="model_variant"), KNOWN) == []


def test_what_does_not_compose_is_refused_with_the_reason() -> None:
    known = replace(
        KNOWN, resolve=lambda overrides: "out of range" if "train.lora_rank=32" in overrides else ""
    )
    assert [(each.option, each.reason) for each in reach.check(GOOD, known)] == [
        ("rank-32", "out of range")
    ]


@pytest.mark.parametrize(
    ("key", "params"),
    [
        ("model.repo", {"model.source": "package"}),
        ("model.revision", {"model.source": "path"}),
        ("train.lora_rank", {"train.finetuning_type": "full"}),
        ("train.pref_beta", {"train.stage": "sft"}),
        ("train.num_train_epochs", {"train.max_steps": 40}),
        ("data.sources.mine.candidates", {"data.sources.mine.recipe": ""}),
        (
            "data.teacher.weak.temperature",
            {"data.sources.mine.recipe": "answer", "data.sources.mine.tier": "strong"},
        ),
    ],
)
def test_a_key_that_nothing_reads_is_no_experiment(key: str, params: dict[str, object]) -> None:
    kind = "model_variant" if key.startswith("model.") else "parameter"
    known = replace(KNOWN, params={**KNOWN.params, **params})
    assert "is not read" in reach.check(moved(key, 1, 2, kind=kind), known)[0].reason


def test_a_key_is_read_once_the_same_option_changes_what_decides_that() -> None:
    known = replace(KNOWN, params={**KNOWN.params, "train.stage": "sft"})
    both = (Change("train.stage", "sft", "dpo"), Change("train.pref_beta", 0.1, 0.2))
    assert reach.check(broken(changes=both), known) == []
