"""Only what was fetched is cited, and every angle that has a source is."""

from __future__ import annotations

from dataclasses import replace

from agent.gates import sources
from agent.gates.proposal import Quote
from tests.agent.scenes import CARD, GOOD, HALF, KNOWN, RATE, WIDER, broken


def test_a_page_that_was_not_fetched_is_refused_and_the_near_one_named() -> None:
    proposal = broken(why=f"{HALF.why} It says so [source](https://huggingface.co/acme/tiny2).")
    assert [each.reason for each in sources.check(proposal, KNOWN)] == [
        f"why: [source](https://huggingface.co/acme/tiny2) was not fetched; did you mean {CARD}?"
    ]


def test_a_quote_needs_a_citation_that_is_one() -> None:
    proposal = broken(
        evidence=(*HALF.evidence, Quote("five words that stand here", "the model card"))
    )
    assert [each.reason for each in sources.check(proposal, KNOWN)] == [
        'no citation: "the model card"'
    ]


def test_a_knowledge_base_page_and_an_experiment_that_are_not_there_are_refused() -> None:
    proposal = broken(why=f"{HALF.why} A [PageID: Workflow/X]. B [experiment: 0009-none].")
    assert ["not fetched" in each.reason for each in sources.check(proposal, KNOWN)] == [True, True]


def test_an_angle_that_has_sources_has_to_be_quoted() -> None:
    assert sources.check(GOOD, KNOWN) == []
    reported = replace(
        KNOWN, angles={**KNOWN.angles, "[source](https://forum.example)": frozenset({"problem"})}
    )
    assert "nothing is quoted about the problem" in sources.check(GOOD, reported)[0].reason
    bare = replace(
        GOOD,
        options=(
            replace(HALF, evidence=HALF.evidence[1:]),
            replace(WIDER, evidence=WIDER.evidence[:1]),
        ),
    )
    assert "nothing is quoted about the model" in sources.check(bare, KNOWN)[0].reason


def test_an_angle_is_what_its_page_covers_and_not_what_the_proposer_calls_it() -> None:
    called = tuple(replace(quote, about="model") for quote in HALF.evidence[1:])
    proposal = replace(
        GOOD, options=(replace(HALF, evidence=called), replace(WIDER, evidence=WIDER.evidence[:1]))
    )
    assert [each.reason for each in sources.check(proposal, KNOWN)] == [
        "nothing is quoted about the model, although sources on that were read"
    ]


SAID = Quote("learning_rate: float = 5e-05 The initial learning rate", RATE, "framework")


def test_sources_that_name_other_values_have_to_be_named_in_disagreement() -> None:
    silent = broken(evidence=(HALF.evidence[0], SAID), disagreement="")
    (refusal,) = sources.check(silent, KNOWN)
    assert (
        "name other values for train.learning_rate" in refusal.reason
        and "5e-05" in refusal.reason
        and "0.0005" in refusal.reason
    )
    # its disagreement cites both
    assert sources.check(broken(evidence=(HALF.evidence[0], SAID)), KNOWN) == []


def test_where_sources_disagree_the_conservative_value_is_taken() -> None:
    bold = broken(
        evidence=(HALF.evidence[0], SAID), changes=(replace(HALF.changes[0], after=0.00034),)
    )
    assert "goes further than the most conservative" in sources.check(bold, KNOWN)[0].reason
