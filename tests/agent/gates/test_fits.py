"""Memory by the training stage's estimate, time by what the last run took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import fits
from tests.agent.scenes import AGENT, GOOD, HALF, KNOWN, moved


def test_what_does_not_fit_into_memory_is_refused() -> None:
    known = replace(
        KNOWN,
        memory=lambda overrides: (
            "needs 90 GiB, there are 24" if "train.lora_rank=32" in overrides else ""
        ),
    )
    assert [(each.option, each.reason) for each in fits.check(GOOD, known)] == [
        ("rank-32", "needs 90 GiB, there are 24")
    ]


def test_what_takes_longer_than_is_left_is_refused() -> None:
    three = moved("train.num_train_epochs", 1.0, 3.0)
    assert fits.seconds(three.options[0], KNOWN) == 300 + 3 * 400
    assert (
        "0.42 h, and 0.3 h are left" in fits.check(three, replace(KNOWN, hours_left=0.3))[0].reason
    )
    assert fits.check(three, replace(KNOWN, hours_left=0.5)) == []
    assert fits.check(three, replace(KNOWN, agent=replace(AGENT, timeout_h=0.3)))


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, 610),
        ({"train.num_train_epochs": 2.0}, 1220),
        ({"train.max_steps": 10}, 80),
        ({"data.max_rows": 100}, 100),
        ({"train.max_steps": 10, "train.gradient_accumulation_steps": 4}, 320),
    ],
)
def test_the_rows_that_all_steps_read(changes: dict[str, float], seen: float) -> None:
    assert fits.rows_seen({**KNOWN.params, **changes}, 610) == seen


def test_memory_is_not_asked_about_what_is_refused_already() -> None:
    from agent import gates

    asked: list[list[str]] = []
    known = replace(KNOWN, memory=lambda overrides: asked.append(overrides) or "")  # type: ignore[func-returns-value]
    gates.check(replace(GOOD, options=(replace(HALF, at_least=0.1), GOOD.options[1])), known)
    assert asked == [["train.lora_rank=32"]]
