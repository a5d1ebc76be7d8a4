"""What is left of a run of the agent that is killed in each of its states, and taken up: the same
history as of one that nobody disturbed.

python -m tests.agent.kills
    writes reports/agent_kills.md (some minutes: real git, real DVC, a toy pipeline)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stages.common.files import ROOT, write_text
from tests.agent.toy_repo import Repo, fresh_repository

REPORT = ROOT / "reports" / "agent_kills.md"
STATES = (
    ("planning", 1, 1),
    ("before the record", 1, 1),
    ("editing", 1, 1),
    ("after the record", 1, 1),
    ("composing", 1, 1),
    ("after composing", 1, 1),
    ("running", 1, 2),
    ("recording", 1, 1),
    ("restoring", 1, 1),
    ("before the commit", 1, 1),
    ("committing", 1, 1),
    ("after the commit", 1, 2),
    ("planning", 2, 2),
)
"""Moments at which the agent kills itself, the how-manieth time it comes there, and of how many
experiments the run is.
"""
STAGES = (
    ("baseline", "its starting point"),
    ("generate_data", "its starting point"),
    ("train", "a trial"),
    ("judge", "a trial"),
)
"""Stages in which the agent is killed from outside, so that DVC dies with it and the stage goes on
alone.
"""
SECONDS = (3.0, 8.0, 15.0)
"""When the whole process group is killed, wherever it is."""


def trials(count: int) -> tuple[str, ...]:
    return ("run", "--trials", str(count), "--policy", "optuna")


_VOLATILE = ("planned_at", "finished_at", "duration_s", "commit", "dvc_lock_sha256", "run")


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: the records without times and commits, the committed state, the commits'
    subjects, and what the pipeline ran.
    """

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
        held = {
            "files": sorted(file.name for file in path.parent.iterdir()),
            "papers": papers.read_text() if papers.exists() else "",
        }
        records[path.parent.name] = held | {
            key: part for key, part in value.items() if key not in _VOLATILE
        }
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
        records,
        {name: (repo.root / name).read_text() for name in files},
        tuple(repo.git("log", "--format=%s").splitlines()),
        tuple(sorted(log.read_text().splitlines())) if log.exists() else (),
        repo.clean(),
    )


def copy(repo: Repo, target: Path) -> Repo:
    shutil.copytree(repo.root, target, symlinks=True)
    return Repo(target)


def undisturbed(start: Repo, target: Path, count: int = 1) -> Outcome:
    repo = copy(start, target)
    done = repo.agent(*trials(count))
    assert done.returncode == 0, done.stdout + done.stderr
    return outcome(repo)


def killed_at(start: Repo, target: Path, state: str, count: int, wanted: int = 1) -> Outcome:
    """Kill at a state, then resume until the run ends."""
    repo = copy(start, target)
    done = repo.run(
        sys.executable,
        "-m",
        "tests.agent.kill_at",
        state,
        str(count),
        *trials(wanted),
        env={"PYTHONPATH": f"{repo.root}:{ROOT}"},
    )
    assert done.returncode == -signal.SIGKILL, (
        f"{state}: never came there\n{done.stdout}{done.stderr}"
    )
    return resumed(repo)


def killed_in(start: Repo, target: Path, stage: str) -> Outcome:
    """Kill the agent while a stage runs, so that DVC dies with it and the stage goes on alone; then
    resume.
    """
    repo = copy(start, target)
    before = set((repo.root / ".pawl/agent").glob("*.log"))
    process = repo.start(*trials(1), env={"TOY_SLEEP_S": "3"})
    deadline = time.monotonic() + 120
    log = repo.root / ".pawl/agent"
    while not any(
        f"Running stage '{stage}'" in path.read_text(errors="replace")
        for path in set(log.glob("*.log")) - before
    ):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return resumed(repo)


def killed_after(start: Repo, target: Path, seconds: float) -> Outcome:
    """Kill the agent's whole process group after a time, wherever it is; then resume. Where it was
    quicker, that is an undisturbed run.
    """
    repo = copy(start, target)
    process = repo.start(*trials(1))
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
    done = repo.agent(*trials(1))
    assert done.returncode == 0, done.stdout + done.stderr
    return outcome(repo)


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """In what two outcomes differ; of the stages only what ran more often counts."""
    parts = [
        name
        for name in ("records", "state", "subjects", "clean")
        if getattr(found, name) != getattr(expected, name)
    ]
    extra = [
        line for line in found.stages if found.stages.count(line) > expected.stages.count(line)
    ]
    return parts + ([f"ran twice: {', '.join(sorted(set(extra)))}"] if extra else [])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        bare = fresh_repository(folder / "bare")  # a run in it begins with its starting point
        start = copy(bare, folder / "start")
        done = start.agent("try", "train.learning_rate=5e-4", "--why", "a start")
        assert done.returncode == 0, done.stdout + done.stderr
        whole = list(
            pool.map(
                lambda given: undisturbed(given[0], folder / f"undisturbed{given[1]}", given[2]),
                ((start, "1", 1), (start, "2", 2), (bare, "bare", 1)),
            )
        )
        tasks: list[tuple[str, int, Outcome, Callable[[], Outcome]]] = [
            (
                f"{state}{f', time {count}' if count > 1 else ''}",
                wanted,
                whole[wanted - 1],
                partial(killed_at, start, folder / f"state{k}", state, count, wanted),
            )
            for k, (state, count, wanted) in enumerate(STATES)
        ]
        tasks += [
            (
                f"during the stage {stage} of {part}; the stage went on alone and was ended",
                1,
                whole[0 if part == "a trial" else 2],
                partial(killed_in, start if part == "a trial" else bare, folder / stage, stage),
            )
            for stage, part in STAGES
        ]
        tasks += [
            (
                f"the whole process group after {seconds:g} s",
                1,
                whole[0],
                partial(killed_after, start, folder / f"time{k}", seconds),
            )
            for k, seconds in enumerate(SECONDS)
        ]
        rows = list(pool.map(lambda task: row(*task), tasks))
    lines = [
        "# A killed run, taken up",
        "",
        (
            "Generated by `python -m tests.agent.kills`: one or two experiments of `python -m agent"
            " run --policy optuna` in real git and real"
        ),
        (
            "DVC on a toy pipeline, killed with SIGKILL, then `python -m agent resume`. Compared"
            " with an undisturbed run: every record and its"
        ),
        (
            "proposal but for times and commit hashes, conf/, params.yaml, journal, lessons,"
            " verdict, adapter, the subjects of all commits, a"
        ),
        (
            "clean tree, and that no stage came to its end more often than there. One that is"
            " killed after its end, while DVC still hashes"
        ),
        "what it wrote, runs again: only what dvc.lock names is done.",
        "",
        "| killed | experiments | after resume | paid for twice |",
        "|---|---|---|---|",
        *rows,
    ]
    write_text(REPORT, "\n".join(lines) + "\n")


def row(where: str, wanted: int, expected: Outcome, killed: Callable[[], Outcome]) -> str:
    """A line of the table; a run that could not be taken up is one too."""
    try:
        wrong = differences(killed(), expected)
    except AssertionError as error:
        wrong = [" ".join(str(error).split())[-300:]]
    twice = [each for each in wrong if "twice" in each]
    line = (
        f"| {where} | {wanted} | {'; '.join(wrong) or 'the same history'} |"
        f" {'; '.join(twice) or 'nothing'} |"
    )
    print(line, flush=True)
    return line


if __name__ == "__main__":
    main()
