"""An experiment's folder and the verdict that fills it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.knowledge.history import Record, read_record
from agent.run import experiment
from stages.common.errors import PawlError
from stages.common.reports.verdict import Verdict
from tests.agent.toy_pipeline import figures, rows, summary, verdict
from tests.broken import variants

PART = {**figures(0.8, 0.5, p_better=0.01), "difference": 0.3, "low": 0.2, "high": 0.4}
VERDICT: dict[str, Any] = verdict(PART, "accept", name="one", incumbent="reports/baseline")
READ = Verdict.check(VERDICT, "")
PLAN = Record(number=1, slug="one", status="PLANNED", hypothesis="h")


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("val.jsonl", "val.json", "judge.json"):
        monkeypatch.setitem(experiment.COPIED, name, tmp_path / name)
    monkeypatch.setattr(experiment, "EXPERIMENTS", tmp_path / "experiments")
    monkeypatch.setattr(experiment, "ROOT", tmp_path)
    monkeypatch.setattr(experiment, "REPORTS", tmp_path)
    (tmp_path / "dvc.lock").write_text("")
    (tmp_path / "val.jsonl").write_text(rows(3, "val"))
    summary(3).write(tmp_path / "val.json")
    (tmp_path / "judge.json").write_text(json.dumps(VERDICT))
    (tmp_path / "loss.csv").write_text("step,epoch,split,loss\n5,1,train,0.5\n")
    return tmp_path


def test_a_finished_experiment_is_never_written_again(reports: Path) -> None:
    experiment.write_record(PLAN)
    experiment.write_settings(PLAN, "a", "b")
    done = experiment.finish(PLAN, READ, 1.0)
    assert done.status == "KEPT" and read_record(experiment.folder_of(done)) == done
    held = {path.name: path.read_bytes() for path in experiment.folder_of(done).iterdir()}
    for write in (
        lambda: experiment.write_record(PLAN),
        lambda: experiment.write_settings(PLAN, "x", "y"),
        lambda: experiment.finish(PLAN, READ, 2.0),
        lambda: experiment.crash(PLAN, "late", 2.0),
    ):
        with pytest.raises(PawlError, match="never written again"):
            write()
    assert {path.name: path.read_bytes() for path in experiment.folder_of(done).iterdir()} == held


@pytest.mark.parametrize(("at_least", "met"), [(0.8, True), (0.81, False)])
def test_a_finished_experiment_says_whether_its_success_gate_was_met(
    reports: Path, at_least: float, met: bool
) -> None:
    plan = replace(PLAN, gate={"metric": "accuracy", "at_least": at_least})
    experiment.write_record(plan)
    assert experiment.finish(plan, READ, 1.0).gate == {
        "metric": "accuracy",
        "at_least": at_least,
        "met": met,
    }
    experiment.write_record(other := replace(PLAN, number=2))
    assert experiment.finish(other, READ, 1.0).gate == {}


def test_a_crash_keeps_no_copied_result(reports: Path) -> None:
    experiment.write_record(PLAN)
    (experiment.folder_of(PLAN) / "val.jsonl").write_text("half")
    experiment.crash(PLAN, "disk full", 1.0)
    assert [path.name for path in experiment.folder_of(PLAN).iterdir()] == ["record.json"]


def test_the_judges_figures_are_read(reports: Path) -> None:
    found = {
        "n": 40,
        "accuracy": 0.8,
        "incumbent_accuracy": 0.5,
        "difference": 0.3,
        "low": 0.2,
        "high": 0.4,
        "p": 0.01,
    }
    read = experiment.read_verdict("one", "reports/baseline")
    assert experiment.summary(read.evidence) == {**found, "benchmarks": {"toy": found}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"experiment": {"name": "two", "incumbent": "reports/baseline"}}, "is about"),
        ({"experiment": {"name": "one", "incumbent": "experiments/0001-x"}}, "is about"),
        ({"experiment": {"name": "one"}}, "incumbent is missing"),
        ({"experiment": None}, "experiment should be"),
        ({"outcome": "great"}, "outcome should be"),
        ({"outcome": ["accept"]}, "outcome should be"),
        ({"outcome": "reject"}, "contradict"),
        ({"accepted": 1}, "accepted should be"),
        ({"evidence": {}}, "evidence.alpha is missing"),
        ({"evidence": {**VERDICT["evidence"], "outcome": "reject"}}, "its evidence does not carry"),
        (
            {"evidence": {**VERDICT["evidence"], "pooled": {**PART, "low": "x"}}},
            "evidence.pooled.low should be a number",
        ),
        ({"guards": None}, "guards should be"),
        ({"guards": [{"passed": True}]}, "guards.0.guard is missing"),
        ({"guards": [{"guard": "x", "passed": 1}]}, "guards.0.passed should be"),
        ({"guards": []}, "guards did not all pass"),
        (
            {"guards": [{"guard": "x", "passed": True}, {"guard": "y", "passed": False}]},
            "guards did not all pass",
        ),
    ],
)
def test_a_verdict_that_does_not_carry_what_it_says_is_not_believed(
    reports: Path, change: dict[str, Any], expected: str
) -> None:
    (reports / "judge.json").write_text(json.dumps(VERDICT | change))
    with pytest.raises(PawlError, match=expected):
        experiment.read_verdict("one", "reports/baseline")


def test_a_verdict_broken_in_one_place_is_read_or_refused_and_never_a_bug(reports: Path) -> None:
    for what, text in variants(VERDICT, 200, seed=3):
        (reports / "judge.json").write_text(text)
        try:
            experiment.summary(experiment.read_verdict("one", "reports/baseline").evidence)
        except PawlError:
            continue
        place, _, value = what.partition(": ")
        harmless = place.startswith("guards.0.") and (place != "guards.0.passed" or value == "True")
        harmless |= place.startswith("evidence.pooled.incumbent") or place.endswith(".score")
        harmless |= (
            place.startswith("evidence.pooled.") and re.fullmatch(r"-?[\d.e+]+", value) is not None
        )
        assert harmless or not place.startswith(
            ("guards", "outcome", "accepted", "evidence.pooled")
        ), what


def test_rows_of_the_test_split_are_never_taken_for_validation(reports: Path) -> None:
    (reports / "val.jsonl").write_text(rows(3, "val") + rows(3, "test"))
    with pytest.raises(PawlError, match="split should be 'val'"):
        experiment.read_verdict("one", "reports/baseline")


def test_the_loss_summary_skips_what_is_no_training_loss(reports: Path) -> None:
    (reports / "loss.csv").write_text(
        "step,epoch,split,loss\n1,1,train,nan\n1,1,train,0.5\n1,1,val,9\n"
    )
    assert experiment.losses() == {"first": 0.5, "last": 0.5, "lowest": 0.5, "points": 1}


@pytest.mark.parametrize(
    "text", [None, "step,loss\n1,0.5\n", "step,epoch,split,loss\n1,1,train,x\n"]
)
def test_an_experiment_without_a_loss_curve_is_not_finished(
    reports: Path, text: str | None
) -> None:
    experiment.write_record(PLAN)
    (reports / "loss.csv").unlink()
    if text is not None:
        (reports / "loss.csv").write_text(text)
    with pytest.raises(PawlError, match=r"missing|not a loss curve"):
        experiment.finish(PLAN, READ, 1.0)
    assert not read_record(experiment.folder_of(PLAN)).finished


@pytest.mark.parametrize(
    ("primary", "metric", "expected"),
    [("", "correct", 0.1), ("b", "correct", 0.2), ("", "score", 0.3), ("b", "score", 0.4)],
)
def test_history_holds_the_figures_that_decided(primary: str, metric: str, expected: float) -> None:
    def part(accuracy: float, score: float) -> dict[str, Any]:
        found = figures(accuracy, 0.0)
        return {**found, "candidate": {**found["candidate"], "score": score}}  # type: ignore[dict-item]

    parts = {"pooled": part(0.1, 0.3), "benchmarks": {"a": part(0.5, 0.6), "b": part(0.2, 0.4)}}
    evidence = Verdict.check(
        VERDICT
        | {"evidence": {**VERDICT["evidence"], "primary": primary, "metric": metric, **parts}},
        "",
    ).evidence
    found = experiment.summary(evidence)
    assert found["accuracy"] == expected and set(found["benchmarks"]) == {"a", "b"}
