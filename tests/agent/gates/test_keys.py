"""A parameter exists: ours, or LLaMA-Factory's below train.extra."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import keys
from tests.agent.scenes import GOOD, HALF, KNOWN, broken, moved


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("train.learning_rte", "did you mean train.learning_rate?"),
        ("train.extra.neftune_noise_alfa", "LLaMA-Factory has train.extra.neftune_noise_alpha"),
        ("train.neftune_noise_alpha", "LLaMA-Factory has train.extra.neftune_noise_alpha"),
        ("learning_rate", "did you mean train.learning_rate?"),
    ],
)
def test_an_unknown_parameter_is_refused_and_the_nearest_named(key: str, near: str) -> None:
    assert [each.reason for each in keys.check(moved(key, 1, 2), KNOWN)] == [
        f"there is no parameter {key}; {near}"
    ]


def test_known_parameters_pass() -> None:
    assert (
        keys.check(GOOD, KNOWN) == []
        and keys.check(moved("train.extra.neftune_noise_alpha", None, 5), KNOWN) == []
    )


def test_a_name_in_the_prose_is_known_stands_in_a_source_or_is_marked() -> None:
    said = broken(why=f"{HALF.why} `completion_only_loss` does it [unverified].")
    assert "there is no parameter `completion_only_loss`" in keys.check(said, KNOWN)[0].reason
    marked = broken(why=f"{HALF.why} `completion_only_loss` # VERIFY does it [unverified].")
    assert keys.check(marked, KNOWN) == []
    assert (
        keys.check(
            broken(why=f"{HALF.why} `lora_rank` and `neftune_noise_alpha` [unverified]."), KNOWN
        )
        == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "completion_only_loss does it",
        "with completion_only_loss=true",
        "train.rank_of_lora does it",
        "train.rank does it",
    ],
)
def test_a_name_in_the_prose_is_checked_without_backticks_too(text: str) -> None:
    assert (
        "there is no parameter"
        in keys.check(broken(why=f"{HALF.why} Perhaps {text} [unverified]."), KNOWN)[0].reason
    )


@pytest.mark.parametrize(
    "text",
    [
        "lora_rank and train.learning_rate matter",
        "constant_with_warmup is steady",
        "see example.org/a_b",
        "e.g. this",
    ],
)
def test_words_that_are_parameters_values_or_addresses_pass(text: str) -> None:
    known = replace(
        KNOWN, params={**KNOWN.params, "train.lr_scheduler_type": "constant_with_warmup"}
    )
    assert keys.check(broken(why=f"{HALF.why} Perhaps {text} [unverified]."), known) == []
