"""Loss curves whose shape nobody would dispute."""

from __future__ import annotations

import math

import pytest

from stages.common.losses import Loss
from stages.judge.curve import read_curve

N = 24


@pytest.mark.parametrize(
    ("losses", "shape"),
    [
        ([0.3 + 3 * math.exp(-k / 2) for k in range(N)], "converged"),
        ([3 - k / 10 for k in range(N)], "falling"),
        ([3 - k / 10 for k in range(16)] + [2 + k / 4 for k in range(8)], "diverging"),
        ([2.0, 1.0, math.nan, 1.0], "diverging"),
        ([3.0] * 4 + [1 + (-1) ** k for k in range(20)], "oscillating"),
        ([2.0 + 0.01 * (-1) ** k for k in range(N)], "flat"),
        ([3.0, 2.0], "too short"),
        ([], "too short"),
    ],
)
def test_shapes(losses, shape):
    assert read_curve([Loss(k, "train", loss) for k, loss in enumerate(losses)])["shape"] == shape


def test_a_held_out_loss_that_rises_again_is_overfitting():
    def overfitting(losses):
        return read_curve([Loss(k, "eval", loss) for k, loss in enumerate(losses)])["overfitting"]

    assert overfitting([2.0, 1.0, 1.2]) and not overfitting([2.0, 1.0, 1.01]) and not overfitting([2.0])
    assert overfitting([2.0, 1.0, math.nan])
