"""A factor of three at most, unless a quote names the value."""

from __future__ import annotations

import pytest

from agent.gates import ratio
from agent.proposal import Quote
from tests.agent.scenes import CARD, GOOD, HALF, KNOWN, RATE, moved


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("train.learning_rate", 0.001, 0.0003),
        ("train.learning_rate", 0.001, 0.0031),
        ("train.lora_rank", 16, 64),
        ("train.lora_rank", 16, 4),
        ("train.max_steps", -1, 24),
        ("train.weight_decay", 0.0, 0.01),
        ("train.lora_dropout", 0.0, 0.2),
        ("data.max_rows", 0, 100),
        ("train.num_train_epochs", 1.0, 0.0),
    ],
)
def test_a_larger_jump_is_refused(key: str, before: float, after: float) -> None:
    found = ratio.check(moved(key, before, after), KNOWN)
    assert len(found) == 1 and key in found[0].reason and f"names {after}" in found[0].reason


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("train.learning_rate", 0.001, 0.003),
        ("train.learning_rate", 0.003, 0.001),
        ("train.lora_rank", 16, 48),
        ("train.lr_scheduler_type", "cosine", "linear"),
        ("train.lora_dropout", 0.0, 0.1),
        ("train.lora_dropout", 0.1, 0.0),
    ],
)
def test_a_step_within_the_factor_passes(key: str, before: object, after: object) -> None:
    assert ratio.check(moved(key, before, after), KNOWN) == []


def test_a_quoted_source_that_names_the_value_lets_a_jump_pass() -> None:
    quote = Quote("A rate of 2e-4 is usual for adapters.", RATE)
    assert ratio.check(moved("train.learning_rate", 0.001, 0.0002, evidence=(quote, HALF.evidence[0])), KNOWN) == []
    for other in (
        Quote("A rate of 2e-4 is usual for all.", RATE),  # not what it says
        Quote("The initial learning rate for the optimizer.", RATE),  # names no value
        Quote("Its authors advise a learning rate of 5e-4", CARD),  # another value
    ):
        assert ratio.check(moved("train.learning_rate", 0.001, 0.0002, evidence=(other,)), KNOWN)


def test_the_present_state_is_no_source_for_a_jump() -> None:
    quote = Quote("train.learning_rate is 0.001 in the present configuration.", "[situation]")
    known = type(KNOWN)(**{**KNOWN.__dict__, "params": {**KNOWN.params, "train.learning_rate": 0.01}})
    assert ratio.check(moved("train.learning_rate", 0.01, 0.001, evidence=(quote,)), known)
    assert ratio.check(GOOD, KNOWN) == []
