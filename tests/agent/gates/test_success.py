"""Success, failure and what comes then are said before the run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agent.gates import success
from agent.gates.proposal import Pitfall, from_json
from tests.agent.scenes import GOOD, KNOWN, broken, reply


@pytest.mark.parametrize("gate", [math.nan, 0.0, 1.2, math.inf])
def test_a_missing_success_gate_is_refused(gate: float) -> None:
    assert "no success gate" in success.check(broken(at_least=gate), KNOWN)[0].reason


def test_a_success_gate_on_another_metric_is_none() -> None:
    value = reply(GOOD)
    value["options"][0]["success"] = {"metric": "training loss", "at_least": 0.7}
    assert "no success gate" in success.check(from_json(value, "llm"), KNOWN)[0].reason


def test_what_is_there_already_is_no_success() -> None:
    assert "what there is already" in success.check(broken(at_least=0.662), KNOWN)[0].reason
    assert success.check(GOOD, KNOWN) == []


@pytest.mark.parametrize("other", ["half-rate", "nothing", ""])
def test_the_failure_plan_names_another_option(other: str) -> None:
    assert "no other option (rank-32)" in success.check(broken(instead=other), KNOWN)[0].reason


@pytest.mark.parametrize("pitfalls", [(), (Pitfall(" ", "up", 3),)])
def test_a_pitfall_has_a_metric(pitfalls: tuple[Pitfall, ...]) -> None:
    assert "no pitfall" in success.check(broken(pitfalls=pitfalls), KNOWN)[0].reason


def test_a_success_is_a_gain_worth_having() -> None:
    worth = replace(KNOWN, gain=0.02)
    assert (
        "less than judge.min_effect (0.02)" in success.check(broken(at_least=0.67), worth)[0].reason
    )
    assert not [
        each for each in success.check(broken(at_least=0.682), worth) if each.option == "half-rate"
    ]
    top = replace(worth, situation=replace(KNOWN.situation, accuracy=0.99))
    assert not [
        each for each in success.check(broken(at_least=1.0), top) if each.option == "half-rate"
    ]
