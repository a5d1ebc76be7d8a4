"""The data come first where answers are made up, the model's variant where it does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import priorities
from agent.proposal import Change
from tests.agent.scenes import AGENT, GOOD, HALF, KNOWN, WIDER

DATA = replace(HALF, name="audit", kind="data_quality", changes=())
VARIANT = replace(HALF, name="instruct", kind="model_variant", changes=())


@pytest.mark.parametrize(
    "reported", ["It hallucinates product names", "factual errors", "the wrong entity names", "answers are made up", "It invents facts"]
)
def test_made_up_answers_want_the_data_first(reported: str) -> None:
    known = replace(KNOWN, agent=replace(AGENT, reported=reported))
    assert "data_quality has to come before" in priorities.check(GOOD, known)[0].reason
    assert priorities.check(replace(GOOD, options=(DATA, WIDER)), known) == []
    assert priorities.check(replace(GOOD, options=(WIDER, DATA)), known)


@pytest.mark.parametrize("reported", ["", "too slow", "answers are too long", "it refuses to answer"])
def test_other_reports_do_not(reported: str) -> None:
    assert priorities.check(GOOD, replace(KNOWN, agent=replace(AGENT, reported=reported))) == []


@pytest.mark.parametrize(
    ("stage", "chat", "wrong"), [("sft", False, True), ("pt", True, True), ("sft", True, False), ("pt", False, False), ("dpo", False, True)]
)
def test_a_variant_that_does_not_fit_comes_before_everything(stage: str, chat: bool, wrong: bool) -> None:
    known = replace(KNOWN, params={**KNOWN.params, "train.stage": stage}, situation=replace(KNOWN.situation, chat=chat))
    assert bool(priorities.check(GOOD, known)) is wrong
    assert bool(priorities.check(replace(GOOD, options=(VARIANT, HALF)), known)) is False


def test_both_at_once_have_an_order() -> None:
    known = replace(KNOWN, agent=replace(AGENT, reported="hallucinations"), situation=replace(KNOWN.situation, chat=False))
    assert priorities.check(replace(GOOD, options=(VARIANT, DATA, HALF)), known) == []
    assert priorities.check(replace(GOOD, options=(DATA, VARIANT, HALF)), known)


def test_a_data_option_changes_data_alone() -> None:
    mixed = replace(DATA, changes=(Change("data.max_rows", 0, 100), *HALF.changes))
    assert "changes data and nothing else" in priorities.check(replace(GOOD, options=(mixed, WIDER)), KNOWN)[0].reason
