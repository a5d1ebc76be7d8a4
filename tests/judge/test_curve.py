"""Loss curves whose shape nobody would dispute."""

from __future__ import annotations

import math
import random

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
    assert read_curve([Loss(k, "train", loss) for k, loss in enumerate(losses)]).shape == shape


def test_a_held_out_loss_that_rises_again_is_overfitting():
    def overfitting(losses):
        return read_curve([Loss(k, "eval", loss) for k, loss in enumerate(losses)]).overfitting

    assert (
        overfitting([2.0, 1.0, 1.2])
        and not overfitting([2.0, 1.0, 1.01])
        and not overfitting([2.0])
    )
    assert overfitting([2.0, 1.0, math.nan])


def rate(losses):
    return read_curve([Loss(k, "train", loss) for k, loss in enumerate(losses)]).learning_rate


@pytest.mark.parametrize("bump", [[1.0, 1.3, 1.1], [1.0, 1.2, 1.6, 1.3], [0.9, 2.4, 1.2]])
@pytest.mark.parametrize("rest", [12, 40])
def test_a_bump_while_the_rate_warms_up_is_no_high_rate(bump, rest):
    assert rate(bump + [0.5 + 0.5 * math.exp(-k / 6) for k in range(rest)]) == ""


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("n", [15, 40, 120])
def test_the_noise_of_small_batches_is_no_high_rate(noise, n):
    told = []
    for seed in range(100):
        draw = random.Random(seed)
        told.append(
            rate(
                [
                    (0.4 + 1.6 * math.exp(-6 * k / n)) * math.exp(draw.gauss(0, noise))
                    for k in range(n)
                ]
            )
        )
    assert told.count("too high") <= 2, told.count("too high")


def test_the_default_runs_own_curve_says_nothing_against_its_rate():
    assert (
        rate(
            [
                2.31,
                1.13,
                0.80,
                0.63,
                0.57,
                0.41,
                0.33,
                0.30,
                0.28,
                0.41,
                0.25,
                0.24,
                0.31,
                0.17,
                0.35,
            ]
        )
        == ""
    )


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_a_rate_that_is_too_high_is_still_called_so(noise):
    curves = {
        "rises again": lambda k: 2 - k / 20 if k < 20 else 1 + (k - 20) / 10,
        "stays above its start": lambda k: 1 if k == 0 else 3.0 - k / 80,
        "swings": lambda k: 1 + 0.95 * (-1) ** k,
    }
    for name, curve in curves.items():
        found = [
            rate(
                [
                    curve(k) * math.exp(random.Random(f"{seed} {k}").gauss(0, noise))
                    for k in range(40)
                ]
            )
            for seed in range(20)
        ]
        assert found.count("too high") >= 19, (name, found)
