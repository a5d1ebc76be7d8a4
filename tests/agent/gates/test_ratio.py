"""A factor of three at most, unless a quote names the value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import ratio
from agent.gates.proposal import Change, Quote
from tests.agent.scenes import CARD, GOOD, HALF, KNOWN, RATE, broken, moved, refusals


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
    assert (
        ratio.check(
            moved("train.learning_rate", 0.001, 0.0002, evidence=(quote, HALF.evidence[0])), KNOWN
        )
        == []
    )
    for other in (
        Quote("A rate of 2e-4 is usual for all.", RATE),  # not what it says
        Quote("The initial learning rate for the optimizer.", RATE),  # names no value
        Quote("Its authors advise a learning rate of 5e-4", CARD),  # another value
    ):
        assert ratio.check(moved("train.learning_rate", 0.001, 0.0002, evidence=(other,)), KNOWN)


def test_the_present_state_is_no_source_for_a_jump() -> None:
    quote = Quote("train.learning_rate is 0.001 in the present configuration.", "[situation]")
    known = type(KNOWN)(
        **{**KNOWN.__dict__, "params": {**KNOWN.params, "train.learning_rate": 0.01}}
    )
    assert ratio.check(moved("train.learning_rate", 0.01, 0.001, evidence=(quote,)), known)
    assert ratio.check(GOOD, KNOWN) == []


@pytest.mark.parametrize(
    ("key", "after"),
    [("train.learning_rate", "1e-1"), ("train.lora_rank", "512"), ("train.max_steps", "9")],
)
def test_a_number_written_as_a_text_is_refused_since_hydra_would_read_it_as_the_number(
    key: str, after: str
) -> None:
    assert [each.option for each in ratio.check(moved(key, KNOWN.params[key], after), KNOWN)] == [
        "half-rate"
    ]


def test_a_number_where_nothing_was_set_needs_a_quote_that_names_it() -> None:
    assert (
        "names 50"
        in ratio.check(moved("train.extra.neftune_noise_alpha", None, 50), KNOWN)[0].reason
    )


def test_an_experiment_of_ours_is_no_source_for_a_jump() -> None:
    told = "Experiment 0002-x changed train.learning_rate from 0.001 to 0.0001 and was DISCARDED."
    known = replace(KNOWN, sources={**KNOWN.sources, "[experiment: 0002-x]": told})
    quote = Quote("changed train.learning_rate from 0.001 to 0.0001 and", "[experiment: 0002-x]")
    assert ratio.check(moved("train.learning_rate", 0.001, 0.0001, evidence=(quote,)), known)


def test_the_beginning_of_a_number_in_a_source_is_not_that_number() -> None:
    known = replace(
        KNOWN,
        sources={
            **KNOWN.sources,
            CARD: "We train with a lora_rank of 128 here, a rate of 0.00015, or 2.5e-4 later.",
        },
    )
    for key, before, after, text in (
        ("train.lora_rank", 16, 1, "We train with a lora_rank of 1"),
        ("train.lora_rank", 2, 12, "We train with a lora_rank of 12"),
        ("train.learning_rate", 0.001, 0.0001, "learning_rate here, a rate of 0.0001"),
    ):
        assert ratio.check(moved(key, before, after, evidence=(Quote(text, CARD),)), known), text


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: float = 2e-4, the initial learning rate",
        "The learning_rate has a default of 2e-4 in this class.",
        "We recommend a learning_rate above the default of 2e-4.",
        "Set the learning_rate, which should be 2e-4 by default.",
    ],
)
def test_a_quoted_default_is_no_recommendation(text: str) -> None:
    known = replace(KNOWN, sources={**KNOWN.sources, RATE: text})
    assert ratio.check(
        moved("train.learning_rate", 0.001, 0.0002, evidence=(Quote(text, RATE),)), known
    )


def test_a_recommendation_beside_a_default_is_one() -> None:
    text = "We recommend a learning_rate of 2e-4 for adapters in place of the default 5e-5."
    known = replace(KNOWN, sources={**KNOWN.sources, RATE: text})
    assert (
        ratio.check(
            moved("train.learning_rate", 0.001, 0.0002, evidence=(Quote(text, RATE),)), known
        )
        == []
    )
    assert ratio.check(
        moved("train.learning_rate", 0.001, 0.00005, evidence=(Quote(text, RATE),)), known
    )


def test_changes_that_are_allowed_one_by_one_are_too_much_together() -> None:
    steps = [
        ("train.learning_rate", 0.001, 0.003),
        ("train.lora_rank", 16, 48),
        ("train.num_train_epochs", 1.0, 3.0),
    ]
    four = (*(Change(*each) for each in steps), Change("train.per_device_train_batch_size", 8, 24))
    found = ratio.check(broken(changes=four, several="all of them"), KNOWN)
    assert len(found) == 1 and "by a factor of 81 together" in found[0].reason
    small = (
        Change("train.learning_rate", 0.001, 0.0015),
        Change("train.num_train_epochs", 1.0, 1.5),
    )
    assert ratio.check(broken(changes=small), KNOWN) == []


def test_parameters_that_move_together_count_once() -> None:
    scaled = (Change("train.lora_rank", 16, 48), Change("train.lora_alpha", 32, 96))
    assert ratio.check(broken(changes=scaled), KNOWN) == []
    known = replace(KNOWN, params={**KNOWN.params, "train.gradient_accumulation_steps": 4})
    same_batch = (
        Change("train.per_device_train_batch_size", 8, 16),
        Change("train.gradient_accumulation_steps", 4, 2),
    )
    assert ratio.check(broken(changes=same_batch), known) == []
    assert ratio.check(broken(changes=(scaled[0], Change("train.lora_alpha", 32, 16))), KNOWN)


def test_a_jump_is_told_beside_a_present_value_that_is_wrong() -> None:
    proposal = moved("train.learning_rate", 0.0002, 0.0001)
    assert {each.gate for each in refusals(proposal)} >= {"ratio", "specific"}
    assert "from 0.001 to 0.0001 is a factor of 0.1" in ratio.check(proposal, KNOWN)[0].reason
