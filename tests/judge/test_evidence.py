"""The statistics: what they promise, attacked with the cases in which such code usually breaks."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest

from stages.common.errors import PawlError
from stages.common.looks import spend
from stages.common.reports.verdict import Figures
from stages.judge.evidence import Rule, decide, evidence, figures
from stages.judge.pairing import pair
from stages.judge.significance import bounds, on_a_grid, sign_flip, tango
from tests.synthetic import changed, make_row, make_rows

RULE = Rule()
Z95 = 1.959963984540054


def judged(candidate, incumbent, **changes):
    return evidence(pair(candidate, incumbent), replace(RULE, **changes))


def outcomes(wins: int, losses: int, ties: int = 0):
    """Two sides with so many discordant and tied items."""
    flags = (
        [(True, False)] * wins
        + [(False, True)] * losses
        + [(k % 2 == 0, k % 2 == 0) for k in range(ties)]
    )
    return [make_row(k, a) for k, (a, _) in enumerate(flags)], [
        make_row(k, b) for k, (_, b) in enumerate(flags)
    ]


def test_null_experiments_are_accepted_at_most_alpha_and_far_less_than_by_the_naive_rule():
    rng, runs, ours, naive = random.Random(20), 600, 0, 0
    for _ in range(runs):
        wins = losses = 0
        for _ in range(60):
            a, b = rng.random() < 0.6, rng.random() < 0.6
            wins, losses = wins + (a and not b), losses + (b and not a)
        low, high = tango(wins, losses, 60, Z95)
        better, _ = sign_flip([1] * wins + [-1] * losses)
        pooled = Figures.model_construct(
            difference=(wins - losses) / 60, p_better=better, low=low, high=high
        )
        ours += decide(pooled, [], RULE)[0] == "accept"
        naive += wins > losses
    assert ours / runs <= RULE.alpha
    assert naive / runs > 0.35


def test_a_real_gain_is_accepted():
    found = judged(make_rows(0.7, seed=1), make_rows(0.1, seed=2))
    assert found.outcome == "accept" and found.pooled.p_better < 1e-6 and found.pooled.low > 0.4


@pytest.mark.parametrize(
    ("wins", "losses"), [(0, 0), (1, 0), (0, 1), (5, 0), (12, 3), (3, 12), (40, 40), (999, 900)]
)
def test_the_p_value_is_mcnemars_exact_one(wins, losses):
    candidate, incumbent = outcomes(wins, losses, ties=4)
    pooled = judged(candidate, incumbent).pooled
    n = wins + losses
    from scipy.stats import binomtest

    assert pooled.p_better == pytest.approx(
        binomtest(wins, n, alternative="greater").pvalue if n else 1, rel=1e-9
    )
    assert pooled.p_two_sided == pytest.approx(binomtest(wins, n).pvalue if n else 1, rel=1e-9)
    assert (pooled.candidate_only, pooled.incumbent_only, pooled.n) == (wins, losses, n + 4)


def test_the_interval_is_the_published_one():
    # Bentur et al. 2009 in Fagerland, Lydersen and Laake 2014: 1 and 7 discordant pairs of 21;
    # Tango's interval -0.517 to -0.026
    low, high = tango(1, 7, 21, Z95)
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


@pytest.mark.parametrize("n", [1, 2, 44, 10_000])
def test_the_interval_holds_at_the_edges(n):
    for gain, loss in ((0, 0), (n, 0), (0, n), (1, 0), (0, 1)):
        low, high = tango(gain, loss, n, Z95)
        assert -1 <= low <= (gain - loss) / n <= high <= 1 and low < high
    # the closed form without discordant pairs
    assert tango(0, 0, n, Z95)[1] == pytest.approx(1.959964**2 / (n + 1.959964**2), rel=1e-5)
    assert tango(n, 0, n, Z95)[1] == 1 and tango(0, n, n, Z95)[0] == -1


def test_the_interval_mirrors_when_the_sides_change_places():
    for gain, loss, n in ((7, 2, 30), (1, 0, 3), (50, 50, 400)):
        low, high = tango(gain, loss, n, Z95)
        assert tango(loss, gain, n, Z95) == pytest.approx((-high, -low), abs=1e-9)


def test_repeats_are_averaged_within_their_item_and_add_no_items():
    once = outcomes(12, 3, ties=10)
    thrice = [[changed(row, repeat=k) for row in side for k in range(3)] for side in once]
    first, second = judged(*once).pooled, judged(*thrice).pooled
    for key in ("n", "difference", "p_better", "p_two_sided", "low", "high", "candidate_only"):
        assert getattr(first, key) == pytest.approx(getattr(second, key), rel=1e-9), key


def test_the_sign_flip_test_of_repeats_is_the_enumeration():
    units = [3, 2, 2, -1, 1, 0, 3]
    nonzero = [abs(u) for u in units if u]
    sums = [
        sum(s * (1 if bits >> k & 1 else -1) for k, s in enumerate(nonzero))
        for bits in range(2 ** len(nonzero))
    ]
    better, two_sided = sign_flip(units)
    assert better == pytest.approx(sum(s >= sum(units) for s in sums) / len(sums))
    assert two_sided == pytest.approx(sum(abs(s) >= abs(sum(units)) for s in sums) / len(sums))


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "outcome"),
    [
        (0, 0, 1, "reject"),  # one item, equal
        (1, 0, 0, "inconclusive"),  # one item, won
        (0, 1, 0, "reject"),
        (0, 0, 200, "reject"),  # identical answers
        (4, 0, 196, "inconclusive"),  # p = 0.0625
        (5, 0, 195, "inconclusive"),  # p = 0.031, more than the first look may spend
        (6, 0, 194, "accept"),  # p = 0.016
        (12, 9, 400, "inconclusive"),
        (1, 0, 5000, "reject"),  # the whole interval is below one point
        (20, 0, 5000, "reject"),  # certain, and too small to be worth having
    ],
)
def test_outcomes(wins, losses, ties, outcome):
    assert judged(*outcomes(wins, losses, ties)).outcome == outcome


def test_all_correct_on_both_sides_is_no_gain():
    rows = [make_row(k, True) for k in range(50)]
    found = judged(rows, rows)
    assert (found.outcome, found.pooled.p_better) == ("reject", 1)


def test_inconclusive_says_how_many_items_would_decide_and_those_would():
    more = judged(*outcomes(30, 20, ties=150)).further_items
    assert more.towards == "accept" and more.items > 100 and more.repeats is None
    scale = (200 + more.items) / 200
    bigger = figures(
        pair(*outcomes(round(30 * scale), round(20 * scale), ties=round(150 * scale)))["chain_sum"]
    )
    assert decide(bigger, [], replace(RULE, look=2))[0] == "accept"


def test_a_missing_item_is_named_and_never_left_out():
    rows = make_rows(0.5, n=5)
    with pytest.raises(
        PawlError,
        match=r"2 items only in the incumbent .candidate 8 items, incumbent 10.*chain_sum/",
    ):
        pair(rows[2:], rows)
    with pytest.raises(PawlError, match="1 item only in the candidate"):
        pair(rows, rows[:-1])


def test_a_duplicated_item_is_named():
    rows = make_rows(0.5, n=5)
    with pytest.raises(
        PawlError, match=f"1 item duplicated in the candidate: chain_sum/{rows[0].item_id}"
    ):
        pair([*rows, rows[0]], rows)


def test_a_renamed_benchmark_is_refused():
    rows = [make_row(k, True) for k in range(5)]
    renamed = [
        make_row(k, True, item_id=row.item_id, benchmark="sums") for k, row in enumerate(rows)
    ]
    with pytest.raises(PawlError, match="5 items only in the candidate"):
        pair(renamed, rows)


def test_another_answer_key_is_refused():
    rows = [make_row(k, True) for k in range(5)]
    changed = [make_row(0, True, item_id=rows[0].item_id, gold="7"), *rows[1:]]
    with pytest.raises(PawlError, match="1 item with another answer key"):
        pair(changed, rows)


def test_a_missing_repeat_is_refused():
    rows = [make_row(k, True, repeat=r) for k in range(5) for r in range(2)]
    with pytest.raises(PawlError, match="1 item in the candidate without the repeats"):
        pair(rows[:-1], rows)


def test_sides_asked_unequally_often_are_refused_since_the_test_would_see_gains_that_are_none():
    thrice = [make_row(k, True, repeat=r) for k in range(5) for r in range(3)]
    with pytest.raises(PawlError, match="3 times by the candidate, 1 by the incumbent"):
        pair(thrice, [make_row(k, True) for k in range(5)])


def test_repeats_of_one_model_are_accepted_at_most_as_often_as_the_level_says():
    rng, runs = np.random.default_rng(9), 400
    for rate in (0.1, 0.5, 0.9):
        draws = rng.binomial(3, rate, (runs, 2, 30))
        share = np.mean([sign_flip(a - b)[0] < RULE.level for a, b in draws])
        assert share <= RULE.level + 3 * (RULE.level / runs) ** 0.5


def test_an_impossible_repeat_is_refused():
    with pytest.raises(PawlError, match="repeat"):
        pair([make_row(0, True, repeat=10**9)], [make_row(0, True)])


def test_no_rows_are_no_evidence():
    with pytest.raises(PawlError, match="the incumbent has no rows"):
        pair([make_row(0, True)], [])


def test_ten_thousand_pairs_take_under_a_second():
    candidate, incumbent = make_rows(0.6, n=5000, seed=1), make_rows(0.5, n=5000, seed=2)
    begun = time.process_time()
    judged(candidate, incumbent)
    assert time.process_time() - begun < 1


def test_a_later_look_needs_stronger_evidence():
    sides = outcomes(30, 14, ties=100)  # p = 0.011
    assert [judged(*sides, look=look).outcome for look in (1, 2, 10)] == [
        "accept",
        "inconclusive",
        "inconclusive",
    ]
    assert (
        judged(*sides, look=3).level == pytest.approx(spend(0.05, 3))
        and sum(spend(0.05, k) for k in range(1, 10_000)) <= 0.05
    )


def test_the_primary_benchmark_decides_and_the_others_may_not_lose_more_than_the_margin():
    good = (make_rows(0.7, n=300, seed=1, tasks=["a"]), make_rows(0.3, n=300, seed=2, tasks=["a"]))
    collapsed = (
        make_rows(0.2, n=300, seed=3, tasks=["b"]),
        make_rows(0.6, n=300, seed=4, tasks=["b"]),
    )
    same = (rows := make_rows(0.6, n=300, seed=4, tasks=["b"]), rows)
    noisy = (make_rows(0.6, n=12, seed=5, tasks=["b"]), make_rows(0.6, n=12, seed=6, tasks=["b"]))
    for primary in ("", "a"):
        found = judged(good[0] + collapsed[0], good[1] + collapsed[1], primary=primary)
        assert found.outcome == "reject" and found.why == "regression"
        assert judged(good[0] + same[0], good[1] + same[1], primary=primary).outcome == "accept"
        found = judged(good[0] + noisy[0], good[1] + noisy[1], primary=primary)
        assert (found.outcome, found.why) == (
            "inconclusive",
            "regression not excluded",
        ), "not significantly worse is not enough"
        assert found.further_items.benchmark == "b" and found.further_items.items > 10
    assert judged(good[0] + collapsed[0], good[1] + collapsed[1], primary="b").outcome == "reject"
    with pytest.raises(PawlError, match=r"judge\.primary is 'c'"):
        judged(*good, primary="c")


def test_non_inferiority_is_claimed_at_most_alpha_where_the_loss_is_the_margin():
    rng, kept = np.random.default_rng(3), 0
    for _ in range(400):
        wins, losses, ties = rng.multinomial(300, [0.05, 0.15, 0.8])  # a true loss of 10 points
        differences = np.repeat([1.0, -1.0, 0.0], [wins, losses, ties])
        kept += bounds(differences, float(wins), float(losses), 0.05)[0] > -0.1
    assert kept / 400 < 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5


def test_a_guarded_benchmark_is_tested_at_the_level_of_the_look():
    """An acceptance is as wrong where it hides a loss: at alpha each time, the tenth candidate
    would have ten tries to hide one.
    """
    better = (
        make_rows(0.7, n=300, seed=1, tasks=["a"]),
        make_rows(0.2, n=300, seed=2, tasks=["a"]),
    )
    # 4 points lost, 10 allowed
    flags = [(False, True)] * 22 + [(True, False)] * 14 + [(True, True)] * 164
    guarded = [
        [make_row(k, flag[side], benchmark="b") for k, flag in enumerate(flags)] for side in (0, 1)
    ]
    found = {
        look: judged(better[0] + guarded[0], better[1] + guarded[1], primary="a", look=look)
        for look in (1, 10)
    }
    assert [(each.outcome, each.why) for each in found.values()] == [
        ("accept", "better"),
        ("inconclusive", "regression not excluded"),
    ]
    differences = np.repeat([1.0, -1.0, 0.0], [14, 22, 164])
    assert found[10].guarded[0].low == pytest.approx(
        bounds(differences, 14.0, 22.0, spend(0.05, 10))[0]
    )
    assert found[10].further_items.benchmark == "b" and found[10].further_items.towards == "accept"


def test_a_far_tail_is_not_read_from_a_handful_of_resamples():
    differences = np.random.default_rng(1).uniform(-1, 1, 100)
    gain, loss = differences.clip(0).sum(), (-differences).clip(0).sum()
    assert [bounds(differences, gain, loss, tail)[2] for tail in (0.025, 1e-4)] == [
        "BCa bootstrap",
        "Tango score interval",
    ]


def scored(scores, **changes):
    return [make_row(k, False, score=score, **changes) for k, score in enumerate(scores)]


def test_partial_credit_decides_where_it_is_asked_to():
    rng = random.Random(8)
    before = [rng.random() * 0.6 for _ in range(80)]
    after = [min(1.0, score + 0.3 * rng.random()) for score in before]
    assert judged(scored(after), scored(before)).outcome == "reject", "nothing is right in either"
    found = judged(scored(after), scored(before), metric="score")
    pooled = found.pooled
    assert (
        found.outcome == "accept"
        and pooled.interval == "BCa bootstrap"
        and pooled.low < pooled.difference < pooled.high
    )
    assert (
        pooled.difference == pytest.approx(sum(after) / 80 - sum(before) / 80)
        and pooled.p_better < 1e-9
    )


def test_the_grid_of_real_differences_keeps_the_sign_flip_test_exact():
    rng, runs = np.random.default_rng(4), 100
    p = [sign_flip(on_a_grid(rng.laplace(size=14)))[0] for _ in range(runs)]
    for level in (0.01, 0.05, 0.3):
        share = np.mean(np.array(p) <= level)
        assert abs(share - level) < 4 * (level * (1 - level) / runs) ** 0.5
    units = [3, -1, 2, 5, -4, 1, 1, 2]
    assert sign_flip(on_a_grid(np.array(units) / 10))[0] == pytest.approx(sign_flip(units)[0])


def test_the_bootstrap_interval_covers_as_often_as_it_says():
    rng, covered = np.random.default_rng(5), 0
    for _ in range(60):
        differences = rng.choice(
            [-1, -1 / 3, 0, 1 / 3, 2 / 3], size=60, p=[0.05, 0.15, 0.4, 0.25, 0.15]
        )
        low, high, method = bounds(
            differences,
            float(differences.clip(0).sum()),
            float(-differences.clip(max=0).sum()),
            0.025,
        )
        covered += low <= 0.0833333 <= high
        assert method == "BCa bootstrap"
    assert covered >= 52  # 95 % of 60 are 57, less three standard deviations


def test_what_repeats_average_out_is_estimated_where_there_are_repeats():
    rng = random.Random(1)
    rates = [rng.random() for _ in range(200)]

    def side(gain, repeats):
        return [
            make_row(k, rng.random() < min(1, rate + gain), repeat=r)
            for k, rate in enumerate(rates)
            for r in range(repeats)
        ]

    found = judged(side(0.05, 2), side(0, 2))
    assert found.pooled.within > 0.1
    once = [[row for row in rows if row.repeat == 0] for rows in (side(0.05, 2), side(0, 2))]
    assert judged(*once).pooled.within is None


def test_further_repeats_are_the_number_that_brings_the_error_down_enough():
    from stages.judge.evidence import _further_repeats

    # variance 0.2 = 0.05 between items + 0.15 within at 3 repeats; 400 items, wanted the error of
    # 800 items of variance 0.2
    found = Figures.model_construct(within=0.15, spread=0.2**0.5, n=400, repeats=[3, 3])
    more = _further_repeats(found, 800**0.5)
    assert more == 6 and (0.05 + 0.15 * 3 / (3 + more)) / 400 == pytest.approx(0.2 / 800)
    assert _further_repeats(found, 4000**0.5) is None, "the spread between items alone is too large"
