"""The count of looks at the validation items: it grows by new comparisons alone, and nothing makes
it forget one.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import subprocess

import numpy as np
import pytest

from stages.common import looks
from stages.common.errors import PawlError
from stages.common.files import write_json
from stages.common.reports.look import Looked
from stages.judge.pairing import as_table
from tests.judge.conftest import judge_run
from tests.synthetic import changed, make_rows, write_run


def questions(rows):
    return {row.item_id: f"What is {row.gold} in the task {row.benchmark}?" for row in rows}


def look(seed: int, *, n: int = 100, incumbent: int = 0, asked=questions, **measure):
    sides = [make_rows(0.5, n=n, seed=number) for number in (seed, incumbent)]
    return looks.of_pair(*map(as_table, sides), asked(sides[0]), **measure)


def enter(root, which, **note):
    return looks.enter([root], which, lambda number: {**note})["look"]


def lines(root):
    found = [json.loads(line) for line in (root / looks.FILE).read_text().splitlines()]
    return [line for line in found if "candidate" in line]


def test_a_look_has_the_number_of_its_place_for_ever(tmp_path):
    assert [enter(tmp_path, look(seed)) for seed in (1, 2, 3, 2, 1, 4)] == [1, 2, 3, 2, 1, 4]
    assert [line["look"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def test_another_incumbent_is_another_look_and_other_words_are_not(tmp_path):
    assert [enter(tmp_path, look(1)), enter(tmp_path, look(1, incumbent=9))] == [1, 2]
    rows = [changed(row, prediction="in other words") for row in make_rows(0.5, seed=1)]
    same = looks.of_pair(
        as_table(reversed(rows)), as_table(make_rows(0.5, seed=0)), questions(rows)
    )
    assert enter(tmp_path, same) == 1


def test_another_measure_of_the_same_answers_is_another_look(tmp_path):
    """Else one could judge by all items, read which benchmark gained most, and have that one decide
    at the first look's level.
    """
    asked = [{}, {"primary": "chain_sum"}, {"metric": "score"}, {"primary": "chain_sum"}, {}]
    assert [enter(tmp_path, look(1, **measure)) for measure in asked] == [1, 2, 3, 2, 1]


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines[1:], lambda lines: lines[::-1], lambda lines: [*lines[2:], *lines[:2]]],
)
def test_lines_that_were_lost_or_moved_make_no_number_smaller(tmp_path, change):
    for seed in (1, 2, 3):
        enter(tmp_path, look(seed))
    path = tmp_path / looks.FILE
    _, asked, *rest = sorted(
        path.read_text().splitlines(keepends=True), key=lambda line: "candidate" in line
    )
    path.write_text("".join([asked, *change(rest)]))
    (tmp_path / looks.COPY).unlink()
    assert (
        enter(tmp_path, look(3)) == 3
        and enter(tmp_path, look(2)) >= 2
        and enter(tmp_path, look(4)) == 4
    )


def test_branches_that_counted_side_by_side_pay_for_both(tmp_path):
    numbers = []
    for branch in ("a", "b"):
        root = tmp_path / branch
        numbers += [enter(root, look(f"{branch}{seed}")) for seed in (1, 2)]
    assert numbers == [1, 2, 1, 2]
    (tmp_path / looks.FILE.parent).mkdir()
    (tmp_path / looks.FILE).write_text(
        "".join((tmp_path / branch / looks.FILE).read_text() for branch in ("b", "a"))
    )
    assert enter(tmp_path, look("a2")) == 4 and enter(tmp_path, look("new")) == 5


def test_a_few_more_items_do_not_renew_what_was_spent_and_new_items_do(tmp_path):
    enter(tmp_path, look(1))
    assert enter(tmp_path, look(1, n=130)) == 2, "a hundred of the items had been looked at"
    fresh = [make_rows(0.5, seed=k, tasks=["new_task"]) for k in (1, 2)]
    assert enter(tmp_path, looks.of_pair(*map(as_table, fresh), questions(fresh[0]))) == 1


def test_lines_of_two_branches_are_all_kept_and_count_once(tmp_path):
    for seed in (1, 2):
        enter(tmp_path, look(seed))
    path = tmp_path / looks.FILE
    path.write_text(path.read_text() * 2 + "\n")  # what merge=union leaves, at worst
    assert [enter(tmp_path, look(seed)) for seed in (1, 2, 3)] == [1, 2, 3]


def test_a_sweep_in_clones_counts_in_the_repository_that_it_was_cloned_from(tmp_path):
    main, clones = tmp_path / "main", [tmp_path / name for name in "ab"]
    numbers = [
        looks.enter([clone, main], look(k), lambda number: {})["look"]
        for k, clone in enumerate(clones)
    ]
    assert (
        numbers == [1, 2]
        and len(lines(main)) == 2
        and [len(lines(clone)) for clone in clones] == [1, 2]
    )


def test_a_verdict_that_was_judged_elsewhere_counts_here_from_its_own_number(tmp_path):
    """DVC's cache, shared by two clones, gives the second one a verdict without running its
    judge.
    """
    there, here = tmp_path / "there", tmp_path / "here"
    for seed in (1, 2):
        judge_run(write_run(there, seed=seed))
    verdict = Looked.read(there / "reports/judge.json")
    for _ in range(2):
        looks.take_over([here], verdict)
    assert [line["look"] for line in lines(here)] == [2] and lines(here)[0] == lines(there)[1] == {
        name: value for name, value in verdict.looks[0].plain().items() if name != "questions"
    }
    looks.take_over([there], verdict)
    assert (
        len(lines(there)) == 2
        and (there / looks.FILE).read_text() == (there / looks.COPY).read_text()
    )
    assert judge_run(write_run(here, seed=3))["evidence"]["look"] == 3
    looks.take_over([here], Looked.check({"outcome": "accept"}, ""))  # of an older version


def test_a_restored_file_forgets_nothing(tmp_path):
    enter(tmp_path, look(1))
    path = tmp_path / looks.FILE
    older = path.read_text()
    assert enter(tmp_path, look(2)) == 2
    path.write_text(older)  # an older commit, or `dvc exp apply`
    assert enter(tmp_path, look(3)) == 3 and [line["look"] for line in lines(tmp_path)] == [1, 2, 3]
    path.unlink()
    assert enter(tmp_path, look(1)) == 1 and len(lines(tmp_path)) == 3


@pytest.mark.parametrize(
    "asked",
    [
        lambda rows: {
            row.item_id: f" What  is {row.gold} in the\ttask {row.benchmark}? " for row in rows
        },
        lambda rows: {
            row.item_id: f"WHAT IS {row.gold} in the TASK {row.benchmark}?\u200b" for row in rows
        },
        lambda rows: {
            row.item_id: f"What is {row.gold} in\u034f the\ufe0f task {row.benchmark}?"
            for row in rows
        },
        lambda rows: {
            row.item_id: f"\uff37hat is {row.gold} in the task {row.benchmark}\uff1f"
            for row in rows
        },
    ],
)
def test_the_same_questions_under_another_name_or_spacing_go_on_with_the_count(tmp_path, asked):
    for seed in (1, 2, 3):
        enter(tmp_path, look(seed))
    rows = make_rows(0.5, seed=4)
    renamed = [
        changed(row, item_id=f"{number:016x}", benchmark="new") for number, row in enumerate(rows)
    ]
    texts = {new.item_id: asked([old])[old.item_id] for new, old in zip(renamed, rows, strict=True)}
    assert enter(tmp_path, looks.of_pair(as_table(renamed), as_table(renamed), texts)) == 4
    assert not {line["items"] for line in lines(tmp_path)[:3]} & {lines(tmp_path)[3]["items"]}, (
        "their ids have nothing in common"
    )


def test_a_question_stays_itself_however_its_dashes_and_quotation_marks_are_set():
    rows = make_rows(0.5, n=1)[:1]
    forms = (
        "4 - 1, 'so \"it\" is'",
        "4 \u2212 1, \u2018so \u201cit\u201d is\u2019",
        "4 \u2013 1, `so \u00abit\u00bb is\u00b4",
    )
    hashes = {
        looks.of_pair(as_table(rows), as_table(rows), {rows[0].item_id: form})["questions"]
        for form in forms
    }
    assert len(hashes) == 1
    assert (
        looks.of_pair(as_table(rows), as_table(rows), {rows[0].item_id: "4 + 1, 'so \"it\" is'"})[
            "questions"
        ]
        not in hashes
    )


def test_the_smallest_part_of_a_benchmark_always_inherits_its_looks(tmp_path):
    enter(tmp_path, look(1, n=200))
    enter(tmp_path, look(2, n=200))
    rows, dice = make_rows(0.5, n=200, seed=3), random.Random(5)
    for number in range(25):
        few = [dice.choice(rows)] if number else rows[:1]
        root = tmp_path / f"clone{number}"
        (root / "experiments").mkdir(parents=True)
        (root / looks.FILE).write_bytes((tmp_path / looks.FILE).read_bytes())
        assert enter(root, looks.of_pair(as_table(few), as_table(few), questions(few))) == 3


def test_lines_from_before_questions_were_kept_gain_them_when_their_items_are_judged_again(
    tmp_path,
):
    first = look(1, n=200)
    (tmp_path / "experiments").mkdir()
    old = {name: value for name, value in first.items() if name != "questions"} | {
        "look": 1,
        "n": 400,
        "outcome": "accept",
    }
    (tmp_path / looks.FILE).write_text(json.dumps(old) + "\n")
    assert enter(tmp_path, first) == 1, "a known look keeps its number"
    rest = sorted(make_rows(0.5, n=200), key=lambda row: row.item_id)[looks.SKETCH :][:20]
    renamed = {f"{number:016x}": questions([row])[row.item_id] for number, row in enumerate(rest)}
    rows = [changed(row, item_id=key) for key, row in zip(renamed, rest, strict=True)]
    assert enter(tmp_path, looks.of_pair(as_table(rows), as_table(rows), renamed)) == 2


def test_the_committed_history_is_read_and_loses_nothing(tmp_path):
    from stages.common.files import ROOT

    (tmp_path / "experiments").mkdir()
    committed = (ROOT / looks.FILE).read_text()
    (tmp_path / looks.FILE).write_text(committed)
    enter(tmp_path, look(1))
    assert (tmp_path / looks.FILE).read_text().startswith(committed) or '{"looks":' in committed
    known = [json.loads(line) for line in committed.splitlines() if '"candidate"' in line]
    again = {name: known[1].get(name, "") for name in (*looks.KEY[:3], "sketch")}
    assert [line["look"] for line in known[:2]] == [1, 2] and enter(tmp_path, again) == 2


def test_a_file_cut_short_without_its_copy_stops_the_judge(tmp_path):
    for seed in range(31):
        enter(tmp_path, look(f"s{seed}"))
    path = tmp_path / looks.FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:13]))
    (tmp_path / looks.COPY).unlink()
    with pytest.raises(PawlError, match=r"lost lines: it counted 31, and 11 are left"):
        enter(tmp_path, look("new"))
    assert len(lines(tmp_path)) == 11, "nothing is written before it is whole again"


def git(root, *args):
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args],
        cwd=root,
        check=True,
        capture_output=True,
    )


def test_a_file_cut_short_is_made_whole_from_the_last_commit_and_from_verdicts(tmp_path, capsys):
    git(tmp_path, "init", "-q", "-b", "main")
    for seed in range(4):
        enter(tmp_path, look(f"s{seed}"))
    git(tmp_path, "add", "-A", "experiments")
    git(tmp_path, "commit", "-qm", "looks")
    fifth = look("fifth")
    noted = looks.enter(
        [tmp_path], fifth, lambda number: {"experiment": "e", "n": 200, "outcome": "reject"}
    )
    write_json(tmp_path / "experiments/0005-e/judge.json", {"looks": [fifth | noted]})
    for broken in ("[", "[]", '{"looks": 3}', '{"looks": [1, {}, {"items": []}]}'):
        path = tmp_path / f"experiments/{len(broken)}/judge.json"
        path.parent.mkdir()
        path.write_text(broken)
    path = tmp_path / looks.FILE
    whole = path.read_text()
    for left in (0, 1, 3):
        path.write_text("".join(whole.splitlines(keepends=True)[:left]))
        (tmp_path / looks.COPY).unlink(missing_ok=True)
        capsys.readouterr()
        assert enter(tmp_path, look("s1")) == 2 and sorted(
            line["look"] for line in lines(tmp_path)
        ) == [1, 2, 3, 4, 5]
        assert "had lost" in capsys.readouterr().out


def test_two_branches_merged_by_git_keep_every_look_and_the_count_holds(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / ".gitattributes").write_text("experiments/looks.jsonl merge=union\n")
    (tmp_path / ".gitignore").write_text(".pawl\n")
    enter(tmp_path, look("base"))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "base")
    for branch, count in (("one", 3), ("two", 2)):
        git(tmp_path, "checkout", "-q", "-b", branch, "main")
        (tmp_path / looks.COPY).unlink()
        for number in range(count):
            enter(tmp_path, look(f"{branch}{number}"))
        git(tmp_path, "commit", "-qam", branch)
    git(tmp_path, "merge", "-q", "one")
    (tmp_path / looks.COPY).unlink()
    assert (
        len({line["candidate"] for line in lines(tmp_path)}) == 6
        and enter(tmp_path, look("after")) == 7
    )
    assert (
        max(
            int(line[9:-1])
            for line in (tmp_path / looks.FILE).read_text().splitlines()
            if line.startswith('{"looks":')
        )
        == 7
    )


@pytest.mark.parametrize(
    "told", [[], 1, {"looks": 1}, {"looks": [1]}, {"looks": [{}]}, {"looks": [{"items": "a"}]}]
)
def test_a_verdict_whose_look_cannot_be_read_is_one_clear_error(tmp_path, told):
    with pytest.raises(PawlError):
        looks.take_over([tmp_path], Looked.check(told, "reports/judge.json"))


def _worker(root, seed):
    enter(root, look(seed))


def test_workers_side_by_side_lose_no_look(tmp_path):
    workers = [
        multiprocessing.get_context("fork").Process(target=_worker, args=(tmp_path, seed))
        for seed in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(line["look"] for line in lines(tmp_path)) == list(range(1, 9))


def test_the_level_is_what_the_number_allows(tmp_path):
    levels = []
    for seed in range(3):
        looks.enter(
            [tmp_path], look(seed), lambda number: levels.append(looks.spend(0.05, number)) or {}
        )
    assert levels == pytest.approx([0.0304, 0.0076, 0.00338], rel=1e-2)


HASHES = '"items": "a", "candidate": "b", "incumbent": "c", "sketch": "d"'


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"items": 1}',
        "\x00",
        f'{{{HASHES}, "look": 0}}',
        f'{{{HASHES}, "look": "1"}}',
        f'{{{HASHES}, "measure": 1}}',
        f'{{{HASHES}, "look": {10**400}}}',
        '{"looks": 1.5}',
        '{"looks": -1}',
        '{"items": "a", "questions": "???"}',
        "[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_that_names_it(tmp_path, line):
    enter(tmp_path, look(1))
    with open(tmp_path / looks.FILE, "a") as file:
        file.write(line + "\n")
    with pytest.raises(PawlError, match="a look cannot be read") as caught:
        enter(tmp_path, look(2))
    assert caught.value.where.endswith("looks.jsonl:4")


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
    for wins, losses, n, number in zip(
        *(rng.integers(low, high, 40) for low, high in ((0, 25), (0, 25), (60, 200), (1, 9))),
        strict=True,
    ):
        rule = Rule(look=int(number), primary="other")
        sides = [
            rows + make_rows(0.5, seed=k, tasks=["other"])
            for k, rows in enumerate(outcomes(int(wins), int(losses), ties=int(n - wins - losses)))
        ]
        (guard,) = evidence(pair(*sides), rule).guarded
        assert (guard.verdict == "kept") == bool(
            kept(int(wins), int(losses), int(n), 0.1, rule.level)
        )


@pytest.mark.parametrize(("pairs", "seed"), [(0, 1), (-5, 1), (10, -1)])
def test_a_simulation_of_nothing_is_refused_and_writes_no_table(monkeypatch, tmp_path, pairs, seed):
    from stages.judge import simulate

    monkeypatch.setattr(simulate, "PAGE", tmp_path / "page.md")
    with pytest.raises(PawlError, match="simulated experiments"):
        simulate.main(pairs, seed)
    assert not (tmp_path / "page.md").exists()


def test_the_committed_table_is_what_exact_enumeration_gives():
    """Power, and the size at each n, from binomial probabilities alone: no figure of the page rests
    on our own code.
    """
    from scipy.stats import binom

    from stages.common.files import ROOT

    def exact(win, loss, n, level):
        found = 0.0
        likely = binom.interval(1 - 1e-9, n, win + loss)
        for pairs in range(max(1, int(likely[0])), int(likely[1]) + 1):
            wins = np.arange(pairs + 1)
            kept = (binom.sf(wins - 1, pairs, 0.5) < level) & (2 * wins - pairs >= 0.01 * n)
            found += (
                binom.pmf(pairs, n, win + loss)
                * binom.pmf(wins, pairs, win / (win + loss))[kept].sum()
            )
        return found

    page = (ROOT / "reports/judge_simulation.md").read_text()
    nulls, _, powers = page.partition("## Power")
    cells = {
        int(n.replace(",", "")): float(most) / 100
        for n, most in re.findall(r"^\| ([\d,]+) \|[^|]+\| [\d.]+% to ([\d.]+)% \|", nulls, re.M)
    }
    assert cells.keys() >= {15, 30, 60, 100, 200}
    for n in (15, 100):
        most = max(
            exact(rate * (1 - rate), rate * (1 - rate), n, looks.spend(0.05, 1))
            for rate in (0.1, 0.5)
        )
        assert most < 0.0304 and abs(cells[n] - most) < 4 * (0.0304 / 2000) ** 0.5
    both = 0.3 * 0.35 + 0.5 * (0.3 * 0.7 * 0.35 * 0.65) ** 0.5
    stated = {
        int(look): float(share) / 100
        for look, share in re.findall(r"^\| (\d+) \| 0\.\d+ \| ([\d.]+)% \|", powers, re.M)
    }
    for look in (1, 20):
        assert stated[look] == pytest.approx(
            exact(0.35 - both, 0.3 - both, 1000, looks.spend(0.05, look)), abs=0.015
        )


def test_the_simulated_decision_is_the_real_one():
    from stages.judge.evidence import Rule, evidence
    from stages.judge.pairing import pair
    from stages.judge.simulate import accepted
    from tests.judge.test_evidence import outcomes

    rng = np.random.default_rng(6)
    for wins, losses, n, number in zip(
        *(rng.integers(low, high, 40) for low, high in ((0, 40), (0, 20), (60, 200), (1, 6))),
        strict=True,
    ):
        rule = Rule(look=int(number))
        real = (
            evidence(
                pair(*outcomes(int(wins), int(losses), ties=int(n - wins - losses))), rule
            ).outcome
            == "accept"
        )
        assert bool(accepted(wins, losses, n, rule)) == real
