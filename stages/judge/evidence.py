"""Paired evidence from per-item results, and what it decides. Pure functions: pairs in, numbers
out.

Each item is one pair, its repeats averaged within it first, so that n counts independent items and
not model calls.

- p-value: the exact sign-flip test, McNemar's where answers are right or wrong and asked once.
  `p_better` is one-sided, its alternative that the candidate is better: only accepting can be a
  false alarm here, so all of alpha stands on that side. It is compared with the level of this
  look (see `stages.common.looks`). `p_two_sided` is reported beside it. The coins are fair for
  exchangeable answers: one answer an item, or equally many; of repeats it is exact where no item
  differs, and holds for large n where gains on some items make up for losses on others.
- interval: 95 %, two-sided, without a correction for looks (see `stages.judge.significance`).
- min_effect: the observed difference has to reach it, besides p. It is no margin of the test,
  since +5 points at n = 1,000 would then be found in 80 % instead of 92 % of the cases; a gain
  smaller than it is not accepted however certain it is.
- a guarded benchmark (all but the primary one; all, where the pooled accuracy decides and there
  are several) has to be shown not to lose more than `max_regression`: the lower end of its
  one-sided interval at the level of this look lies above -max_regression (non-inferiority;
  Piaggio et al. 2012, JAMA 308:2594). An acceptance needs all of them and the gain, so it is an
  intersection-union test (Berger 1982, Technometrics 24:295): no correction among its parts, but
  its level is that of the most lenient one. So each has the level that looks leave: at alpha
  each time, 40 % of series would let one of ten candidates past that lose just the margin.
- further items: the sample size of Connor (1987, Biometrics 43:207) for paired differences at
  the observed rates, at the level of the next look and with power 0.8. Further repeats: the
  number at which the share of the variance that repeats average out has shrunk enough; none
  where each item was asked once, since nothing is known of that share then, or where no number
  suffices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stages.common.errors import PawlError
from stages.common.items import wilson
from stages.common.looks import spend
from stages.common.reports.verdict import (
    Evidence,
    Figures,
    Further,
    Guarded,
    Metric,
    Outcome,
    Sided,
)
from stages.judge.pairing import Pairs
from stages.judge.significance import at_least, bounds, on_a_grid, sign_flip, z_of

POWER = 0.8


@dataclass(frozen=True)
class Rule:
    """When a candidate counts as better; the names are those of the section `judge`. `look` counts
    from 1.
    """

    alpha: float = 0.05
    min_effect: float = 0.01
    look: int = 1
    primary: str = ""
    max_regression: float = 0.1
    metric: Metric = "correct"

    @property
    def level(self) -> float:
        return spend(self.alpha, self.look)


def evidence(pairs: dict[str, Pairs], rule: Rule) -> Evidence:
    """Figures of each benchmark and of all items, and what they decide before any veto.

    Raises:
        PawlError: the primary benchmark is not among them.
    """
    if rule.primary and rule.primary not in pairs:
        raise PawlError(
            f"judge.primary is {rule.primary!r}, which is no benchmark of this run",
            where="judge.primary",
            fix=f"one of: {', '.join(pairs)}",
        )
    pooled = figures(_together(pairs), rule.metric)
    benchmarks = {name: figures(part, rule.metric) for name, part in pairs.items()}
    decisive = benchmarks[rule.primary] if rule.primary else pooled
    guarded = [
        _guard(name, pairs[name], benchmarks[name], rule)
        for name in pairs
        if name != rule.primary and len(pairs) > 1
    ]
    outcome, why = decide(decisive, guarded, rule)
    return Evidence(
        alpha=rule.alpha,
        look=rule.look,
        level=rule.level,
        min_effect=rule.min_effect,
        metric=rule.metric,
        primary=rule.primary,
        outcome=outcome,
        why=why,
        pooled=pooled,
        benchmarks=benchmarks,
        guarded=guarded,
        further_items=(
            further(pairs, decisive, benchmarks, guarded, why, rule)
            if outcome == "inconclusive"
            else None
        ),
    )


def _together(pairs: dict[str, Pairs]) -> Pairs:
    parts = list(pairs.values())
    sides = []
    for name in ("candidate", "incumbent"):
        each = [getattr(part, name) for part in parts]
        joined = (
            np.concatenate([getattr(side, column) for side in each])
            for column in ("correct", "lenient", "score")
        )
        sides.append(type(each[0])(each[0].repeats, *joined))
    return Pairs(*sides)


def figures(pairs: Pairs, metric: Metric = "correct") -> Figures:
    """The evidence of one set of pairs."""
    a, b, n = pairs.candidate, pairs.incumbent, len(pairs)
    difference, units = _differences(pairs, metric)
    gain, loss = float(difference.clip(min=0).sum()), float((-difference).clip(min=0).sum())
    low, high, method = bounds(difference, gain, loss, 0.025)
    better, two_sided = sign_flip(units)
    candidate, incumbent = _side(a, n), _side(b, n)
    return Figures(
        n=n,
        repeats=[a.repeats, b.repeats],
        candidate=Sided(**candidate),
        incumbent=Sided(**incumbent),
        difference=float(difference.mean()),
        low=low,
        high=high,
        interval=method,
        lenient_difference=candidate["lenient"] - incumbent["lenient"],
        score_difference=candidate["score"] - incumbent["score"],
        p_better=better,
        p_two_sided=two_sided,
        candidate_only=int((units > 0).sum()),
        incumbent_only=int((units < 0).sum()),
        gain=gain,
        loss=loss,
        spread=float(difference.std()),
        within=_within(pairs) if metric == "correct" else None,
    )


def _differences(pairs: Pairs, metric: Metric) -> tuple[Any, Any]:
    """One difference an item in [-1, 1], and the same in whole units for the exact test."""
    a, b = pairs.candidate, pairs.incumbent
    if metric == "score":
        difference = a.score / a.repeats - b.score / b.repeats
        return difference, on_a_grid(difference)
    units = a.correct - b.correct  # `pair` has seen that both were asked equally often
    return units / a.repeats, units


def _within(pairs: Pairs) -> float | None:
    """Mean over the items of the estimated variance of their difference around its own
    expectation.
    """
    if min(pairs.candidate.repeats, pairs.incumbent.repeats) < 2:
        return None
    shares = [
        (side.correct / side.repeats, side.repeats) for side in (pairs.candidate, pairs.incumbent)
    ]
    return float(sum((p * (1 - p) / (r - 1)).mean() for p, r in shares))


def _side(side: Any, n: int) -> dict[str, float]:
    share = float(side.correct.sum()) / side.repeats / n
    # of a mean of repeats too: its variance is at most that of a single answer
    low, high = wilson(share * n, n)
    calls = n * side.repeats
    return {
        "accuracy": share,
        "low": low,
        "high": high,
        "lenient": float(side.lenient.sum()) / calls,
        "score": float(side.score.sum()) / calls,
    }


def _guard(name: str, pairs: Pairs, found: Figures, rule: Rule) -> Guarded:
    difference, _ = _differences(pairs, rule.metric)
    low, high, _ = bounds(difference, found.gain, found.loss, rule.level)
    verdict: Literal["kept", "lost", "unknown"] = "unknown"
    if low > -rule.max_regression:
        verdict = "kept"
    elif high < -rule.max_regression:
        verdict = "lost"
    return Guarded(benchmark=name, low=low, high=high, margin=rule.max_regression, verdict=verdict)


def decide(decisive: Figures, guarded: list[Guarded], rule: Rule) -> tuple[Outcome, str]:
    """The outcome and its reason, from the evidence alone.

    accept: p_better is below the level of this look, the difference is at least min_effect, no
    guarded benchmark may have lost too much. reject: no gain was observed, or the whole interval
    lies below min_effect, or a guarded benchmark lost too much. inconclusive: none of these; it is
    not an acceptance.
    """
    if decisive.difference <= 0:
        return "reject", "no gain"
    if decisive.high < rule.min_effect:
        return "reject", "gain too small"
    if any(each.verdict == "lost" for each in guarded):
        return "reject", "regression"
    if decisive.difference < rule.min_effect:
        return "inconclusive", "gain perhaps too small"
    if decisive.p_better >= rule.level:
        return "inconclusive", "gain uncertain"
    if any(each.verdict == "unknown" for each in guarded):
        return "inconclusive", "regression not excluded"
    return "accept", "better"


def further(
    pairs: dict[str, Pairs],
    decisive: Figures,
    benchmarks: dict[str, Figures],
    guarded: list[Guarded],
    why: str,
    rule: Rule,
) -> Further:
    """How many more items, or more repeats of the present ones, would decide, were the observed
    rates the true ones.
    """
    name, found, level = rule.primary, decisive, spend(rule.alpha, rule.look + 1)
    towards: Literal["accept", "reject"] = "accept"
    if why == "regression not excluded":
        open_ones = [each.benchmark for each in guarded if each.verdict == "unknown"]
        name = max(open_ones, key=lambda each: -benchmarks[each].difference)
        found = benchmarks[name]
        distance = found.difference + rule.max_regression
        if distance <= 0:
            towards = "reject"
    elif why == "gain uncertain":
        distance = found.difference
    else:
        towards, level, distance = "reject", 0.025, rule.min_effect - found.difference
    distance = max(abs(distance), 1e-6)
    n, second = found.n, found.spread**2 + found.difference**2
    spread = z_of(level) * math.sqrt(second) + z_of(1 - POWER) * found.spread
    needed = math.ceil((spread / distance) ** 2)
    repeats = _further_repeats(found, spread / distance)
    return Further(
        benchmark=name, towards=towards, items=max(1, needed - n), repeats=repeats, power=POWER
    )


def _further_repeats(found: Figures, ratio: float) -> int | None:
    """Further repeats at which n items have the standard error that `ratio` squared items at the
    present spread would have.
    """
    within, variance, repeats = found.within, found.spread**2, min(found.repeats)
    if not within:
        return None
    allowed = variance * found.n / ratio**2 - (variance - within)
    return None if allowed <= 0 else max(1, math.ceil(repeats * within / allowed) - repeats)


def accepted(wins: Any, losses: Any, n: int, rule: Rule) -> Any:
    """`decide` for arrays of experiments on one benchmark asked once: from discordant pairs."""
    return (
        (at_least(wins, wins + losses) < rule.level)
        & ((wins - losses) / n >= rule.min_effect)
        & (wins > losses)
    )
