"""What a try is compared with, and what an error may tell. No pipeline runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import execution, experiment, history, trial
from agent.history import Record

NEW, OLD = "benchmark: {seed: 2}\n", "benchmark: {seed: 1}\n"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Three kept ones of two rulers, and a discarded one of the new ruler."""
    monkeypatch.setattr(experiment, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(history, "EXPERIMENTS", tmp_path)
    made = []
    for number, (ruler, status) in enumerate([(NEW, "KEPT"), (NEW, "KEPT"), (OLD, "KEPT"), (NEW, "DISCARDED")], 1):
        made.append(Record(number=number, slug="x", status=status, hypothesis="h"))
        experiment.write_settings(made[-1], "", ruler)
        experiment.write_record(made[-1])
    return made


@pytest.mark.parametrize(("seed", "expected"), [(2, "0002-x"), (1, "0003-x"), (3, "")])
def test_the_incumbent_is_the_newest_kept_of_the_same_ruler(saved: list[Record], seed: int, expected: str) -> None:
    found = trial.incumbent_of(saved, {"benchmark.seed": seed})
    assert (found.folder if found else "") == expected


@pytest.mark.parametrize(("params", "starts"), [({"benchmark.seed": 2}, False), ({"benchmark.seed": 2, "evaluate.retries": 9}, False),
                                                ({"benchmark.seed": 3}, True)])  # fmt: skip
def test_another_ruler_than_the_newest_verdicts_needs_a_new_start(
    saved: list[Record], monkeypatch: pytest.MonkeyPatch, params: dict[str, int], starts: bool
) -> None:
    monkeypatch.setattr(history, "read_history", lambda: (saved, []))
    assert bool(trial.why_start(params)) is starts


@pytest.mark.parametrize("stage", ["generate_data", "build_benchmark", "eval_test", "report"])
def test_the_error_of_a_stage_that_reads_test_items_is_not_repeated(tmp_path: Path, stage: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{stage}: error: the answer to 'q' is 7731\nERROR: failed to reproduce '{stage}': failed to run\n")
    assert execution._failure(log) == f" at {stage}"
