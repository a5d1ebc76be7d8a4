"""What vetoes an acceptance: each guard has something to look at, or it has failed. The run of
every test would be accepted as it is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, sha256_file, write_json
from stages.common.schema import Experiment
from tests.judge.conftest import judge_run
from tests.synthetic import FINGERPRINT, changed, make_rows, write_run, write_side

SIDES = ("reports/eval_val", "reports/baseline")


def vetoes(verdict):
    assert (
        verdict["accepted"]
        == (verdict["outcome"] == "accept")
        == all(guard["passed"] for guard in verdict["guards"])
    )
    return {guard["guard"]: guard["detail"] for guard in verdict["guards"] if not guard["passed"]}


def change(path: Path, **changes):
    write_json(path, {**read_json(path), **changes})


def rewrite(folder: Path, edit, bound: bool = True) -> None:
    """Edit the rows as a list of objects; `bound`: the summary is given their new hash, as by
    somebody who knows the guard.
    """
    path = folder / "val.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in edit(rows) or rows))
    if bound:
        change(folder / "val.json", rows_sha256=sha256_file(path))


def test_the_run_of_these_tests_is_accepted(run):
    assert not vetoes(judge_run(run))


def test_no_fingerprint_on_both_sides_is_a_veto(run):
    for side in SIDES:
        change(run / side / "val.json", fingerprint={})
    assert "fingerprint is missing" in vetoes(judge_run(run))["same conditions"]


@pytest.mark.parametrize("key", [*FINGERPRINT, "adapter_sha256"])
def test_a_condition_that_neither_side_states_is_a_veto(run, key):
    fingerprint = {
        name: value
        for name, value in {**FINGERPRINT, "adapter_sha256": None}.items()
        if name != key
    }
    for side, rate, seed in zip(SIDES, (0.7, 0.1), (2, 1), strict=True):
        write_side(run / side, make_rows(rate, seed=seed), fingerprint=fingerprint)
    assert ("how answers were scored" if key == "evaluator" else key) in vetoes(judge_run(run))[
        "same conditions"
    ]


@pytest.mark.parametrize(
    "key",
    ["adapter", "adapter_rank", "adapter_sha256_of_another", "base_sha256x", "base_sha256.nested"],
)
def test_an_unknown_key_is_no_part_of_the_model_whatever_it_begins_with(run, key):
    write_side(
        run / SIDES[0],
        make_rows(0.7, seed=2),
        fingerprint={**FINGERPRINT, "adapter_sha256": "a" * 64, key: "other"},
    )
    assert vetoes(judge_run(run)).keys() == {"same conditions"}


@pytest.mark.parametrize("value", [True, "0.0"])
def test_a_condition_of_another_type_is_another_condition(run, value):
    for side, given in zip(SIDES, (value, 1 if value is True else value), strict=True):
        path = run / side / "val.json"
        text = json.dumps(
            {
                **read_json(path),
                "fingerprint": {**FINGERPRINT, "adapter_sha256": None, "seed": given},
            }
        )
        path.write_text(text)
    wanted = {"summary", "same conditions"} if value != "0.0" else {"summary"}
    assert vetoes(judge_run(run)).keys() == wanted


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("given", ["0123456789abcdef", "", "mixed"])
def test_rows_of_another_fingerprint_than_the_summarys_are_a_veto(run, side, given):
    def edit(rows):
        for number, row in enumerate(rows):
            row["fingerprint"] = (
                (row["fingerprint"], "f" * 16)[number % 2] if given == "mixed" else given
            )

    rewrite(run / side, edit)
    assert "rows carry the fingerprint" in vetoes(judge_run(run))["summary"]


def test_rows_without_a_fingerprint_are_a_veto(run):
    rewrite(
        run / SIDES[0],
        lambda rows: [
            {key: value for key, value in row.items() if key != "fingerprint"} for row in rows
        ],
    )
    assert "carry the fingerprint missing" in vetoes(judge_run(run))["summary"]


@pytest.mark.parametrize("side", SIDES)
def test_other_items_right_at_equal_accuracy_are_a_veto(run, side):
    def edit(rows):
        verdicts = [(row["correct"], row["score"]) for row in rows]
        for row, (correct, score) in zip(
            rows, [*verdicts[1:100], verdicts[0], *verdicts[100:]], strict=True
        ):
            row["correct"], row["score"] = correct, score

    before = read_json(run / side / "val.json")
    rewrite(run / side, edit, bound=False)
    assert "is of rows with the hash" in vetoes(judge_run(run))["summary"]
    change(run / side / "val.json", rows_sha256=None)
    assert "is of rows with the hash missing" in vetoes(judge_run(run))["summary"]
    assert judge_run(run)["outcome"] == "reject", (
        "judged twice, they are not taken for accepted ones"
    )
    assert (
        before["overall"]["accuracy"] == read_json(run / side / "val.json")["overall"]["accuracy"]
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("key", ["n", "accuracy", "score", "truncated"])
@pytest.mark.parametrize("group", ["overall", "chain_sum"])
def test_a_figure_that_the_rows_do_not_give_is_a_veto(run, side, key, group):
    path = run / side / "val.json"
    summary = read_json(path)
    (summary["overall"] if group == "overall" else summary["benchmarks"][group])[key] = 77
    path.write_text(json.dumps(summary))
    assert vetoes(judge_run(run)).keys() == {"summary"}


def test_rows_that_are_right_without_a_full_score_are_a_veto(run):
    rewrite(run / SIDES[0], lambda rows: [row | {"correct": True} for row in rows])
    assert "right without a full score" in vetoes(judge_run(run))["summary"]


@pytest.mark.parametrize("value", ["f" * 64, None, ""])
def test_the_same_wrong_hash_of_items_on_both_sides_is_a_veto(run, value):
    for side in SIDES:
        change(run / side / "val.json", items_sha256=value)
    assert vetoes(judge_run(run)).keys() == {"same items"}


def test_items_that_are_not_in_the_benchmark_are_a_veto(run):
    for side, rate in zip(SIDES, (0.7, 0.1), strict=True):
        rows = [changed(row, item_id=row.item_id[::-1]) for row in make_rows(rate, seed=2)]
        write_side(run / side, rows, adapter="a" * 64 if rate > 0.5 else None)
    assert (
        "200 items of the candidate are not in data/benchmark/val"
        in vetoes(judge_run(run))["same items"]
    )


def test_another_answer_key_on_both_sides_is_a_veto(run):
    for side, rate in zip(SIDES, (0.7, 0.1), strict=True):
        rows = [changed(row, gold="7") for row in make_rows(rate, seed=2)]
        write_side(run / side, rows, adapter="a" * 64 if rate > 0.5 else None)
    assert (
        "200 rows of the candidate have another answer key" in vetoes(judge_run(run))["same items"]
    )


def test_without_items_there_is_nothing_to_compare_with(run):
    shutil.rmtree(run / "data")
    assert vetoes(judge_run(run)).keys() == {"same items"}


def test_an_edited_item_is_one_clear_error(run):
    path = run / "data/benchmark/val/chain_sum.jsonl"
    path.write_text(path.read_text().replace("val question 3", "val question 4", 1))
    with pytest.raises(PawlError, match="twice, or its content is not the one"):
        judge_run(run)


@pytest.mark.parametrize("runs", [3, "1", True, 0])
def test_repeats_that_both_sides_lack_are_a_veto(run, runs):
    for side, rate in zip(SIDES, (0.7, 0.1), strict=True):
        adapter = "a" * 64 if rate > 0.5 else None
        write_side(
            run / side,
            make_rows(rate, seed=2),
            fingerprint={**FINGERPRINT, "adapter_sha256": adapter, "num_runs": runs},
        )
    assert vetoes(judge_run(run)).keys() == {"complete"}


def test_a_benchmark_whose_tasks_are_not_told_is_a_veto(run):
    change(run / "reports/build_benchmark.json", tasks={})
    assert "complete" in vetoes(judge_run(run))


def test_a_share_of_contamination_that_is_not_told_is_a_veto(run):
    change(run / "reports/generate_data.json", contamination=None)
    assert vetoes(judge_run(run)).keys() == {"contamination"}


@pytest.mark.parametrize("fraction", [None, False, True, "0.06", -0.1, 1.5, [0.06], 10**400])
def test_a_share_of_contamination_that_is_none_is_one_clear_error(run, fraction):
    path = run / "reports/generate_data.json"
    path.write_text(json.dumps({**read_json(path), "contamination": {"fraction": fraction}}))
    with pytest.raises(PawlError, match=r"contamination\.fraction should be"):
        judge_run(run)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_report_with_a_number_that_is_not_finite_is_one_clear_error(run, text):
    for name, value in (("generate_data.json", "0.06"), ("eval_val/val.json", '"n": 200')):
        path = run / "reports" / name
        kept = path.read_text()
        assert value in kept
        path.write_text(kept.replace(value, text if name.startswith("g") else f'"n": {text}', 1))
        with pytest.raises(PawlError, match="not finite"):
            judge_run(run)
        path.write_text(kept)


GOOD = {"exact": True, "wrapped": None}


@pytest.mark.parametrize(
    "control",
    [
        {},
        {"(control)": GOOD},
        {"(control)": GOOD, "chain_sum": GOOD},
        {"chain_sum": GOOD, "word_sequence_reversal": GOOD},
        *(
            {"(control)": GOOD, "chain_sum": GOOD, "word_sequence_reversal": part}
            for part in (
                {},
                {"exact": None},
                {"exact": True, "wrapped": False},
            )
        ),
    ],
)
def test_a_positive_control_that_is_absent_or_tried_nothing_is_a_veto(run, control):
    change(run / "reports/generate_data.json", positive_control=control)
    assert vetoes(judge_run(run)).keys() == {"contamination"}


@pytest.mark.parametrize("base", [None, "", 7])
def test_a_base_model_that_is_not_known_is_not_the_same_one(run, base):
    for side, rate in zip(SIDES, (0.7, 0.1), strict=True):
        adapter = "a" * 64 if rate > 0.5 else None
        write_side(
            run / side,
            make_rows(rate, seed=2),
            fingerprint={**FINGERPRINT, "adapter_sha256": adapter, "base_sha256": base},
        )
    assert not vetoes(judge_run(run)) and vetoes(judge_run(run, same_base_model=True)).keys() == {
        "same base model"
    }


def test_the_accepted_experiment_of_the_committed_history_stays_an_incumbent(tmp_path):
    """It is from before summaries were bound to their rows: its line in experiments/looks.jsonl
    says who was right about what.
    """
    from stages.judge.guards import check
    from stages.judge.inputs import read_inputs

    def bound(folder):
        inputs = read_inputs(tmp_path, f"experiments/{folder}")
        return next(
            guard.passed for guard in check(inputs, 1.0, 1.0, False) if guard.guard == "summary"
        )

    write_run(tmp_path)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    assert bound("0001-sums-and-reversals") and not bound("0002-max-steps-24")
    rewrite(
        tmp_path / "experiments/0001-sums-and-reversals",
        lambda rows: swap(rows, "correct", "score"),
        bound=False,
    )
    assert not bound("0001-sums-and-reversals")


def swap(rows, *names):
    right, wrong = (
        next(row for row in rows if row["correct"] is value and row["benchmark"] == "chain_sum")
        for value in (True, False)
    )
    for name in names:
        right[name], wrong[name] = wrong[name], right[name]


def test_an_experiment_of_today_is_an_incumbent_by_its_own_hash(run):
    write_side(run / "experiments/0007-x", make_rows(0.3, seed=9), adapter="d" * 64)
    assert judge_run(run, Experiment(name="x", hypothesis="y", incumbent="experiments/0007-x"))[
        "accepted"
    ]
