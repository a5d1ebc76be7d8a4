"""What is left of a run of the agent that is killed in each of its states, and taken up: the same history as of one that nobody disturbed.

python -m tests.agent.kills            writes docs/agent-kills.md (some minutes: real git, real DVC, a toy pipeline)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from stages.common.files import ROOT, write_text
from tests.agent.toy_repo import Repo, fresh_repository

REPORT = ROOT / "docs" / "agent-kills.md"
STATES = (
    ("planning", 1), ("before the record", 1), ("editing", 1), ("after the record", 1), ("composing", 1), ("after composing", 1),
    ("running", 1),
    ("recording", 1), ("restoring", 1), ("before the commit", 1), ("committing", 1), ("after the commit", 1), ("planning", 2),
)  # fmt: skip
"""Moments at which the agent kills itself, and the how-manieth time it comes there."""
STAGES = ("train", "judge")
"""Stages in which agent, DVC and all are killed from outside."""
TRIALS = ("run", "--trials", "2", "--policy", "optuna")
_VOLATILE = ("planned_at", "finished_at", "duration_s", "commit", "dvc_lock_sha256", "run")


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the records without times and commits, the committed state, the commits' subjects, and what the pipeline ran."""

    records: dict[str, dict[str, object]]
    state: dict[str, str]
    subjects: tuple[str, ...]
    stages: tuple[str, ...]
    clean: bool


def outcome(repo: Repo) -> Outcome:
    records = {}
    for path in sorted((repo.root / "experiments").glob("*/record.json")):
        value = json.loads(path.read_text())
        papers = path.with_name("proposal.json")
        held = {"files": sorted(file.name for file in path.parent.iterdir()), "papers": papers.read_text() if papers.exists() else ""}
        records[path.parent.name] = held | {key: part for key, part in value.items() if key not in _VOLATILE}
    files = [
        "conf/experiment/current.yaml",
        "params.yaml",
        "experiments/journal.md",
        "experiments/lessons.md",
        "reports/judge.json",
        "models/adapter",
    ]
    log = repo.root / ".pawl/toy-runs.log"
    return Outcome(
        records, {name: (repo.root / name).read_text() for name in files}, tuple(repo.git("log", "--format=%s").splitlines()),
        tuple(sorted(log.read_text().splitlines())) if log.exists() else (), repo.clean(),
    )  # fmt: skip


def copy(repo: Repo, target: Path) -> Repo:
    shutil.copytree(repo.root, target, symlinks=True)
    return Repo(target)


def undisturbed(start: Repo, target: Path) -> Outcome:
    repo = copy(start, target)
    done = repo.agent(*TRIALS)
    assert done.returncode == 0, done.stdout + done.stderr
    return outcome(repo)


def killed_at(start: Repo, target: Path, state: str, count: int) -> Outcome:
    """Kill at a state, then resume until the run ends."""
    repo = copy(start, target)
    done = repo.run(sys.executable, "-m", "tests.agent.kill_at", state, str(count), *TRIALS, env={"PYTHONPATH": f"{repo.root}:{ROOT}"})
    assert done.returncode == -signal.SIGKILL, f"{state}: never came there\n{done.stdout}{done.stderr}"
    return resumed(repo)


def killed_in(start: Repo, target: Path, stage: str) -> Outcome:
    """Kill the agent while a stage runs, so that DVC dies with it and the stage goes on alone; then resume."""
    repo = copy(start, target)
    process = repo.start(*TRIALS, env={"TOY_SLEEP_S": "3"})
    deadline = time.monotonic() + 120
    log = repo.root / ".pawl/agent"
    while not any(f"Running stage '{stage}'" in path.read_text(errors="replace") for path in log.glob("*.log")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return resumed(repo)


def killed_after(start: Repo, target: Path, seconds: float) -> Outcome:
    """Kill the agent's whole process group after a time, wherever it is; then resume. Where it was quicker, that is an undisturbed run."""
    repo = copy(start, target)
    process = repo.start(*TRIALS)
    try:
        process.wait(seconds)
    except Exception:  # noqa: BLE001 - still at work, as intended
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        run = repo.root / ".pawl/agent/run.json"
        return resumed(repo) if run.exists() else again(repo)
    return outcome(repo)


def resumed(repo: Repo) -> Outcome:
    done = repo.agent("resume")
    assert done.returncode == 0, done.stdout + done.stderr
    return outcome(repo)


def again(repo: Repo) -> Outcome:
    done = repo.agent(*TRIALS)
    assert done.returncode == 0, done.stdout + done.stderr
    return outcome(repo)


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """In what two outcomes differ; of the stages only what ran more often counts."""
    parts = [name for name in ("records", "state", "subjects", "clean") if getattr(found, name) != getattr(expected, name)]
    extra = [line for line in found.stages if found.stages.count(line) > expected.stages.count(line)]
    return parts + ([f"ran twice: {', '.join(sorted(set(extra)))}"] if extra else [])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = fresh_repository(folder / "start")
        done = start.agent("try", "train.learning_rate=5e-4", "--why", "a start")
        assert done.returncode == 0, done.stdout + done.stderr
        expected = undisturbed(start, folder / "undisturbed")
        rows = []

        def row(where: str, found: Outcome) -> None:
            wrong = differences(found, expected)
            twice = any("twice" in each for each in wrong)
            rows.append(f"| {where} | {'; '.join(wrong) or 'the same history'} | {'see left' if twice else 'nothing'} |")
            print(rows[-1], flush=True)

        for k, (state, count) in enumerate(STATES):
            row(f"{state}{f', time {count}' if count > 1 else ''}", killed_at(start, folder / f"state{k}", state, count))
        for stage in STAGES:
            row(f"during the stage {stage} (the stage went on alone, and was ended)", killed_in(start, folder / stage, stage))
        for k, seconds in enumerate((2.0, 5.0, 8.0, 12.0, 17.0)):
            row(f"the whole process group after {seconds:g} s", killed_after(start, folder / f"time{k}", seconds))
    lines = [
        "# A killed run, taken up", "",
        "Generated by `python -m tests.agent.kills`: two experiments of `python -m agent run --policy optuna` in real git and real DVC",
        "on a toy",
        "pipeline, killed with SIGKILL, then `python -m agent resume`. Compared with an undisturbed run: every record",
        "but for times and commit",
        "hashes, conf/, params.yaml, journal, lessons, verdict, adapter, the subjects of all commits, a clean tree, and",
        "that no stage came to its",
        "end more often than there.", "",
        "| killed | after resume | paid for twice |", "|---|---|---|", *rows,
    ]  # fmt: skip
    write_text(REPORT, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
