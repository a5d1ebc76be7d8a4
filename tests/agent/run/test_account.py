"""One account for all that is spent, and the limits that end a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.knowledge.history import Record
from agent.run import account, progress, workspace
from agent.run.account import Spent, why_stop
from stages.common.errors import PawlError
from stages.common.files import read_json, to_json, write_json
from stages.common.reports.training import TrainReport
from stages.common.schema import Launcher
from stages.common.schema.loop import Budget
from tests.golden import HERE
from tests.gpu_machines import H100


@pytest.mark.parametrize(
    ("budget", "used", "reason"),
    [
        (Budget(trials=3), Spent(trials=3), "3 experiments done"),
        (Budget(trials=3), Spent(trials=2), ""),
        (Budget(hours=1.0), Spent(hours=1.0), "1.00 of 1 hours used"),
        (Budget(llm_cost=2.0), Spent(llm_cost=2.5), "2.5 of 2 spent on language models"),
        (Budget(gpu_hours=1.0), Spent(gpu_hours=0.99), ""),
        (Budget(gpu_hours=1.0), Spent(gpu_hours=1.5), "1.50 of 1 GPU hours used"),
        (
            Budget(plateau=2),
            Spent(trials=5, since_kept=2),
            "a plateau: none of the last 2 experiments was kept",
        ),
        (Budget(), Spent(trials=999, hours=99, llm_cost=99, gpu_hours=99, since_kept=99), ""),
        (Budget(), Spent(crashes=3), "3 crashes in a row"),
    ],
)
def test_a_limit_ends_the_run_and_none_does_not(budget: Budget, used: Spent, reason: str) -> None:
    assert why_stop(budget, used) == reason


TRAINED = {**read_json(HERE / "train.json"), "processes": 2, "runtime_s": 3600.0}
"""On two GPUs, in an hour."""
VETOED = read_json(HERE / "judge_vetoed.json")


def taught(cost: float) -> dict[str, Any]:
    """A report of data that a teacher wrote."""
    report = read_json(HERE / "generate_data.json")
    teacher = {"model": "m", "requests": 7, "prompt_tokens": 0, "output_tokens": 0, "cost": cost}
    return {**report, "teacher": {"strong": teacher}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(account, "LEDGER", tmp_path / "calls.jsonl")
    monkeypatch.setattr(account, "ROOT", tmp_path)
    return tmp_path


def record(number: int, status: str, **more: Any) -> Record:
    return Record(number, "x", status, "h", "0000-start", run="r", trial=number, **more)


def test_what_a_run_used_is_its_records_and_the_calls_of_the_next(here: Path) -> None:
    account.add_call("r", 1, "propose", 10, 5, 0.5)
    account.add_call("r", 3, "propose", 10, 5, 0.25)
    account.add_call("other", 3, "propose", 10, 5, 9.0)
    with open(account.LEDGER, "a") as file:
        file.write('{"run": "r", "tri')  # a kill in the middle of a line
    account.add_call("r", 3, "propose", 1, 1, 0.125)  # not lost with it
    records = [
        record(1, "KEPT", cost={"llm": 0.5, "gpu_hours": 1.0}),
        record(2, "CRASHED", cost={"llm": 0.0}),
        Record(3, "y", "KEPT", "h"),
    ]
    assert account.spent("r", 3600.0, records) == Spent(2, 1.0, 0.875, 1.0, 1, 1)
    assert account.calls("r", 1) == {
        "llm": 0.5,
        "prompt_tokens": 10.0,
        "output_tokens": 5.0,
        "gpu_hours": 0.0,
    }


def test_a_starting_point_costs_and_is_no_experiment_of_the_run(here: Path) -> None:
    start = Record(1, "x", "KEPT", "h", run="r", cost={"llm": 0.5, "gpu_hours": 2.0})
    assert account.spent("r", 0.0, [start]) == Spent(llm_cost=0.5, gpu_hours=2.0)
    assert account.spent("r", 0.0, [start, record(2, "DISCARDED")]) == Spent(1, 0.0, 0.5, 2.0, 1)


@pytest.mark.parametrize(
    ("launcher", "seen", "device", "hours", "visible"),
    [
        (Launcher(kind="local", workers=0, nodes=1), 8, "auto", 0.5, None),
        (Launcher(kind="torchrun", workers=0, nodes=2), 2, "auto", 2.0, None),
        (Launcher(kind="torchrun", workers=0, nodes=1), 8, "auto", 1.0, "2,3"),
        (Launcher(kind="local", workers=0, nodes=1), 8, "auto", 0.0, "-1"),
        (Launcher(kind="local", workers=0, nodes=1), 8, "auto", 0.0, ""),
        (Launcher(kind="ray", workers=3, nodes=1), 8, "auto", 1.5, None),
        (Launcher(kind="torchrun", workers=2, nodes=1), 0, "auto", 0.0, None),
        (Launcher(kind="local", workers=0, nodes=1), 8, "cpu", 0.0, None),
    ],
)
def test_a_training_without_a_report_costs_the_gpu_hours_that_were_seen(
    here: Path,
    gpu_machine,
    monkeypatch: pytest.MonkeyPatch,
    launcher: Launcher,
    seen: int,
    device: str,
    hours: float,
    visible: str | None,
) -> None:
    gpu_machine(*[H100] * seen)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    params = SimpleNamespace(train=SimpleNamespace(device=device), launcher=launcher)
    monkeypatch.setattr(account, "read_params", lambda *_: params)
    monkeypatch.setattr(workspace, "git", lambda *_, **__: "")
    assert account.of_experiment(record(1, "PLANNED"), training_s=1800.0)["gpu_hours"] == hours


def test_a_params_yaml_that_somebody_broke_meanwhile_keeps_no_crash_from_its_record(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: str) -> Any:
        raise PawlError("not YAML", where="params.yaml")

    monkeypatch.setattr(account, "read_params", broken)
    monkeypatch.setattr(account, "visible", lambda: ["A", "A"])
    monkeypatch.setattr(workspace, "git", lambda *_, **__: "")
    assert account.of_experiment(record(1, "PLANNED"), training_s=1800.0)["gpu_hours"] == 0.5


@pytest.mark.parametrize(("seen", "hours"), [(0.0, 0.0), (60.0, 2.0), (None, 2.0)])
def test_a_training_that_the_cache_gave_back_costs_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, seen: float | None, hours: float
) -> None:
    write_json(here / "reports/train.json", TRAINED)
    params = SimpleNamespace(
        train=SimpleNamespace(device="auto"), launcher=Launcher(kind="local", workers=1, nodes=1)
    )
    monkeypatch.setattr(account, "read_params", lambda *_: params)
    monkeypatch.setattr(account, "visible", lambda: ["A"])
    monkeypatch.setattr(workspace, "git", lambda *_, **__: "")  # the commit has no such report
    assert account.of_experiment(record(1, "PLANNED"), training_s=seen)["gpu_hours"] == hours


def test_the_time_of_a_training_is_seen_and_outlives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, log = [0.0], tmp_path / "log"
    monkeypatch.setattr(progress, "RUN", tmp_path / "run.json")
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = progress.Progress(progress.Run("r", "optuna", {}))
    for state, stage, seconds in (
        ("planning", "", 5),
        ("running", "generate_data", 7),
        ("running", "train", 100),
        ("running", "judge", 9),
    ):
        shown.enter(state, "0002-x") if state == "planning" else None
        if stage:
            log.write_text(f"Running stage '{stage}':\n")
            shown.hear("more", log)
        now[0] += seconds
        shown.hear("", log)
        told = progress.read_run()
        assert told is not None and told.training == (
            100.0 if stage in ("train", "judge") else 0.0
        ), stage
    taken_up = progress.Progress(told)
    log.write_text("Running stage 'train':\n")
    taken_up.enter("running", "0002-x")
    taken_up.hear("more", log)
    now[0] += 50
    taken_up.enter("recording", "0002-x")
    now[0] += 1000
    taken_up.enter("committing", "0002-x")
    assert taken_up.run is not None and taken_up.run.training == 150.0
    taken_up.enter("planning")
    assert taken_up.run.training == 0.0


def test_a_stage_that_was_not_run_costs_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opinion = VETOED["opinion"] | {"cost": 0.25, "prompt_tokens": 100, "output_tokens": 9}
    write_json(here / "reports/judge.json", VETOED | {"opinion": opinion})
    write_json(here / "reports/generate_data.json", taught(2.0))
    write_json(here / "reports/train.json", {**TRAINED, "runtime_s": 7200.0})
    committed = {"reports/generate_data.json": (here / "reports/generate_data.json").read_text()}
    monkeypatch.setattr(
        workspace, "git", lambda *given, **_: committed.get(given[1].partition(":")[2], "")
    )
    account.add_call("r", 1, "propose", 10, 5, 0.5)
    cost = account.of_experiment(record(1, "PLANNED"))
    assert cost == {"llm": 0.75, "prompt_tokens": 110.0, "output_tokens": 14.0, "gpu_hours": 4.0}
    # 1.5 of it is older than this experiment
    committed["reports/generate_data.json"] = to_json(taught(1.5))
    assert account.of_experiment(record(1, "PLANNED"))["llm"] == 1.25
    committed.clear()
    assert account.of_experiment(record(1, "PLANNED"))["llm"] == 2.75


@pytest.mark.parametrize(
    ("peak_gib", "processes", "hours"), [(None, 4, 0.0), (9.5, 4, 8.0), (0.0, 1, 2.0)]
)
def test_gpu_hours_are_time_by_gpus(peak_gib: float | None, processes: int, hours: float) -> None:
    report = {
        **TRAINED,
        "peak_gpu_memory_gib": peak_gib,
        "processes": processes,
        "runtime_s": 7200.0,
    }
    assert TrainReport.check(report, "").gpu_hours == hours
