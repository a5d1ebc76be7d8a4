"""A quote stands in its source, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import quotes
from agent.gates.proposal import Change, Quote
from tests.agent.scenes import CARD, HALF, KNOWN, RATE, broken

OTHER = HALF.evidence[1]


@pytest.mark.parametrize(
    ("quote", "reason"),
    [
        (Quote("Its authors advise a learning rate of 5e-5", CARD), "not in [source]"),
        (Quote("The initial learning rate for the optimizer.", CARD), "not in [source]"),
        (Quote("instruct model with 12 layers. Its author", CARD), "not in [source]"),
        (Quote("advise a learning rate of 5", CARD), "not in [source]"),
        (Quote("advise a learning rate of 5e-", CARD), "not in [source]"),
        (Quote("e-4 for short tasks. A tiny", CARD), "not in [source]"),
        (Quote("a learning rate of", CARD), "a quote of 4 words"),
        (Quote("word " * 31, CARD), "a quote of 31 words"),
    ],
)
def test_what_the_source_does_not_say_is_refused(quote: Quote, reason: str) -> None:
    found = [each.reason for each in quotes.check(broken(evidence=(quote, OTHER)), KNOWN)]
    assert reason in found[0] and "1 source(s)" in found[1]


@pytest.mark.parametrize(
    "text",
    [
        "its authors  advise\na learning rate",
        "Its authors advise a “learning” rate".replace("“", "").replace("”", ""),
    ],
)
def test_line_breaks_and_capitals_do_not_matter(text: str) -> None:
    assert quotes.check(broken(evidence=(Quote(text, CARD), OTHER)), KNOWN) == []


def test_two_quotes_of_one_source_are_one_source() -> None:
    same = (OTHER, Quote("A rate of 2e-4 is usual for adapters.", RATE))
    assert [each.reason for each in quotes.check(broken(evidence=same), KNOWN)] == [
        "1 source(s) with a quote that stands in it, fewer than 2"
    ]


def test_our_own_state_alone_is_no_evidence() -> None:
    ours = (
        Quote("The model is acme/tiny, fine-tuned on 610", "[situation]"),
        Quote("Experiment 0001-start changed nothing: a starting", "[experiment: 0001-start]"),
    )
    assert "nothing but our own" in quotes.check(broken(evidence=ours), KNOWN)[0].reason
    assert quotes.check(broken(evidence=(*ours, OTHER)), KNOWN) == []


def test_a_quote_is_about_what_changes_or_about_its_effect() -> None:
    rate = Quote("The initial learning rate for the optimizer.", RATE)
    model = Quote("A tiny instruct model with 12 layers.", CARD)
    rank = broken(1, evidence=(rate, model))
    assert [each.reason for each in quotes.check(rank, KNOWN)] == [
        "no quote is about train.lora_rank or its effect: quote a source on that parameter"
    ]
    effect = {**KNOWN.sources, CARD: "More trainable parameters overfit such short tasks soon."}
    about = broken(
        1, evidence=(rate, Quote("More trainable parameters overfit such short tasks", CARD))
    )
    assert [
        each
        for each in quotes.check(about, replace(KNOWN, sources=effect))
        if each.option == "rank-32"
    ] == []


def test_each_parameter_that_changes_needs_a_quote_of_its_own() -> None:
    two = broken(changes=(*HALF.changes, Change("train.lora_dropout", 0.0, 0.1)))
    assert "no quote is about train.lora_dropout" in quotes.check(two, KNOWN)[0].reason
