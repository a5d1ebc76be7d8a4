"""How often the judge errs, and how often the naive rule does ("accept what scored higher"):
simulated experiments, table in Markdown.

Everything is vectorised: the outcomes of many experiments are arrays of shape (experiments, items).
The decision is the one of `stages.judge.evidence.decide` for one benchmark asked once (p below the
level of the look, difference at least min_effect), and its guard for another; the test suite
compares them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stages.common.errors import PawlError
from stages.common.files import ROOT, to_json, write_text
from stages.common.looks import spend
from stages.judge import adversary
from stages.judge.evidence import Rule, accepted
from stages.judge.significance import tango_score, z_of

SIZES = (15, 30, 60, 100, 200, 400, 1000)
RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SERIES = 10
"""Null candidates in a row, each at its own look."""
POWER_AT = (1, 2, 3, 5, 10, 20)
BEFORE, AFTER, CORRELATION, ITEMS = 0.30, 0.35, 0.5, 1000
"""The gain whose power is stated: accuracies of incumbent and candidate, the correlation of their
answers, the number of items.
"""
GUARDED, GUARDED_SIZES, MARGIN = 0.6, (60, 200, 1000), 0.1
"""The incumbent's accuracy on a guarded benchmark, its numbers of items, and the default's
max_regression.
"""
BATCH = 4_000_000
ADVERSARY_AT = (10, 30, 50, 100)
"""Looks, the last of which is the adversary's vote over all candidates before it."""
PAGE = ROOT / "reports" / "judge_simulation.md"


def paired(
    rng: Any, before: float, after: float, correlation: float, n: int, pairs: int
) -> tuple[Any, Any]:
    """Discordant pairs (wins, losses) of `pairs` experiments on n items, with this correlation
    (phi) between the sides' answers.
    """
    both = before * after + correlation * math.sqrt(before * (1 - before) * after * (1 - after))
    only = (after - both, before - both)
    if min(only) < 0:
        raise ValueError(
            f"a correlation of {correlation} is impossible between accuracies of {before} and"
            f" {after}"
        )
    counts = rng.multinomial(n, [*only, 1 - sum(only)], size=pairs)
    return counts[:, 0], counts[:, 1]


def null(rng: Any, rate: float, n: int, pairs: int, rule: Rule) -> dict[str, float]:
    """Share of null experiments, two draws of the same model, that are accepted: by this rule and
    by the naive one.
    """
    wins, losses = paired(rng, rate, rate, 0.0, n, pairs)
    return {
        "ours": float(accepted(wins, losses, n, rule).mean()),
        "naive": float((wins > losses).mean()),
    }


def series(
    rng: Any, rate: float, n: int, pairs: int, alpha: float, min_effect: float
) -> dict[str, float]:
    """Ten null candidates in a row against one incumbent on the same items: any accepted? and what
    the best of them seems to gain.
    """
    ours, naive, best = [], [], []
    for start in range(0, pairs, size := max(1, BATCH // (n * SERIES))):
        count = min(size, pairs - start)
        incumbent = rng.random((count, 1, n)) < rate
        candidates = rng.random((count, SERIES, n)) < rate
        wins, losses = (candidates & ~incumbent).sum(axis=2), (~candidates & incumbent).sum(axis=2)
        each = [
            accepted(wins[:, k], losses[:, k], n, Rule(alpha, min_effect, k + 1))
            for k in range(SERIES)
        ]
        ours.append(np.any(each, axis=0))
        naive.append((wins > losses).any(axis=1))
        best.append(((wins - losses) / n).max(axis=1))
    return {
        "ours": float(np.concatenate(ours).mean()),
        "naive": float(np.concatenate(naive).mean()),
        "best": float(np.concatenate(best).mean()),
    }


def kept(wins: Any, losses: Any, n: int, margin: float, level: float) -> Any:
    """Whether a guarded benchmark is shown not to have lost the margin: `stages.judge.evidence`
    asks for the same by its interval.
    """
    return np.vectorize(tango_score, otypes=[float])(wins, losses, n, -margin) > z_of(level)


def past_the_guard(rng: Any, n: int, pairs: int, alpha: float, margin: float) -> dict[str, float]:
    """Ten candidates in a row, better on what decides, that lose just the margin on a guarded
    benchmark: share of series in which one gets past the guard, at the level of each look and at
    alpha each time.
    """
    wins, losses = paired(rng, GUARDED, GUARDED - margin, CORRELATION, n, pairs * SERIES)
    wins, losses = wins.reshape(-1, SERIES), losses.reshape(-1, SERIES)
    levels = {"ours": [spend(alpha, k + 1) for k in range(SERIES)], "uncorrected": [alpha] * SERIES}
    return {
        name: float(
            np.any(
                [kept(wins[:, k], losses[:, k], n, margin, at[k]) for k in range(SERIES)], axis=0
            ).mean()
        )
        for name, at in levels.items()
    }


def power(rng: Any, look: int, pairs: int, alpha: float, min_effect: float) -> float:
    wins, losses = paired(rng, BEFORE, AFTER, CORRELATION, ITEMS, pairs)
    return float(accepted(wins, losses, ITEMS, Rule(alpha, min_effect, look)).mean())


def table(pairs: int, seed: int, alpha: float = 0.05, min_effect: float = 0.01) -> str:
    """The page: null experiments by size, ten nulls in a row, and power by look."""
    rng = np.random.default_rng(seed)
    lines = [
        "# How often the judge errs",
        "",
        (
            f"`python -m stages.judge simulate --pairs {pairs} --seed {seed}`: {pairs:,} simulated"
            f" experiments a cell (ten times as many for power), alpha {alpha}, smallest gain worth"
            f" having {min_effect}. The naive rule accepts whatever scored higher."
        ),
        "",
        "## Null experiments: two draws of the same model",
        "",
        (
            "At the first look, which is the most permissive one. Each cell is the lowest to the"
            f" highest share accepted for accuracies of {RATES[0]} to {RATES[-1]} in steps of 0.1."
        ),
        "",
        "| items | naive rule | this judge |",
        "|---:|---:|---:|",
    ]
    for n in SIZES:
        found = [null(rng, rate, n, pairs, Rule(alpha, min_effect)) for rate in RATES]
        lines.append(f"| {n:,} | {_span(found, 'naive')} | {_span(found, 'ours')} |")
    lines += [
        "",
        f"## {SERIES} null candidates in a row on the same items",
        "",
        "Accuracy 0.5 throughout. A series errs where any of its candidates is accepted.",
        "",
        "| items | naive rule | this judge | gain of the best of ten |",
        "|---:|---:|---:|---:|",
    ]
    for n in SIZES:
        one = series(rng, 0.5, n, pairs, alpha, min_effect)
        lines.append(
            f"| {n:,} | {one['naive']:.1%} | {one['ours']:.1%} | +{100 * one['best']:.1f} points |"
        )
    lines += [
        "",
        f"## Power: {BEFORE:.2f} to {AFTER:.2f} on {ITEMS:,} items, correlation {CORRELATION}",
        "",
        "| look at these items | level | found |",
        "|---:|---:|---:|",
    ]
    lines += [
        f"| {look} | {spend(alpha, look):.5f} |"
        f" {power(rng, look, 10 * pairs, alpha, min_effect):.1%} |"
        for look in POWER_AT
    ]
    lines += [
        "",
        f"## {SERIES} candidates in a row that lose the margin on a guarded benchmark",
        "",
        (
            f"All better where it decides; {GUARDED:.2f} to {GUARDED - MARGIN:.2f} on the guarded"
            f" one, correlation {CORRELATION}, max_regression {MARGIN}. A series errs where one"
            " gets past the guard."
        ),
        "",
        f"| items | tested at {alpha} each time | this judge |",
        "|---:|---:|---:|",
    ]
    for n in GUARDED_SIZES:
        past = past_the_guard(rng, n, pairs, alpha, MARGIN)
        lines.append(f"| {n:,} | {past['uncorrected']:.1%} | {past['ours']:.1%} |")
    lines += [
        "",
        "## An adversary that learns from the answers",
        "",
        (
            f"All of its candidates are no better than the incumbent (accuracy {adversary.RATE},"
            f" {adversary.ITEMS:,} items); the last one votes all before it together. Shown their"
            " gains on the validation items, it weighs by them. Shown only whether each was"
            " accepted, it cannot, and alpha holds until the first acceptance. A person who reads"
            " the scores of validation items and proposes by them is in the first column."
        ),
        "",
        "| looks | shown the gains | shown accepted or not |",
        "|---:|---:|---:|",
    ]
    rule = Rule(alpha, min_effect)
    for looks in ADVERSARY_AT:
        errs = adversary.shares(looks, pairs, seed, rule)
        lines.append(f"| {looks} | {errs['scores']['share']:.1%} | {errs['bit']['share']:.1%} |")
    return "\n".join(lines) + "\n"


def _span(found: list[dict[str, float]], name: str) -> str:
    shares = [each[name] for each in found]
    return f"{min(shares):.1%} to {max(shares):.1%}"


def adversarial(looks: int, pairs: int, seed: int) -> int:
    """Print what an adversary gets, as JSON."""
    if looks < 1:
        fix = "give 1 or more"
        raise PawlError(f"{looks} looks", where="--looks", fix=fix)
    _check(pairs, seed)
    print(to_json(adversary.shares(looks, pairs, seed, Rule(0.05, 0.01))), end="")
    return 0


def main(pairs: int, seed: int) -> int:
    _check(pairs, seed)
    text = table(pairs, seed)
    write_text(PAGE, text)
    print(text, end="")
    return 0


def _check(pairs: int, seed: int) -> None:
    if pairs < 1 or seed < 0:
        raise PawlError(
            f"{pairs} simulated experiments, seed {seed}",
            where="--pairs, --seed",
            fix="give 1 or more pairs, a seed of 0 or more",
        )
