"""An adversary that learns from the judge's answers about the same items, and what it gets by it.

It submits candidates that are no better than the incumbent, one a look. The last one answers each
item as the weighted majority of all before it. On other items that is no better either. On these
items it is, as far as the weights know which candidates had luck with them (Blum and Hardt 2015,
arXiv 1502.04585, section 4).

- scores: it is shown each candidate's gain and weighs by it.
- bit: it is shown whether a candidate was accepted, and nothing else. Until the first acceptance
  that is the same answer each time, so all candidates weigh the same, and the bound on a series
  holds as if the candidates had been fixed in advance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stages.common.items import wilson
from stages.judge.evidence import Rule, accepted

ITEMS = 1000
RATE = 0.5
"""Accuracy of the incumbent and of every candidate on items that nobody has seen."""
SHOWN = ("bit", "scores")
BATCH = 4_000_000
"""Answers drawn at a time."""


def false_acceptances(
    rng: Any, looks: int, pairs: int, rule: Rule, items: int = ITEMS
) -> dict[str, int]:
    """Of `pairs` simulated series of `looks` looks, how many accept a candidate that is no better,
    for each kind of answer.
    """
    found = dict.fromkeys(SHOWN, 0)
    size = max(1, BATCH // (items * looks))
    for start in range(0, pairs, size):
        count = min(size, pairs - start)
        incumbent = rng.random((count, 1, items)) < RATE
        candidates = rng.random((count, looks, items)) < RATE
        gains = _wins(candidates, incumbent) - _wins(incumbent, candidates)
        before = _any_accepted(candidates[:, :-1], incumbent, rule)
        for shown in SHOWN:
            known = gains[:, :-1] if shown == "scores" else np.zeros_like(gains[:, :-1])
            last = _vote(candidates[:, :-1], known, candidates[:, -1])
            ends = _any_accepted(last[:, None], incumbent, rule, first=looks)
            found[shown] += int((before | ends).sum())
    return found


def _wins(side: Any, other: Any) -> Any:
    return (side & ~other).sum(axis=2)


def _any_accepted(candidates: Any, incumbent: Any, rule: Rule, first: int = 1) -> Any:
    """Whether a series accepts one of its candidates, which take look `first` and those after it.

    Args:
        candidates: right or wrong, of shape (series, looks, items).
    """
    wins, losses = _wins(candidates, incumbent), _wins(incumbent, candidates)
    items, any_accepted = candidates.shape[2], np.zeros(len(candidates), dtype=bool)
    for place in range(candidates.shape[1]):
        at = Rule(rule.alpha, rule.min_effect, first + place)
        any_accepted |= accepted(wins[:, place], losses[:, place], items, at)
    return any_accepted


def _vote(candidates: Any, gains: Any, tied: Any) -> Any:
    """The weighted majority, item by item; `tied` decides where it is even.

    What lies above the mean gain counts for a candidate, what lies below it against: the
    incumbent's own luck is in every gain. Without any knowledge all weigh the same.
    """
    if not candidates.shape[1]:
        return tied
    weights = gains - gains.mean(axis=1, keepdims=True)
    weights = np.where(weights.any(axis=1, keepdims=True), weights, 1.0)
    votes = np.einsum("sk,ski->si", weights, 2.0 * candidates - 1)
    return np.where(votes == 0, tied, votes > 0)


def shares(looks: int, pairs: int, seed: int, rule: Rule) -> dict[str, Any]:
    """What `python -m stages.judge simulate --adversary` prints: the share of series with a false
    acceptance, with its 95 % interval.
    """
    found = false_acceptances(np.random.default_rng(seed), looks, pairs, rule)
    told: dict[str, Any] = {"looks": looks, "pairs": pairs, "items": ITEMS, "alpha": rule.alpha}
    for shown, errors in found.items():
        low, high = wilson(errors, pairs)
        told[shown] = {"share": errors / pairs, "low": round(low, 4), "high": round(high, 4)}
    return told
