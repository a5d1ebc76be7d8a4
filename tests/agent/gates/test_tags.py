"""Numbers and recommendations have sources, and the sources have the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import tags
from tests.agent.scenes import AGENT, CARD, GOOD, HALF, KNOWN, RATE, broken

CLAIM = HALF.why


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Set the rate lower.", "a recommendation without a source"),
        ("It has 24 heads.", "a number or a recommendation without a source"),
        ("The learning_rate matters here.", "without a source"),
        (f"It has 24 layers {CARD}.", "24 is in none of the sources"),
        (f"A rate of 3e-4 is usual {RATE}.", "0.0003 is in none of the sources"),
        (f"A rate of 5e-2 is advised {CARD}.", "0.05 is in none"),
        (f"It has 1200 layers {CARD}.", "1200 is in none"),
        (f"A first claim {CARD}. Then use more rows.", "without a source"),
        ("Llama uses grouped-query attention.", "a claim without a source"),
        ("SmolLM2 in fp16 looks alike.", "a claim without a source"),
    ],
)
def test_a_claim_without_its_source_is_refused(text: str, reason: str) -> None:
    found = [each.reason for each in tags.check(broken(why=f"{CLAIM} {text}"), KNOWN)]
    assert len(found) == 1 and reason in found[0], found


@pytest.mark.parametrize(
    "text",
    [
        "The tone of the answers changes [unverified].",
        f"It has 12 layers {CARD}.",
        f"It has 12 layers. {CARD}",
        "It may have 24 heads [unverified].",
        f"The change of half, from 0.001 to 0.0005 or a ratio of 0.5, is small {RATE}.",
        "66.2 % of the items are right [situation].",
    ],
)
def test_a_claim_with_its_source_passes(text: str) -> None:
    assert tags.check(broken(why=f"{CLAIM} {text}"), KNOWN) == []


def test_fewer_than_six_citations_are_refused() -> None:
    few = replace(
        GOOD,
        verified="",
        options=(
            replace(HALF, evidence=(), disagreement="", expected="", why="It helps [unverified]."),
        ),
    )
    assert [each.reason for each in tags.check(few, KNOWN)] == ["1 citations in all, fewer than 6"]
    assert tags.check(few, replace(KNOWN, agent=replace(AGENT, min_tags=1))) == []


def test_without_any_source_every_technical_sentence_is_unverified() -> None:
    alone = replace(KNOWN, mode="none")
    assert any("no source could be read" in each.reason for each in tags.check(GOOD, alone))
    bare = broken(why="Use 5 epochs [unverified].", disagreement="")
    assert not [each for each in tags.check(bare, alone) if each.option == "half-rate"]


@pytest.mark.parametrize("field", ["why", "expected", "disagreement", "several", "different"])
def test_a_fact_without_a_number_needs_a_source_wherever_it_stands(field: str) -> None:
    found = [
        each.reason
        for each in tags.check(broken(**{field: "Llama uses grouped-query attention."}), KNOWN)
    ]
    assert any("a claim without a source" in reason for reason in found)


def test_the_condition_of_a_failure_plan_is_no_claim_and_what_follows_it_is() -> None:
    assert tags.check(broken(when="accuracy falls"), KNOWN) == []
    assert tags.check(broken(when="accuracy falls. Llama uses grouped-query attention."), KNOWN)
