"""The count of looks at the validation items: it grows by new comparisons alone, and nothing makes it forget one."""

from __future__ import annotations

import json
import multiprocessing
import random
import re

import numpy as np
import pytest

from stages.common import looks
from stages.common.errors import PawlError
from stages.common.files import read_json
from stages.judge.pairing import as_table
from tests.judge.conftest import judge_run
from tests.synthetic import make_rows, write_run


def look(seed: int, *, n: int = 100, incumbent: int = 0):
    return looks.of_pair(as_table(make_rows(0.5, n=n, seed=seed)), as_table(make_rows(0.5, n=n, seed=incumbent)))


def enter(root, which, **note):
    return looks.enter([root], which, lambda number: {**note})["look"]


def lines(root):
    return [json.loads(line) for line in (root / looks.FILE).read_text().splitlines()]


def test_a_look_has_the_number_of_its_place_for_ever(tmp_path):
    assert [enter(tmp_path, look(seed)) for seed in (1, 2, 3, 2, 1, 4)] == [1, 2, 3, 2, 1, 4]
    assert [line["look"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def test_another_incumbent_is_another_look_and_other_words_are_not(tmp_path):
    assert [enter(tmp_path, look(1)), enter(tmp_path, look(1, incumbent=9))] == [1, 2]
    rows = [row.__class__(**{**row.__dict__, "prediction": "in other words"}) for row in make_rows(0.5, seed=1)]
    same = looks.of_pair(as_table(reversed(rows)), as_table(make_rows(0.5, seed=0)))
    assert enter(tmp_path, same) == 1


def test_another_measure_of_the_same_answers_is_another_look(tmp_path):
    """Else one could judge by all items, read which benchmark gained most, and have that one decide at the first look's level."""
    sides = [as_table(make_rows(0.5, seed=seed)) for seed in (1, 0)]
    asked = [{}, {"primary": "chain_sum"}, {"metric": "score"}, {"primary": "chain_sum"}, {}]
    assert [enter(tmp_path, looks.of_pair(*sides, **measure)) for measure in asked] == [1, 2, 3, 2, 1]


@pytest.mark.parametrize("change", [lambda lines: lines[1:], lambda lines: lines[::-1], lambda lines: [*lines[2:], *lines[:2]]])
def test_lines_that_were_lost_or_moved_make_no_number_smaller(tmp_path, change):
    for seed in (1, 2, 3):
        enter(tmp_path, look(seed))
    path = tmp_path / looks.FILE
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    (tmp_path / looks.COPY).unlink()
    assert enter(tmp_path, look(3)) == 3 and enter(tmp_path, look(2)) >= 2 and enter(tmp_path, look(4)) == 4


def test_branches_that_counted_side_by_side_pay_for_both(tmp_path):
    numbers = []
    for branch in ("a", "b"):
        root = tmp_path / branch
        numbers += [enter(root, look(f"{branch}{seed}")) for seed in (1, 2)]
    assert numbers == [1, 2, 1, 2]
    (tmp_path / looks.FILE.parent).mkdir()
    (tmp_path / looks.FILE).write_text("".join((tmp_path / branch / looks.FILE).read_text() for branch in ("b", "a")))
    assert enter(tmp_path, look("a2")) == 4 and enter(tmp_path, look("new")) == 5


def test_a_few_more_items_do_not_renew_what_was_spent_and_new_items_do(tmp_path):
    enter(tmp_path, look(1))
    assert enter(tmp_path, look(1, n=130)) == 2, "a hundred of the items had been looked at"
    fresh = [looks.of_pair(*(as_table(make_rows(0.5, seed=k, tasks=["new_task"])) for k in (1, 2)))]
    assert enter(tmp_path, fresh[0]) == 1


def test_lines_of_two_branches_are_all_kept_and_count_once(tmp_path):
    for seed in (1, 2):
        enter(tmp_path, look(seed))
    path = tmp_path / looks.FILE
    path.write_text(path.read_text() * 2 + "\n")  # what merge=union leaves, at worst
    assert [enter(tmp_path, look(seed)) for seed in (1, 2, 3)] == [1, 2, 3]


def test_a_sweep_in_clones_counts_in_the_repository_that_it_was_cloned_from(tmp_path):
    main, clones = tmp_path / "main", [tmp_path / name for name in "ab"]
    numbers = [looks.enter([clone, main], look(k), lambda number: {})["look"] for k, clone in enumerate(clones)]
    assert numbers == [1, 2] and len(lines(main)) == 2 and [len(lines(clone)) for clone in clones] == [1, 2]


def test_a_verdict_that_was_judged_elsewhere_counts_here_from_its_own_number(tmp_path):
    """DVC's cache, shared by two clones, gives the second one a verdict without running its judge."""
    there, here = tmp_path / "there", tmp_path / "here"
    for seed in (1, 2):
        judge_run(write_run(there, seed=seed))
    verdict = read_json(there / "reports/judge.json")
    for _ in range(2):
        looks.take_over([here], verdict)
    assert [line["look"] for line in lines(here)] == [2] and lines(here)[0] == lines(there)[1] == verdict["looks"][0]
    looks.take_over([there], verdict)
    assert len(lines(there)) == 2 and (there / looks.FILE).read_text() == (there / looks.COPY).read_text()
    assert judge_run(write_run(here, seed=3))["evidence"]["look"] == 3
    looks.take_over([here], {"outcome": "accept"})  # of an older version


def test_a_restored_file_forgets_nothing(tmp_path):
    enter(tmp_path, look(1))
    path = tmp_path / looks.FILE
    older = path.read_text()
    assert enter(tmp_path, look(2)) == 2
    path.write_text(older)  # an older commit, or `dvc exp apply`
    assert enter(tmp_path, look(3)) == 3 and [line["look"] for line in lines(tmp_path)] == [1, 2, 3]
    path.unlink()
    assert enter(tmp_path, look(1)) == 1 and len(lines(tmp_path)) == 3


def _worker(root, seed):
    enter(root, look(seed))


def test_workers_side_by_side_lose_no_look(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=_worker, args=(tmp_path, seed)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(line["look"] for line in lines(tmp_path)) == list(range(1, 9))


def test_the_level_is_what_the_number_allows(tmp_path):
    levels = []
    for seed in range(3):
        looks.enter([tmp_path], look(seed), lambda number: levels.append(looks.spend(0.05, number)) or {})
    assert levels == pytest.approx([0.0304, 0.0076, 0.00338], rel=1e-2)


HASHES = '"items": "a", "candidate": "b", "incumbent": "c", "sketch": "d"'


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"items": 1}', "\x00", f'{{{HASHES}, "look": 0}}', f'{{{HASHES}, "look": "1"}}', f'{{{HASHES}, "measure": 1}}']
)
def test_a_line_that_cannot_be_read_is_an_error_that_names_it(tmp_path, line):
    enter(tmp_path, look(1))
    with open(tmp_path / looks.FILE, "a") as file:
        file.write(line + "\n")
    with pytest.raises(PawlError, match="a look cannot be read") as caught:
        enter(tmp_path, look(2))
    assert caught.value.where.endswith("looks.jsonl:2")


def test_a_file_without_a_last_line_end_stays_readable(tmp_path):
    enter(tmp_path, look(1))
    path = tmp_path / looks.FILE
    path.write_text(path.read_text().rstrip("\n"))
    assert enter(tmp_path, look(2)) == 2 and len(lines(tmp_path)) == 2


def test_a_series_of_nulls_is_accepted_at_most_alpha():
    from stages.judge.evidence import Rule
    from stages.judge.simulate import null, power, series

    rng = np.random.default_rng(random.Random(7).randrange(2**32))
    for rate in (0.1, 0.5, 0.9):
        for n in (15, 100, 1000):
            found = null(rng, rate, n, 2000, Rule())
            assert found["ours"] <= 0.0304 + 3 * (0.03 / 2000) ** 0.5 and found["naive"] > 0.3
    for n in (30, 200):
        found = series(rng, 0.5, n, 1000, 0.05, 0.01)
        assert found["ours"] <= 0.05 and found["naive"] > 0.8 and found["best"] > 0.04
    assert power(rng, 1, 5000, 0.05, 0.01) >= 0.9 > power(rng, 2, 5000, 0.05, 0.01) > 0.75


def test_a_series_lets_a_loss_past_the_guard_at_most_alpha():
    from stages.judge.simulate import past_the_guard

    found = past_the_guard(np.random.default_rng(3), 200, 1000, 0.05, 0.1)
    assert found["ours"] <= 0.05 + 2 * (0.05 * 0.95 / 1000) ** 0.5 and found["uncorrected"] > 0.3


def test_the_simulated_guard_is_the_real_one():
    from stages.judge.evidence import Rule, evidence
    from stages.judge.pairing import pair
    from stages.judge.simulate import kept
    from tests.judge.test_evidence import outcomes

    rng = np.random.default_rng(9)
    for wins, losses, n, number in zip(*(rng.integers(low, high, 40) for low, high in ((0, 25), (0, 25), (60, 200), (1, 9))), strict=True):
        rule = Rule(look=int(number), primary="other")
        sides = [
            rows + make_rows(0.5, seed=k, tasks=["other"])
            for k, rows in enumerate(outcomes(int(wins), int(losses), ties=int(n - wins - losses)))
        ]
        (guard,) = evidence(pair(*sides), rule)["guarded"]
        assert (guard["verdict"] == "kept") == bool(kept(int(wins), int(losses), int(n), 0.1, rule.level))


@pytest.mark.parametrize(("pairs", "seed"), [(0, 1), (-5, 1), (10, -1)])
def test_a_simulation_of_nothing_is_refused_and_writes_no_table(monkeypatch, tmp_path, pairs, seed):
    from stages.judge import simulate

    monkeypatch.setattr(simulate, "PAGE", tmp_path / "page.md")
    with pytest.raises(PawlError, match="simulated experiments"):
        simulate.main(pairs, seed)
    assert not (tmp_path / "page.md").exists()


def test_the_committed_table_is_what_exact_enumeration_gives():
    """Power, and the size at each n, from binomial probabilities alone: no figure of the page rests on our own code."""
    from scipy.stats import binom

    from stages.common.files import ROOT

    def exact(win, loss, n, level):
        found = 0.0
        likely = binom.interval(1 - 1e-9, n, win + loss)
        for pairs in range(max(1, int(likely[0])), int(likely[1]) + 1):
            wins = np.arange(pairs + 1)
            kept = (binom.sf(wins - 1, pairs, 0.5) < level) & (2 * wins - pairs >= 0.01 * n)
            found += binom.pmf(pairs, n, win + loss) * binom.pmf(wins, pairs, win / (win + loss))[kept].sum()
        return found

    page = (ROOT / "reports/judge_simulation.md").read_text()
    nulls, _, powers = page.partition("## Power")
    cells = {
        int(n.replace(",", "")): float(most) / 100 for n, most in re.findall(r"^\| ([\d,]+) \|[^|]+\| [\d.]+% to ([\d.]+)% \|", nulls, re.M)
    }
    assert cells.keys() >= {15, 30, 60, 100, 200}
    for n in (15, 100):
        most = max(exact(rate * (1 - rate), rate * (1 - rate), n, looks.spend(0.05, 1)) for rate in (0.1, 0.5))
        assert most < 0.0304 and abs(cells[n] - most) < 4 * (0.0304 / 2000) ** 0.5
    both = 0.3 * 0.35 + 0.5 * (0.3 * 0.7 * 0.35 * 0.65) ** 0.5
    stated = {int(look): float(share) / 100 for look, share in re.findall(r"^\| (\d+) \| 0\.\d+ \| ([\d.]+)% \|", powers, re.M)}
    for look in (1, 20):
        assert stated[look] == pytest.approx(exact(0.35 - both, 0.3 - both, 1000, looks.spend(0.05, look)), abs=0.015)


def test_the_simulated_decision_is_the_real_one():
    from stages.judge.evidence import Rule, evidence
    from stages.judge.pairing import pair
    from stages.judge.simulate import accepted
    from tests.judge.test_evidence import outcomes

    rng = np.random.default_rng(6)
    for wins, losses, n, number in zip(*(rng.integers(low, high, 40) for low, high in ((0, 40), (0, 20), (60, 200), (1, 6))), strict=True):
        rule = Rule(look=int(number))
        real = evidence(pair(*outcomes(int(wins), int(losses), ties=int(n - wins - losses))), rule)["outcome"] == "accept"
        assert bool(accepted(wins, losses, n, rule)) == real
