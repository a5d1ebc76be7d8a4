"""Nothing is tried twice, and what is close says how it differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import Tried, repeat
from tests.agent.scenes import GOOD, HALF, KNOWN, broken, moved

HALVED = Tried("0002-half", "DISCARDED, difference -0.010", {"train.learning_rate": 0.0005}, 0.652)
START = Tried("0001-start", "KEPT", {}, 0.662)


def test_a_repetition_is_refused_and_named() -> None:
    found = repeat.check(GOOD, replace(KNOWN, tried=[START, HALVED]))
    assert [(each.option, "repeats 0002-half (DISCARDED" in each.reason) for each in found] == [
        ("half-rate", True)
    ]


def test_a_repetition_is_one_however_the_present_state_has_moved() -> None:
    # the present state is 0002: rank 32; what was tried had rank 16 and half the rate
    past = Tried(
        "0003-both", "DISCARDED", {"train.lora_rank": 16, "train.learning_rate": 0.0005}, 0.6
    )
    now = replace(KNOWN, params={**KNOWN.params, "train.lora_rank": 32}, tried=[past])
    assert not [each for each in repeat.check(GOOD, now) if each.option == "half-rate"]
    both = broken(
        changes=(
            *HALF.changes,
            replace(HALF.changes[0], key="train.lora_rank", before=32, after=16),
        )
    )
    assert [each.option for each in repeat.check(both, now)] == ["half-rate"]


def test_what_composes_to_the_same_is_a_repetition_too() -> None:
    known = replace(
        KNOWN,
        repeats=lambda overrides: (
            "this repeats 0007-x" if overrides == ["train.lora_rank=32"] else ""
        ),
    )
    assert [(each.option, each.reason) for each in repeat.check(GOOD, known)] == [
        ("rank-32", "this repeats 0007-x")
    ]


def test_what_is_close_says_what_is_different() -> None:
    close = replace(
        KNOWN, tried=[START, replace(HALVED, differing={"train.learning_rate": 0.0006})]
    )
    found = repeat.check(GOOD, close)
    assert [each.option for each in found] == ["half-rate"] and "say in `different`" in found[
        0
    ].reason
    assert repeat.check(broken(different="the schedule had not ended then"), close) == []
    assert repeat.check(GOOD, replace(close, agent=replace(KNOWN.agent, near=0.1))) == []


def test_the_present_state_and_a_double_are_refused() -> None:
    assert (
        "changes nothing"
        in repeat.check(moved("train.learning_rate", 0.001, 0.001), KNOWN)[0].reason
    )
    double = replace(GOOD, options=(HALF, replace(HALF, name="again")))
    assert "changes the same as option half-rate" in repeat.check(double, KNOWN)[0].reason


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(1, 3, 1.0), (3, 1, 1.0), (1, 1, 0.0), (1, 100, 2.0), ("x", "y", 1.0), (0, 0.1, 1.0)],
)
def test_distance_counts_threefold_steps(a: object, b: object, expected: float) -> None:
    assert abs(repeat.distance(a, b) - expected) < 1e-9
