"""A factor of three at most, unless a quote names the value."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize(("key", "after"), [("train.learning_rate", "1e-1"), ("train.lora_rank", "512"), ("train.max_steps", "9")])
def test_a_number_written_as_a_text_is_refused_since_hydra_would_read_it_as_the_number(key: str, after: str) -> None:
    assert [each.option for each in ratio.check(moved(key, KNOWN.params[key], after), KNOWN)] == ["half-rate"]


def test_a_number_where_nothing_was_set_needs_a_quote_that_names_it() -> None:
    assert "names 50" in ratio.check(moved("train.extra.neftune_noise_alpha", None, 50), KNOWN)[0].reason


def test_an_experiment_of_ours_is_no_source_for_a_jump() -> None:
    told = "Experiment 0002-x changed train.learning_rate from 0.001 to 0.0001 and was DISCARDED."
    known = replace(KNOWN, sources={**KNOWN.sources, "[experiment: 0002-x]": told})
    quote = Quote("changed train.learning_rate from 0.001 to 0.0001 and", "[experiment: 0002-x]")
    assert ratio.check(moved("train.learning_rate", 0.001, 0.0001, evidence=(quote,)), known)


def test_the_beginning_of_a_number_in_a_source_is_not_that_number() -> None:
    known = replace(KNOWN, sources={**KNOWN.sources, CARD: "We train with a lora_rank of 128 here, a rate of 0.00015, or 2.5e-4 later."})
    for key, before, after, text in (
        ("train.lora_rank", 16, 1, "We train with a lora_rank of 1"),
        ("train.lora_rank", 2, 12, "We train with a lora_rank of 12"),
        ("train.learning_rate", 0.001, 0.0001, "learning_rate here, a rate of 0.0001"),
    ):
        assert ratio.check(moved(key, before, after, evidence=(Quote(text, CARD),)), known), text
