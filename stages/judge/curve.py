"""What a loss curve says, by simple rules that anyone can check by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stages.common.losses import Loss

FEWEST = 8
"""Logged training losses below which a shape cannot be told."""


def read_curve(losses: Sequence[Loss]) -> dict[str, Any]:
    """Name the shape of the training loss, from its logged losses.

    The logged training losses are cut into four quarters with means q1 to q4; every threshold is a share of q1. First rule that holds:
        diverging: a loss is not finite, or q4 is more than 10 % above the lowest quarter.
        too short: fewer than 8 logged losses.
        oscillating: in the second half, one logged loss differs from the next by more than 15 % on average.
        flat: q4 is less than 5 % below q1.
        falling: q4 is more than 5 % below q3, so more steps would lower it further.
        converged: none of these.
    overfitting: the last evaluation loss is more than 5 % above the lowest one.
    learning_rate: "too high" where the loss diverges or oscillates, or rose by more than 25 % above its first value on its way;
        "too low" where it is flat; "" where the curve says nothing against it.
    """
    train = [loss for _, split, loss in losses if split == "train"]
    held_out = [loss for _, split, loss in losses if split == "eval"]
    shape = _shape(train)
    too_high = shape in ("diverging", "oscillating") or (len(train) >= FEWEST and max(train) > 1.25 * train[0])
    return {
        "shape": shape,
        "learning_rate": "too high" if too_high else "too low" if shape == "flat" else "",
        "overfitting": len(held_out) > 1 and not held_out[-1] <= 1.05 * min(held_out),
        "logged": len(train),
    }


def _shape(train: list[float]) -> str:
    if not all(math.isfinite(loss) for loss in train):
        return "diverging"
    if len(train) < FEWEST:
        return "too short"
    n = len(train)
    q1, q2, q3, q4 = (_mean(train[k * n // 4 : (k + 1) * n // 4]) for k in range(4))
    if q4 - min(q1, q2, q3) > 0.1 * q1:
        return "diverging"
    half = train[n // 2 :]
    if _mean([abs(b - a) for a, b in pairwise(half)]) > 0.15 * q1:
        return "oscillating"
    if q1 - q4 < 0.05 * q1:
        return "flat"
    return "falling" if q3 - q4 > 0.05 * q1 else "converged"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
