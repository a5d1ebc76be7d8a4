"""Tests and intervals of paired differences. Pure functions of numbers.

- `sign_flip`: the exact sign-flip (paired permutation) test (Fisher 1935). Of right-or-wrong
  answers with one repeat it is McNemar's exact test (McNemar 1947, Psychometrika 12:153), a
  binomial test of the discordant pairs.
- `tango`: Tango's score interval of the difference of paired proportions (Tango 1998, Statistics
  in Medicine 17:891; recommended by Fagerland, Lydersen and Laake 2014, Statistics in Medicine
  33:2850). It inverts McNemar's score test and holds at n = 1, and without discordant pairs.
- `bootstrap`: the BCa bootstrap (Efron 1987, JASA 82:171) of the mean of differences that are no
  mere -1, 0 or 1 (repeats, partial credit).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FLOOR = 1e-12
"""Below it lies the rounding of the convolution: a smaller p-value is given as this."""
BUDGET = 20_000_000
"""Distinct sizes times grid points that a convolution may cost (about a second)."""
FEWEST = 30
"""Items, below which a bootstrap is not trusted and Tango's interval is taken instead."""
MOST = 2000
"""Items, above which the bootstrap and the interval of Student's t agree to the third digit."""
RESAMPLES = 9999
FEWEST_BEYOND = 50
"""Resamples in a tail, below which its quantile is not trusted: at a late look an interval is
Tango's too.
"""


def on_a_grid(differences: Any) -> Any:
    """Real differences as integers: multiples of a step so small as the budget allows.

    Rounding to the nearest multiple treats both signs alike, so the sign-flip test of the rounded
    differences is exact too.
    """
    largest = float(np.abs(differences).max(initial=0.0))
    if largest == 0:
        return np.zeros(len(differences), dtype=np.int64)
    steps = int(min(1000, max(8, math.sqrt(BUDGET / len(differences)))))
    return np.rint(differences / largest * steps).astype(np.int64)


def sign_flip(units: Any) -> tuple[float, float]:
    """Exact one-sided (sum above zero) and two-sided p-values of differences whose signs are fair
    coins under the null hypothesis.

    Args:
        units: one difference an item, in whole units.

    Differences of one size follow a binomial distribution; several sizes are convolved, each on its
    own grid.
    """
    units = np.asarray(units, dtype=np.int64)
    sizes, counts = np.unique(np.abs(units[units != 0]), return_counts=True)
    if not len(sizes):
        return 1.0, 1.0
    if len(sizes) == 1:
        n, k = int(counts[0]), int((units > 0).sum())
        return at_least(k, n), min(1.0, 2 * at_least(max(k, n - k), n))
    step = int(np.gcd.reduce(sizes))
    if len(sizes) * int(sizes @ counts) // step > 2 * BUDGET:
        return sign_flip(on_a_grid(units))
    from scipy.signal import convolve
    from scipy.stats import binom

    pmf = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        part = np.zeros(size // step * count + 1)
        part[:: size // step] = binom.pmf(np.arange(count + 1), count, 0.5)
        pmf = np.clip(convolve(pmf, part), 0, 1)
    positive = int(units[units > 0].sum()) // step
    further = max(positive, len(pmf) - 1 - positive)
    better, beyond = float(pmf[positive:].sum()), 2 * float(pmf[further:].sum())
    return min(1.0, max(FLOOR, better)), min(1.0, max(FLOOR, beyond))


def at_least(k: Any, n: Any) -> Any:
    """P(X >= k) of a fair coin thrown n times; numbers or arrays. The incomplete beta function,
    which keeps its digits far in the tail.
    """
    from scipy.special import betainc  # scipy.stats would take half a second to import

    tail = np.where(
        np.asarray(k) <= 0,
        1.0,
        betainc(np.maximum(k, 1), np.maximum(np.asarray(n) - k + 1, 1), 0.5),
    )
    return tail if tail.ndim else float(tail)


def bounds(differences: Any, gain: float, loss: float, tail: float) -> tuple[float, float, str]:
    """Interval of the mean difference with probability `tail` outside on either side, and the
    method's name.

    Args:
        differences: one an item, in [-1, 1].
        gain, loss: sums of the positive and of the negative ones, both as positive numbers.
    """
    n = len(differences)
    nonzero = np.abs(differences[differences != 0])
    binary = bool((nonzero == 1).all())
    if (
        binary
        or n < FEWEST
        or len(nonzero) < 10
        or (n <= MOST and tail * RESAMPLES < FEWEST_BEYOND)
    ):
        # an item's difference lies in [-1, 1], so its variance is at most that of a -1, 0 or 1 with
        # these sums: it errs towards width
        return (*tango(gain, loss, n, z_of(tail)), "Tango score interval")
    return bootstrap(differences, tail)


def z_of(tail: float) -> float:
    """The normal quantile with probability `tail` above it."""
    from scipy.special import ndtri

    return -float(ndtri(tail))


def bootstrap(differences: Any, tail: float) -> tuple[float, float, str]:
    """BCa interval of the mean, seeded; above `MOST` items, or where BCa is undefined, that of
    Student's t.
    """
    from scipy.stats import bootstrap as resample
    from scipy.stats import t

    n = len(differences)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(n)
    if n <= MOST and error > 0:
        done = resample(
            (differences,),
            np.mean,
            n_resamples=RESAMPLES,
            confidence_level=1 - 2 * tail,
            method="BCa",
            batch=200,
            rng=np.random.default_rng(0),
        ).confidence_interval
        if math.isfinite(done.low) and math.isfinite(done.high):
            return float(done.low), float(done.high), "BCa bootstrap"
    half = float(t.isf(tail, n - 1)) * error
    return max(-1.0, mean - half), min(1.0, mean + half), "Student's t"


def tango(gain: float, loss: float, n: int, z: float) -> tuple[float, float]:
    """Score interval of the difference (gain - loss) / n of two paired proportions, from the
    discordant counts.

    Inverts the score statistic of Tango (1998), with the constrained maximum-likelihood estimate of
    the discordant probability. `z` is the normal quantile of one tail.
    """
    from scipy.optimize import brentq

    def root(target: float, near: float, far: float) -> float:
        def function(delta: float) -> float:
            return max(-1e9, min(1e9, tango_score(gain, loss, n, delta) - target))

        return (
            float(brentq(function, near, far, xtol=1e-12))
            if function(far) * function(near) < 0
            else far
        )

    centre, edge = (gain - loss) / n, 1 - 1e-12
    low = -1.0 if centre <= -edge else root(z, centre, -edge)
    high = 1.0 if centre >= edge else root(-z, centre, edge)
    return (-1.0 if low <= -edge else low), (1.0 if high >= edge else high)


def tango_score(gain: float, loss: float, n: int, delta: float) -> float:
    """Tango's statistic of the hypothesis that the difference is `delta`: standard normal under it,
    large where it is larger.
    """
    b = -gain - loss + (2 * n - gain + loss) * delta
    c = -loss * delta * (1 - delta)
    q = (math.sqrt(max(b * b - 8 * n * c, 0)) - b) / (4 * n)
    variance = n * (2 * q + delta * (1 - delta))
    top = gain - loss - n * delta
    if variance <= 0:
        return math.copysign(math.inf, top) if top else 0.0
    return top / math.sqrt(variance)
