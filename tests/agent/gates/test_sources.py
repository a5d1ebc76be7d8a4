"""Only what was fetched is cited, and every angle that has a source is."""

from __future__ import annotations

from dataclasses import replace

from agent.gates import sources
from agent.proposal import Quote
from tests.agent.scenes import CARD, GOOD, HALF, KNOWN, WIDER, broken


def test_a_page_that_was_not_fetched_is_refused_and_the_near_one_named() -> None:
    proposal = broken(why=f"{HALF.why} It says so [source](https://huggingface.co/acme/tiny2).")
    assert [each.reason for each in sources.check(proposal, KNOWN)] == [
        f"why: [source](https://huggingface.co/acme/tiny2) was not fetched; did you mean {CARD}?"
    ]


def test_a_quote_needs_a_citation_that_is_one() -> None:
    proposal = broken(evidence=(*HALF.evidence, Quote("five words that stand here", "the model card")))
    assert [each.reason for each in sources.check(proposal, KNOWN)] == ['no citation: "the model card"']


def test_a_knowledge_base_page_and_an_experiment_that_are_not_there_are_refused() -> None:
    proposal = broken(why=f"{HALF.why} A [PageID: Workflow/X]. B [experiment: 0009-none].")
    assert ["not fetched" in each.reason for each in sources.check(proposal, KNOWN)] == [True, True]


def test_an_angle_that_has_sources_has_to_be_quoted() -> None:
    assert sources.check(GOOD, KNOWN) == []
    reported = replace(KNOWN, angles=KNOWN.angles | {"problem"})
    assert "nothing is quoted about the problem" in sources.check(GOOD, reported)[0].reason
    bare = replace(GOOD, options=(replace(HALF, evidence=HALF.evidence[1:]), replace(WIDER, evidence=WIDER.evidence[:1])))
    assert "nothing is quoted about the model" in sources.check(bare, KNOWN)[0].reason
