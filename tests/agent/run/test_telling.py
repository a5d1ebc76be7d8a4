"""What people are told of an experiment: of a stage that failed, from its record and never from a
printed line.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agent.knowledge.history import Record
from agent.run import account, telling, workspace
from stages.common import failure
from stages.common.files import write_json

RECORD = Record(1, "x", "PLANNED", "h", "0000-start", run="r", trial=1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a judge, in which stages have left records of their failures."""
    for module in (failure, telling):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(account, "LEDGER", tmp_path / "calls.jsonl")
    (tmp_path / "stages/judge").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    "stage", ["generate_data", "build_benchmark", "eval_test", "baseline", "report", "track"]
)
def test_the_error_of_a_stage_that_reads_test_items_is_not_repeated(here: Path, stage: str) -> None:
    failure.record(stage, exit_code=1, error="the answer to 'q' is 7731")
    assert telling.failed_at(stage, 0.0) == f" at {stage}"


@pytest.mark.parametrize("stage", failure.SEES_NO_TEST)
def test_the_first_line_of_another_stages_error_is(here: Path, stage: str) -> None:
    failure.record(stage, exit_code=1, error="out of memory\nand more")
    assert telling.failed_at(stage, 0.0) == f" at {stage}: out of memory"


def test_a_failure_of_a_former_run_explains_nothing(here: Path) -> None:
    failure.record("train", exit_code=1, error="out of memory")
    assert telling.failed_at("train", time.time() + 60) == " at train"
    assert telling.failed_at("", 0.0) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"error": ""}', '{"error": null}'])
def test_a_broken_record_says_where_and_no_more(here: Path, text: str) -> None:
    path = here / failure.FOLDER / "train.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert telling.failed_at("train", 0.0) == " at train"


def test_a_secret_in_an_error_stays_out_of_the_record(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "kpsk_secret_7731")
    write_json(here / failure.FOLDER / "fetch_model.json", {"error": "401 for kpsk_secret_7731"})
    assert telling.failed_at("fetch_model", 0.0) == " at fetch_model: 401 for [removed]"
    assert "7731" not in telling.reason_of(OSError("https://me:kpsk_secret_7731@host"))


def test_what_the_judge_paid_to_explain_a_crash_is_in_the_account(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure.record("train", exit_code=1, error="out of memory")

    def judge(*_: Any, **__: Any) -> None:
        paid = {"cost": 0.25, "prompt_tokens": 100, "output_tokens": 20}
        failure.explain(here, failure.read("train"), "It was too big.", paid)

    monkeypatch.setattr(workspace, "call", judge)
    assert telling.explained(RECORD, "train", 0.0) == "It was too big."
    assert account.calls("r", 1) == {
        "llm": 0.25,
        "prompt_tokens": 100.0,
        "output_tokens": 20.0,
        "gpu_hours": 0.0,
    }


@pytest.mark.parametrize(
    "said", [None, "text", {"reason": "Too big.", "paid": "much"}, {"paid": {"cost": "x"}}]
)
def test_an_odd_explanation_breaks_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    write_json(here / failure.FOLDER / "train.json", {"error": "x", "explained": said})
    monkeypatch.setattr(workspace, "call", lambda *_, **__: None)
    assert telling.explained(RECORD, "train", 0.0) in ("", "Too big.")
    assert account.calls("r", 1)["llm"] == 0.0


def test_an_explanation_is_written_into_the_folder_of_failures_alone(here: Path) -> None:
    write_json(here / ".pawl/other.json", {})
    failure.explain(here, {"stage": "../other"}, "x", {})
    assert (here / ".pawl/other.json").read_text() == "{}\n"
