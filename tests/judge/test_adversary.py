"""An adversary that is told one bit a look gets no more than alpha; one that sees gains gets much."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from stages.common.errors import PawlError
from stages.judge import __main__ as judge
from stages.judge.adversary import false_acceptances, shares
from stages.judge.evidence import Rule
from stages.judge.simulate import adversarial

PAIRS = 300
NOISE = 3 * (0.05 * 0.95 / PAIRS) ** 0.5


def share(looks: int, shown: str, items: int = 400) -> float:
    rng = np.random.default_rng(7)
    return false_acceptances(rng, looks, PAIRS, Rule(0.05, 0.01), items)[shown] / PAIRS


@pytest.mark.parametrize("looks", [1, 10, 100])
def test_one_bit_a_look_gives_an_adversary_no_more_than_alpha(looks: int) -> None:
    assert share(looks, "bit") <= 0.05 + NOISE


def test_shown_gains_let_an_adversary_have_a_null_candidate_accepted() -> None:
    assert share(100, "scores") > 0.7
    assert share(30, "scores") > 0.05 + NOISE
    assert share(1, "scores") == share(1, "bit"), "nothing was shown before the first look"


def test_the_same_seed_gives_the_same_shares_with_intervals_that_hold_them() -> None:
    found = shares(10, 50, 3, Rule(0.05, 0.01))
    assert found == shares(10, 50, 3, Rule(0.05, 0.01))
    for shown in ("bit", "scores"):
        assert found[shown]["low"] <= found[shown]["share"] <= found[shown]["high"]


def test_the_command_prints_json_and_leaves_the_page_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = "judge simulate --adversary --looks 5 --pairs 20"
    monkeypatch.setattr(sys, "argv", words.split())
    assert judge.main() == 0
    told = json.loads(capsys.readouterr().out)
    assert told["looks"] == 5
    assert {"bit", "scores"} <= set(told)


@pytest.mark.parametrize(("looks", "pairs"), [(0, 10), (-1, 10), (5, 0)])
def test_a_series_of_nothing_is_refused(looks: int, pairs: int) -> None:
    with pytest.raises(PawlError, match=r"looks|simulated experiments"):
        adversarial(looks, pairs, 1)
