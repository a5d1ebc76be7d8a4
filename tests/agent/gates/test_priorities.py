"""The data come first where answers are made up, the model's variant where it does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import Tried, priorities
from agent.gates.proposal import Change
from tests.agent.scenes import AGENT, GOOD, HALF, KNOWN, WIDER

DATA = replace(
    HALF,
    name="audit",
    kind="data_quality",
    changes=(),
    why=f"{HALF.why} A person audits a sample of 50 rows [unverified].",
)
PHRASINGS = [
    "It hallucinates product names",
    "factual errors",
    "the wrong entity names",
    "answers are made up",
    "It invents facts",
    "incorrect product names",
    "gets facts wrong",
    "confuses entity names",
    "mixes up people",
    "names that do not exist",
    "it makes stuff up",
    "the prices it states are false",
    "inaccurate information about the company",
    "cites non-existent sources",
    "claims that are not true",
    "answers are not grounded in our catalog",
    "it lies about our products",
    "dates are often mistaken",
    "halucinations",
    "outdated product information",
    "bogus references",
    "swaps the names of our brands",
    "it misquotes the manual",
]
VARIANT = replace(HALF, name="instruct", kind="model_variant", changes=())


@pytest.mark.parametrize("reported", PHRASINGS)
def test_made_up_answers_want_the_data_first(reported: str) -> None:
    known = replace(KNOWN, agent=replace(AGENT, reported=reported))
    assert "data_quality has to come before" in priorities.check(GOOD, known)[0].reason
    assert priorities.check(replace(GOOD, options=(DATA, WIDER)), known) == []
    assert priorities.check(replace(GOOD, options=(WIDER, DATA)), known)


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "too slow",
        "answers are too long",
        "it refuses to answer",
        "it stops early",
        "does not follow the format",
        "the tone is wrong",
    ],
)
def test_other_reports_do_not(reported: str) -> None:
    assert priorities.check(GOOD, replace(KNOWN, agent=replace(AGENT, reported=reported))) == []


@pytest.mark.parametrize(
    ("stage", "chat", "wrong"),
    [
        ("sft", False, True),
        ("pt", True, True),
        ("sft", True, False),
        ("pt", False, False),
        ("dpo", False, True),
    ],
)
def test_a_variant_that_does_not_fit_comes_before_everything(
    stage: str, chat: bool, wrong: bool
) -> None:
    known = replace(
        KNOWN,
        params={**KNOWN.params, "train.stage": stage},
        situation=replace(KNOWN.situation, chat=chat),
    )
    assert bool(priorities.check(GOOD, known)) is wrong
    assert bool(priorities.check(replace(GOOD, options=(VARIANT, HALF)), known)) is False


def test_both_at_once_have_an_order() -> None:
    known = replace(
        KNOWN,
        agent=replace(AGENT, reported="hallucinations"),
        situation=replace(KNOWN.situation, chat=False),
    )
    assert priorities.check(replace(GOOD, options=(VARIANT, DATA, HALF)), known) == []
    assert priorities.check(replace(GOOD, options=(DATA, VARIANT, HALF)), known)


def test_a_data_option_changes_data_alone() -> None:
    mixed = replace(DATA, changes=(Change("data.near_duplicates", 0.0, 0.9), *HALF.changes))
    assert (
        "changes data and nothing else"
        in priorities.check(replace(GOOD, options=(mixed, WIDER)), KNOWN)[0].reason
    )


@pytest.mark.parametrize(
    "key",
    [
        "data.max_rows",
        "data.eval_fraction",
        "data.sources.mine.count",
        "data.stratify",
        "data.think_tags",
    ],
)
def test_a_change_of_data_that_makes_no_row_righter_is_no_care_for_its_quality(key: str) -> None:
    option = replace(DATA, changes=(Change(key, 0, 100),))
    assert (
        "does not change the quality"
        in priorities.check(replace(GOOD, options=(option, WIDER)), KNOWN)[0].reason
    )
    better = replace(DATA, changes=(Change("data.sources.mine.verify", "none", "scorer"),))
    assert priorities.check(replace(GOOD, options=(better, WIDER)), KNOWN) == []


def test_an_option_for_a_person_says_what_the_person_does() -> None:
    vague = replace(DATA, why=HALF.why)
    assert (
        "says what a person does"
        in priorities.check(replace(GOOD, options=(vague, WIDER)), KNOWN)[0].reason
    )
    for what in (
        "Check entity names against the expected outputs",
        "Add grounding context to each row",
        "Read 80 rows of the sample",
    ):
        option = replace(DATA, why=f"{HALF.why} {what} [unverified].")
        assert priorities.check(replace(GOOD, options=(option, WIDER)), KNOWN) == []


@pytest.mark.parametrize(("stage", "wrong"), [("sft", True), ("pt", False), ("dpo", True)])
def test_a_base_model_with_a_chat_template_is_a_base_model(stage: str, wrong: bool) -> None:
    known = replace(
        KNOWN,
        params={**KNOWN.params, "train.stage": stage},
        situation=replace(KNOWN.situation, chat=True, instruct=False),
    )
    assert bool(priorities.variant(known)) is wrong


def test_the_lora_check_list_is_looked_up_once_there_is_a_history() -> None:
    tried = replace(KNOWN, tried=[Tried("0001-start", "KEPT", {}, 0.6)])
    assert (
        "a higher rank and a lower learning rate and the format"
        in priorities.check(GOOD, tried)[0].reason
    )
    said = (
        f"{GOOD.verified} A higher rank, a lower learning rate and the format were not tried yet"
        " [situation]."
    )
    assert priorities.check(replace(GOOD, verified=said), tried) == []
    assert (
        priorities.check(
            GOOD, replace(tried, params={**KNOWN.params, "train.finetuning_type": "full"})
        )
        == []
    )
