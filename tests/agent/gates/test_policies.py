"""What keeps a run safe holds whoever proposes; what judges an argument asks only whoever
argues.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.gates import ARGUED, GATES, SAFE, Known, Tried, check, clean
from agent.gates.proposal import Change, Option, Proposal
from tests.agent.scenes import AGENT, GOOD, KNOWN

POLICIES = ("llm", "optuna")
RATE = Change("train.learning_rate", 0.001, 0.0005)
MADE_UP = replace(KNOWN, agent=replace(AGENT, reported="it hallucinates"))
HALVED = Tried("0002-half", "DISCARDED", {"train.learning_rate": 0.0005}, 0.6)
UNSAFE: dict[str, tuple[str, tuple[Change, ...], Known]] = {
    "a key that does not exist": ("keys", (Change("train.learning_rte", 0.001, 0.0005),), KNOWN),
    "the benchmark": ("reach", (Change("benchmark.seed", 1001, 1002),), KNOWN),
    "what guards the benchmark": ("reach", (Change("data.ngram", 13, 12),), KNOWN),
    "where rows come from": ("reach", (Change("data.sources.mine.repo", "a/b", "c/d"),), KNOWN),
    "luck": ("reach", (Change("data.seed", 1, 2),), KNOWN),
    "what composition refuses": ("reach", (RATE,), replace(KNOWN, resolve=lambda _: "no")),
    "what was tried": ("repeat", (RATE,), replace(KNOWN, tried=[HALVED])),
    "what composes to a former one": ("repeat", (RATE,), replace(KNOWN, repeats=lambda _: "no")),
    "the present state": ("repeat", (Change("train.learning_rate", 0.001, 0.001),), KNOWN),
    "a jump": ("ratio", (Change("train.learning_rate", 0.001, 0.0001),), KNOWN),
    "a jump that lies about where it starts": (
        "ratio",
        (Change("train.learning_rate", 0.0002, 0.0001),),
        KNOWN,
    ),
    "two steps that are a jump together": (
        "ratio",
        (Change("train.learning_rate", 0.001, 0.0004), Change("train.lora_rank", 16, 32)),
        KNOWN,
    ),
    "more time than is left": ("fits", (RATE,), replace(KNOWN, hours_left=0.01)),
    "more memory than there is": ("fits", (RATE,), replace(KNOWN, memory=lambda _: "90 GiB")),
}


def proposal(policy: str, changes: tuple[Change, ...], **more: Any) -> Proposal:
    """One option; of a language model it has the good proposal's argument beside it."""
    if policy == "optuna":
        return Proposal("", (Option("step", "parameter", changes, "drawn by TPE."),), policy)
    option = replace(GOOD.options[0], name="step", changes=changes, disagreement="", **more)
    other = replace(GOOD.options[1], instead="step")
    return replace(GOOD, options=(replace(option, instead=other.name), other), policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("what", UNSAFE)
def test_a_safety_gate_holds_for_every_policy(policy: str, what: str) -> None:
    gate, changes, known = UNSAFE[what]
    offered = proposal(policy, changes, expected="It may do better [unverified].")
    refused = check(offered, known)
    if gate == "fits" and policy == "llm":  # asked last, about what passed the rest
        offered = replace(GOOD, policy=policy)
        refused = check(offered, known)
    assert gate in {each.gate for each in refused}, [str(each) for each in refused]
    assert not [each for each in clean(offered, refused) if each.changes == changes]


@pytest.mark.parametrize("policy", POLICIES)
def test_made_up_answers_put_the_data_before_parameters_whoever_proposes(policy: str) -> None:
    offered = proposal(policy, (RATE,))
    assert clean(offered, check(offered, MADE_UP)) == []
    audit = Option("audit-data", "data_quality", (), "audit a sample of 50 rows")
    first = replace(offered, options=(audit, *offered.options))
    assert "" not in {each.option for each in check(first, MADE_UP) if each.gate == "priorities"}


def test_a_draw_has_no_argument_to_be_judged_by() -> None:
    assert check(proposal("optuna", (RATE,)), KNOWN) == []


@pytest.mark.parametrize("policy", ["llm", "", "mine"])
def test_whoever_else_proposes_has_to_argue(policy: str) -> None:
    drawn = replace(proposal("optuna", (RATE,)), policy=policy)
    assert set(ARGUED) - {"sources"} <= {each.gate for each in check(drawn, KNOWN)}


def test_every_gate_is_of_one_kind() -> None:
    assert sorted([*SAFE, *ARGUED]) == sorted(GATES)
