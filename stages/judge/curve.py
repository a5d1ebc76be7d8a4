"""What a loss curve says, by simple rules that anyone can check by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from stages.common.losses import Loss
from stages.common.reports.verdict import Curve, Rate, Shape

FEWEST = 8
"""Logged training losses below which a shape cannot be told."""


def read_curve(losses: Sequence[Loss]) -> Curve:
    """Name the shape of the training loss, from its logged losses.

    The logged training losses are cut into four quarters with medians q1 to q4. Noise is taken from
    how much one loss differs from the next, at the median, which is deaf to the trend and to single
    spikes. First rule that holds:
        diverging: a loss is not finite, or q4 is above the lowest quarter by more than 10 % of q1
        and by more than noise. too short: fewer than 8 logged losses.
        oscillating: in the second half, a logged loss differs from the next by more than 15 % of q1
        and 75 % of the half's median. flat: q4 is less than 5 % below q1.
        falling: q4 is more than 5 % of q1 below q3, and by more than noise, so more steps would
        lower it further. converged: none of these.
    overfitting: the last evaluation loss is more than 5 % above the lowest one.
    learning_rate: "too high" if the loss diverges or oscillates, or ends more than 25 % and more
    than noise above its first value;
        "too low" if it is flat; "" if the curve says nothing against it. A bump while the rate
        warms up, or the noise of small batches, is no sign of either.
    """
    train = [loss for _, split, loss, *_ in losses if split == "train"]
    held_out = [loss for _, split, loss, *_ in losses if split == "eval"]
    shape = _shape(train)
    rate: Rate = "too low" if shape == "flat" else ""
    return Curve(
        shape=shape,
        learning_rate="too high" if _too_high(shape, train) else rate,
        overfitting=len(held_out) > 1 and not held_out[-1] <= 1.05 * min(held_out),
        logged=len(train),
    )


def _shape(train: list[float]) -> Shape:
    if not all(math.isfinite(loss) for loss in train):
        return "diverging"
    if len(train) < FEWEST:
        return "too short"
    q1, q2, q3, q4 = map(median, _quarters(train))
    if q4 - min(q1, q2, q3) > max(0.1 * q1, _doubt(train)):
        return "diverging"
    half = train[len(train) // 2 :]
    if median(_steps(half)) > max(0.15 * q1, 0.75 * median(half)):
        return "oscillating"
    if q1 - q4 < 0.05 * q1:
        return "flat"
    return "falling" if q3 - q4 > max(0.05 * q1, _doubt(train)) else "converged"


def _too_high(shape: str, train: list[float]) -> bool:
    if shape in ("diverging", "oscillating"):
        return True
    return shape != "too short" and median(_quarters(train)[3]) - train[0] > max(
        0.25 * train[0], _doubt(train)
    )


def _quarters(train: list[float]) -> list[list[float]]:
    n = len(train)
    return [train[k * n // 4 : (k + 1) * n // 4] for k in range(4)]


def _steps(losses: Sequence[float]) -> list[float]:
    return [abs(b - a) for a, b in pairwise(losses)]


def _doubt(train: list[float]) -> float:
    """Twice the standard error of a difference of two quarters' medians (1.2533 that of a mean), if
    nothing but noise lies between them.
    """
    noise = 1.4826 / math.sqrt(2) * median(_steps(train))
    return 2 * 1.2533 * noise * math.sqrt(2 / (len(train) / 4))
