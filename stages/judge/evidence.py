"""Paired evidence from per-item results. Pure functions: rows in, numbers out.

Each item is one pair, its repeats averaged within it first, so that n counts independent items and not model calls.

- p-value: the exact sign-flip test of the per-item differences (Fisher 1935). With one repeat that is McNemar's exact test
  (McNemar 1947, Psychometrika 12:153), a binomial test of the discordant pairs. `p_better` is one-sided, its alternative that the
  candidate is better: it is the one compared with alpha. `p_two_sided` is reported beside it.
- interval: Tango's 95 % score interval of the difference of paired proportions (Tango 1998, Statistics in Medicine 17:891; recommended by
  Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33:2850). It inverts McNemar's score test and holds at n = 1, without
  discordant pairs and with nothing else. With repeats the two counts are the sums of the positive and the negative differences: an item's
  difference lies in [-1, 1], so its variance is at most that of a -1, 0 or 1 with these sums: the interval errs towards width.
- further items: the sample size of Connor (1987, Biometrics 43:207) for paired proportions at the observed rates, with power 0.8.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stages.common.errors import PawlError
from stages.common.items import Row, lenient, wilson

Z95 = 1.959963984540054
POWER = 0.8
MAX_REPEATS = 1000


class Pair(NamedTuple):
    """One item on both sides. The four shares are of its repeats; `units` is the difference in whole units of 1 / `scale`."""

    candidate: float
    incumbent: float
    candidate_lenient: float
    incumbent_lenient: float
    units: int
    scale: int


class _Side:
    """One side's answers by (benchmark, item_id): gold, correct and leniently correct repeats, and which repeats are there."""

    def __init__(self, rows: Iterable[Row], name: str) -> None:
        self.items: dict[tuple[str, str], list[Any]] = {}
        twice, changed = [], []
        for row in rows:
            if not 0 <= row.repeat < MAX_REPEATS:
                raise PawlError(f"the {name} has a row with repeat {row.repeat}", where=f"item {row.item_id}", fix="repeats count from 0")
            key = (row.benchmark, row.item_id)
            item = self.items.setdefault(key, [row.gold, 0, 0, 0])
            if item[3] >> row.repeat & 1:
                twice.append(key)
            elif item[0] != row.gold:
                changed.append(key)
            item[1] += row.correct
            item[2] += lenient(row)
            item[3] |= 1 << row.repeat
        if not self.items:
            raise PawlError(f"the {name} has no rows", fix="evaluate it again: 'dvc repro -f' on its stage")
        if twice:
            raise PawlError(
                f"{_count(twice)} duplicated in the {name}: {_names(twice)}", fix="evaluate it again: an item is one row a repeat"
            )
        if changed:
            raise PawlError(f"{_count(changed)} with two answer keys in the {name}: {_names(changed)}", fix="evaluate it again")
        masks = Counter(item[3] for item in self.items.values())
        self.mask = masks.most_common(1)[0][0]
        self.repeats = self.mask.bit_count()
        if len(masks) > 1:
            odd = [key for key, item in self.items.items() if item[3] != self.mask]
            raise PawlError(f"{_count(odd)} in the {name} without the repeats that the others have: {_names(odd)}", fix="evaluate it again")


def pair(candidate: Iterable[Row], incumbent: Iterable[Row]) -> dict[str, list[Pair]]:
    """Pair two evaluations item by item, for each benchmark; the time is linear in the number of rows.

    Raises:
        PawlError: an item that is missing, duplicated, of other content, or short of a repeat on one side; named and counted.
    """
    left, right = _Side(candidate, "candidate"), _Side(incumbent, "incumbent")
    fix = "evaluate both sides on the same items: a benchmark that changed needs the incumbent evaluated again"
    for only, name, other in ((left, "candidate", right), (right, "incumbent", left)):
        if alone := [key for key in only.items if key not in other.items]:
            sizes = f"candidate {len(left.items)} items, incumbent {len(right.items)}"
            raise PawlError(f"{_count(alone)} only in the {name} ({sizes}): {_names(alone)}", fix=fix)
    if changed := [key for key, item in left.items.items() if item[0] != right.items[key][0]]:
        raise PawlError(f"{_count(changed)} with another answer key on the two sides: {_names(changed)}", fix=fix)
    pairs: dict[str, list[Pair]] = {}
    r, s = left.repeats, right.repeats
    for key in sorted(left.items):
        (_, a, a_lenient, _), (_, b, b_lenient, _) = left.items[key], right.items[key]
        pairs.setdefault(key[0], []).append(Pair(a / r, b / s, a_lenient / r, b_lenient / s, a * s - b * r, r * s))
    return pairs


def _count(keys: Sequence[Any]) -> str:
    return f"{len(keys)} item{'s' if len(keys) > 1 else ''}"


def _names(keys: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"{benchmark}/{item}" for benchmark, item in sorted(set(keys))[:3])
    return shown + (", ..." if len(set(keys)) > 3 else "")


def evidence(pairs: dict[str, list[Pair]], alpha: float, min_effect: float) -> dict[str, Any]:
    """Figures pooled over all items and for each benchmark, and what they decide before any veto (see `decide`)."""
    pooled = figures([pair for part in pairs.values() for pair in part])
    outcome, why = decide(pooled, alpha, min_effect)
    return {
        "alpha": alpha,
        "min_effect": min_effect,
        "outcome": outcome,
        "why": why,
        "pooled": pooled,
        "benchmarks": {name: figures(part) for name, part in pairs.items()},
        "further_items": further_items(pooled, alpha, min_effect) if outcome == "inconclusive" else None,
    }


def figures(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The evidence of one set of pairs.

    Returns:
        n (items); candidate, incumbent: accuracy with a 95 % Wilson interval, and lenient accuracy; difference of the strict accuracies,
        low and high (95 % interval), lenient_difference; p_better, p_two_sided; candidate_only, incumbent_only: items on which that side
        alone was right (with repeats: was right more often); gain, loss: sums of the positive and of the negative differences.
    """
    n, scale = len(pairs), pairs[0].scale
    units = [pair.units for pair in pairs]
    gain = sum(unit for unit in units if unit > 0) / scale
    loss = -sum(unit for unit in units if unit < 0) / scale
    low, high = tango(gain, loss, n)
    better, two_sided = sign_flip(units)
    lenient_sides = [math.fsum(pair[k] for pair in pairs) / n for k in (2, 3)]
    return {
        "n": n,
        "candidate": _side(math.fsum(pair.candidate for pair in pairs), n, lenient_sides[0]),
        "incumbent": _side(math.fsum(pair.incumbent for pair in pairs), n, lenient_sides[1]),
        "difference": sum(units) / (scale * n),
        "low": low,
        "high": high,
        "lenient_difference": lenient_sides[0] - lenient_sides[1],
        "p_better": better,
        "p_two_sided": two_sided,
        "candidate_only": sum(unit > 0 for unit in units),
        "incumbent_only": sum(unit < 0 for unit in units),
        "gain": gain,
        "loss": loss,
    }


def _side(correct: Any, n: int, lenient_accuracy: float) -> dict[str, float]:
    low, high = wilson(correct, n)  # of a mean of repeats too: its variance is at most that of a single answer
    return {"accuracy": correct / n, "low": low, "high": high, "lenient": lenient_accuracy}


def sign_flip(units: Sequence[int]) -> tuple[float, float]:
    """Exact one-sided (sum above zero) and two-sided p-values of differences whose signs are fair coins under the null hypothesis.

    Differences of one size follow a binomial distribution; several sizes (repeats) are convolved, each on its own grid,
    and a p-value below 1e-12 is then given as 1e-12.
    """
    import numpy as np
    from scipy.signal import convolve
    from scipy.stats import binom, binomtest

    sizes = Counter(abs(unit) for unit in units if unit)
    if not sizes:
        return 1.0, 1.0
    if len(sizes) == 1:
        n, k = sizes.total(), sum(unit > 0 for unit in units)
        return float(binomtest(k, n, alternative="greater").pvalue), float(binomtest(k, n).pvalue)
    step = math.gcd(*sizes)
    floor, pmf = 1e-12, np.ones(1)  # below the floor lies the rounding of the convolution
    for size, count in sorted(sizes.items()):
        part = np.zeros(size // step * count + 1)
        part[:: size // step] = binom.pmf(np.arange(count + 1), count, 0.5)
        pmf = np.clip(convolve(pmf, part), 0, 1)
    positive = sum(unit for unit in units if unit > 0) // step
    further = max(positive, len(pmf) - 1 - positive)
    better, beyond = float(pmf[positive:].sum()), 2 * float(pmf[further:].sum())
    return min(1.0, max(floor, better)), min(1.0, max(floor, beyond))


def tango(gain: float, loss: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Score interval of the difference (gain - loss) / n of two paired proportions, from the discordant counts.

    Inverts the score statistic of Tango (1998), with the constrained maximum-likelihood estimate of the discordant probability.
    """
    from scipy.optimize import brentq

    def statistic(delta: float) -> float:
        b = -gain - loss + (2 * n - gain + loss) * delta
        c = -loss * delta * (1 - delta)
        q = (math.sqrt(max(b * b - 8 * n * c, 0)) - b) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        top = gain - loss - n * delta
        if variance <= 0:
            return math.copysign(math.inf, top) if top else 0.0
        return top / math.sqrt(variance)

    def root(target: float, near: float, far: float) -> float:
        def function(delta: float) -> float:
            return max(-1e9, min(1e9, statistic(delta) - target))

        return float(brentq(function, near, far, xtol=1e-12)) if function(far) * function(near) < 0 else far

    centre, edge = (gain - loss) / n, 1 - 1e-12
    low = -1.0 if centre <= -edge else root(z, centre, -edge)
    high = 1.0 if centre >= edge else root(-z, centre, edge)
    return (-1.0 if low <= -edge else low), (1.0 if high >= edge else high)


def decide(pooled: dict[str, Any], alpha: float, min_effect: float) -> tuple[str, str]:
    """The outcome and its reason, from the evidence alone.

    accept: p_better < alpha, and the difference is at least min_effect.
    reject: no gain was observed, or the whole interval lies below min_effect.
    inconclusive: neither; both a worthwhile gain and none are within the interval. It is not an acceptance.
    """
    if pooled["difference"] <= 0:
        return "reject", "no gain"
    if pooled["p_better"] < alpha and pooled["difference"] >= min_effect:
        return "accept", "better"
    if pooled["high"] < min_effect:
        return "reject", "gain too small"
    return "inconclusive", "gain uncertain" if pooled["difference"] >= min_effect else "gain perhaps too small"


def further_items(pooled: dict[str, Any], alpha: float, min_effect: float) -> dict[str, Any]:
    """How many more items would decide, were the observed rates the true ones (Connor 1987, power 0.8).

    Returns:
        towards: accept, where the observed gain is at least min_effect, else reject; items: the number; power.
    """
    from scipy.stats import norm

    n, delta = pooled["n"], pooled["difference"]
    discordant = (pooled["gain"] + pooled["loss"]) / n
    towards = "accept" if delta >= min_effect else "reject"
    z = norm.isf(alpha) if towards == "accept" else Z95
    distance = delta if towards == "accept" else min_effect - delta
    spread = z * math.sqrt(discordant) + norm.ppf(POWER) * math.sqrt(max(discordant - delta * delta, 0))
    needed = math.ceil((spread / distance) ** 2)
    return {"towards": towards, "items": max(1, needed - n), "power": POWER}
