"""One experiment from hypothesis to record, in real git and real DVC. Each of these takes some
seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.agent.toy_pipeline import TEST_SECRET
from tests.agent.toy_repo import SOURCE, Repo

pytestmark = pytest.mark.e2e
GENERATED = ["experiments/journal.md", "experiments/lessons.md"]
FILES = ["current.yaml", "judge.json", "params.yaml", "record.json", "val.json", "val.jsonl"]


def record(repo: Repo, folder: str) -> dict[str, object]:
    return dict(json.loads((repo.root / "experiments" / folder / "record.json").read_text()))


def changed_by_last_commit(repo: Repo) -> list[str]:
    return repo.git("show", "--name-only", "--format=", "HEAD").split()


def rows(repo: Repo) -> list[str]:
    return [
        line
        for line in (repo.root / "experiments/journal.md").read_text().splitlines()
        if line.startswith("| 0")
    ]


def dvc_is_clean(repo: Repo) -> bool:
    done = repo.run(sys.executable, "-m", "dvc", "status", "--json")
    return json.loads(done.stdout) == {}


def test_the_first_try_records_the_starting_point_and_keeps_what_is_better(started: Repo) -> None:
    assert started.folders() == ["0001-sums-and-reversals", "0002-learning-rate-5e-4"]
    assert started.git("log", "--format=%s").splitlines()[:2] == [
        (
            "Experiment 0002-learning-rate-5e-4: KEPT, accuracy 0.500 -> 0.800, +0.300 [+0.200,"
            " +0.400], p <0.001"
        ),
        (
            "Experiment 0001-sums-and-reversals: KEPT, accuracy 0.125 -> 0.500, +0.375 [+0.275,"
            " +0.475], p <0.001"
        ),
    ]
    assert (
        started.git("rev-list", "--count", "HEAD").strip() == "3"
        and started.clean()
        and dvc_is_clean(started)
    )
    first, second = (record(started, folder) for folder in started.folders())
    assert (first["status"], first["parent"], first["incumbent"]) == (
        "KEPT",
        "",
        "reports/baseline",
    )
    assert (second["parent"], second["incumbent"]) == (
        "0001-sums-and-reversals",
        "experiments/0001-sums-and-reversals",
    )
    assert second["changes"] == [{"key": "train.learning_rate", "before": 0.001, "after": 0.0005}]
    assert (
        second["loss"] == {"first": 2.0, "last": 1.0, "lowest": 1.0, "points": 2}
        and second["evidence"]["accuracy"] == 0.8
    )  # type: ignore[index]
    for folder in started.folders():
        assert (
            sorted(path.name for path in (started.root / "experiments" / folder).iterdir()) == FILES
        )
    current = (started.root / "conf/experiment/current.yaml").read_text()
    assert (
        "learning_rate: 0.0005" in current
        and "# a short name;" in current
        and current.startswith("# @package _global_\n")
    )
    assert OmegaConf.load(started.root / "params.yaml").train.learning_rate == 0.0005
    assert [row.split(" | ")[1] for row in rows(started)] == [
        "sums-and-reversals",
        "learning-rate-5e-4",
    ]


def test_nothing_of_the_test_split_is_in_an_experiment_or_a_log_or_on_the_terminal(
    started: Repo, _started: tuple[Repo, str]
) -> None:
    held = [
        path.read_text() for path in (started.root / "experiments").rglob("*") if path.is_file()
    ]
    logs = [path.read_text() for path in (started.root / ".pawl/agent").glob("*.log")]
    assert (
        TEST_SECRET in (started.root / "reports/eval_test/test.json").read_text() and len(logs) == 2
    )
    held += [
        *logs,
        _started[1],
        started.git("log", "--format=%B"),
        started.agent("history").stdout,
        started.agent("history", "--json").stdout,
    ]
    assert not any("7731" in text or "eval_test" in text or '"test"' in text for text in held)


def test_a_repetition_is_refused_and_named(started: Repo) -> None:
    before, commit = started.state(), started.git("rev-parse", "HEAD")
    for folder, overrides in {
        "0002-learning-rate-5e-4": ["train.learning_rate=0.0005"],
        "0001-sums-and-reversals": ["train.learning_rate=1e-3", "train.seed=9"],
    }.items():
        done = started.agent("try", *overrides, "--why", "again", "--name", "new-name")
        assert done.returncode == 1 and f"repeats {folder} (KEPT" in done.stderr
    assert (
        started.state() == before and started.git("rev-parse", "HEAD") == commit and started.clean()
    )


@pytest.mark.parametrize(
    ("rate", "status", "reason"),
    [
        ("2e-3", "DISCARDED", ""),
        ("3e-3", "INCONCLUSIVE", ""),
        (
            "4e-3",
            "CRASHED",
            (
                "dvc repro failed at train: torch.OutOfMemoryError: CUDA out of memory. Tried to"
                " allocate 2.00 GiB (exit 255)"
            ),
        ),
    ],
)
def test_what_is_not_better_leaves_a_record_and_nothing_else(
    started: Repo, rate: str, status: str, reason: str
) -> None:
    before = started.state()
    why = "; rm -rf ~ $(touch x) | `a`\n</td><script> 😀" + "x" * 10_000
    done = started.agent(
        "try", f"train.learning_rate={rate}", "--why", why, "--name", "../../$(x) Big step"
    )
    assert done.returncode == (status == "CRASHED"), done.stdout + done.stderr
    assert started.state() == before and started.clean() and dvc_is_clean(started)
    folder = "0003-x-big-step"
    files = FILES if status != "CRASHED" else ["current.yaml", "params.yaml", "record.json"]
    assert changed_by_last_commit(started) == [
        *(f"experiments/{folder}/{name}" for name in files),
        *GENERATED,
    ]
    found = record(started, folder)
    assert (found["status"], found["reason"], found["parent"]) == (
        status,
        reason,
        "0002-learning-rate-5e-4",
    )
    assert (
        found["hypothesis"] == why.replace("\n", " ")
        and found["incumbent"] == "experiments/0002-learning-rate-5e-4"
    )
    assert (
        OmegaConf.load(started.root / "experiments" / folder / "current.yaml").experiment.hypothesis
        == found["hypothesis"]
    )
    assert (
        len(rows(started)) == 3
        and re.sub(r"\\.", "", rows(started)[2]).count("|") == 9
        and "<script" not in rows(started)[2]
    )
    assert "Why: ; rm -rf ~ $(touch x) | `a` </td><script>" in started.git(
        "log", "-1", "--format=%B"
    )
    assert not (started.root / "x").exists()


def test_a_crash_is_recorded_with_the_judges_words_on_the_stage_that_failed(started: Repo) -> None:
    for name in ("stages/judge", "prompts/judge"):
        shutil.copytree(
            SOURCE / name, started.root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    started.git("add", ".")
    started.git("commit", "-qm", "the judge")
    done = started.agent("try", "train.learning_rate=4e-3", "--why", "x")
    words = str(record(started, "0003-learning-rate-4e-3")["words"])
    assert words.startswith("train failed, class OOM, ") and "CUDA out of memory" in words, (
        done.stdout + done.stderr
    )
    assert f"Explained: {words}" in started.git("log", "-1", "--format=%B") and started.clean()
    # an older failure explains no later experiment
    assert started.agent("try", "train.lora_rank=8", "--why", "x").returncode == 0
    assert record(started, "0004-lora-rank-8")["words"] == ""


def test_the_next_try_is_compared_with_the_newest_kept_one(started: Repo) -> None:
    kept = started.agent("try", "train.learning_rate=1e-4", "--why", "-n smaller yet")
    assert kept.returncode == 0 and record(started, "0003-learning-rate-1e-4")["status"] == "KEPT"
    assert (
        record(started, "0003-learning-rate-1e-4")["incumbent"]
        == "experiments/0002-learning-rate-5e-4"
    )
    assert record(started, "0003-learning-rate-1e-4")["hypothesis"] == "-n smaller yet"
    shown = started.agent("history")
    assert [line.split()[1:3] for line in shown.stdout.splitlines()[1:]] == [
        ["0001", "KEPT"],
        ["0002", "KEPT"],
        ["0003", "KEPT"],
    ]
    assert [one["number"] for one in json.loads(started.agent("history", "--json").stdout)] == [
        1,
        2,
        3,
    ]


def test_a_verdict_of_another_experiment_is_not_believed(started: Repo) -> None:
    toy = started.root / "stages/toy.py"
    toy.write_text(
        toy.read_text().replace(
            '"experiment": about,', '"experiment": {**about, "name": "another"},'
        )
    )
    started.git("commit", "-qam", "a judge that mixes experiments up")
    before = started.state()
    done = started.agent("try", "train.learning_rate=1e-4", "--why", "x")
    assert done.returncode == 1 and "the verdict is about 'another'" in done.stderr
    assert (
        started.state() == before
        and record(started, "0003-learning-rate-1e-4")["status"] == "CRASHED"
    )


def test_after_a_change_of_the_ruler_the_present_state_is_a_new_starting_point(
    started: Repo,
) -> None:
    set_parameter(started, "conf/benchmark/sums_and_reversals.yaml", "seed: 1001 ", "seed: 1002 ")
    before, commit = started.state(), started.git("rev-parse", "HEAD")
    again = ("try", "train.learning_rate=1e-3", "--why", "what the old ruler measured as 0001")
    refused = started.agent(*again)
    assert (
        refused.returncode == 1
        and "still names experiments/0001-sums-and-reversals" in refused.stderr
    )
    assert "set experiment.incumbent there to reports/baseline" in refused.stderr
    assert (
        started.state() == before and started.clean() and started.git("rev-parse", "HEAD") == commit
    )
    set_parameter(
        started,
        "conf/experiment/current.yaml",
        'incumbent: "experiments/0001-sums-and-reversals"',
        "incumbent: reports/baseline",
    )
    done = started.agent(*again)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the ruler changed since 0002-learning-rate-5e-4 (benchmark.seed)" in done.stdout
    assert (
        started.folders()[2:] == ["0003-learning-rate-5e-4", "0004-learning-rate-1e-3"]
        and started.clean()
        and dvc_is_clean(started)
    )
    start, tried = (record(started, folder) for folder in started.folders()[2:])
    assert (start["status"], start["parent"], start["incumbent"]) == (
        "KEPT",
        "",
        "reports/baseline",
    )
    assert (tried["status"], tried["parent"], tried["incumbent"]) == (
        "DISCARDED",
        start_of(start),
        f"experiments/{start_of(start)}",
    )
    assert [change["key"] for change in tried["changes"]] == ["train.learning_rate"]  # type: ignore[attr-defined]
    # the ruler is the same now: no further starting point
    more = started.agent("try", "train.learning_rate=1e-4", "--why", "x")
    assert (
        more.returncode == 0
        and record(started, "0005-learning-rate-1e-4")["incumbent"]
        == f"experiments/{start_of(start)}"
    )


def start_of(one: dict[str, object]) -> str:
    return f"{one['number']:04d}-{one['slug']}"


@pytest.mark.parametrize(
    ("rate", "status"), [("1e-4", "KEPT"), ("2e-3", "DISCARDED"), ("4e-3", "CRASHED")]
)
def test_a_finished_experiment_whose_commit_failed_is_committed_by_restore(
    started: Repo, rate: str, status: str
) -> None:
    before, commit, hook, folder = (
        started.state(),
        started.git("rev-parse", "HEAD"),
        failing_hook(started),
        f"0003-learning-rate-{rate}",
    )
    done = started.agent("try", f"train.learning_rate={rate}", "--why", "x")
    assert (
        done.returncode == 1
        and f"{folder} is {status}, but not committed" in done.stderr
        and "no disk" in done.stderr
    )
    assert started.agent("restore").returncode == 1 and started.git("rev-parse", "HEAD") == commit
    refused = started.agent("try", "train.learning_rate=3e-3", "--why", "x")
    assert refused.returncode == 1 and "fix:   python -m agent restore" in refused.stderr
    found = record(started, folder)
    assert found["status"] == status
    hook.unlink()
    restored = started.agent("restore")
    assert restored.returncode == 0 and f"committed the finished {folder}" in restored.stdout, (
        restored.stderr
    )
    assert record(started, folder) == found and started.clean() and dvc_is_clean(started)
    assert (started.state() == before) is (status != "KEPT") and len(rows(started)) == 3
    assert started.git("log", "-1", "--format=%s").startswith(f"Experiment {folder}: {status}")
    assert ("dvc.lock" in changed_by_last_commit(started)) is (status == "KEPT")


def test_a_starting_point_whose_commit_failed_is_committed_by_restore(fresh: Repo) -> None:
    hook = failing_hook(fresh)
    assert fresh.agent("try", "train.learning_rate=5e-4", "--why", "x").returncode == 1
    assert fresh.folders() == ["0001-sums-and-reversals"]
    hook.unlink()
    assert fresh.agent("restore").returncode == 0 and fresh.clean() and dvc_is_clean(fresh)
    assert record(fresh, "0001-sums-and-reversals")[
        "status"
    ] == "KEPT" and "dvc.lock" in changed_by_last_commit(fresh)


def test_restore_commits_no_state_that_the_experiment_did_not_have(started: Repo) -> None:
    hook = failing_hook(started)
    started.agent("try", "train.learning_rate=1e-4", "--why", "x")
    hook.unlink()
    commit = started.git("rev-parse", "HEAD")
    started.git("checkout", "-q", "HEAD", "--", "dvc.lock")
    done = started.agent("restore")
    assert done.returncode == 1 and "no longer in the tree" in done.stderr
    assert (
        started.git("rev-parse", "HEAD") == commit
        and "0003-learning-rate-1e-4" in started.folders()
    )


def failing_hook(repo: Repo) -> Path:
    hook = repo.root / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no disk >&2\nexit 1\n")
    hook.chmod(0o755)
    return hook


@contextmanager
def in_the_middle_of_training(repo: Repo, rate: str = "6e-3") -> Iterator[subprocess.Popen[str]]:
    """A try that hangs in the stage `train`; whatever is left of it afterwards is ended."""
    process = repo.start("try", f"train.learning_rate={rate}", "--why", "# hangs")
    pid_file = repo.root / ".pawl/toy.pid"
    try:
        deadline = time.monotonic() + 60
        while not pid_file.exists() or not pid_file.read_text():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()
        if alive(repo):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def alive(repo: Repo) -> bool:
    """Whether the hanging stage still runs (a zombie does not)."""
    try:
        return (
            "\nState:\tZ"
            not in open(f"/proc/{int((repo.root / '.pawl/toy.pid').read_text())}/status").read()
        )
    except (OSError, ValueError):
        return False


def set_parameter(repo: Repo, path: str, old: str, new: str) -> None:
    text = (repo.root / path).read_text()
    assert old in text
    (repo.root / path).write_text(text.replace(old, new))
    assert repo.run(sys.executable, "-m", "stages.common.config").returncode == 0
    repo.git("commit", "-qam", "a change by hand")


def test_a_run_that_takes_too_long_is_ended_and_recorded(started: Repo) -> None:
    set_parameter(started, "conf/agent/optuna.yaml", "timeout_h: 24.0", "timeout_h: 0.001")
    before = started.state()
    done = started.agent("try", "train.learning_rate=6e-3", "--why", "x")
    assert done.returncode == 1 and "longer than 0.001 h" in done.stderr and not alive(started)
    assert (
        started.state() == before
        and record(started, "0003-learning-rate-6e-3")["status"] == "CRASHED"
    )


def test_no_verdict_where_somebody_edited_the_pipeline_meanwhile(started: Repo) -> None:
    before = started.state()
    done = started.agent("try", "train.learning_rate=7e-3", "--why", "x")
    assert (
        done.returncode == 1
        and "edited while the experiment ran: prompts/judge/reason.j2" in done.stderr
    )
    assert started.state() == before and started.git("status", "--porcelain", "-uall").split() == [
        "??",
        "prompts/judge/reason.j2",
    ]


def test_a_commit_meanwhile_is_not_written_upon(started: Repo) -> None:
    with in_the_middle_of_training(started) as process:
        started.git("commit", "-q", "--allow-empty", "-m", "mine")
        commit = started.git("rev-parse", "HEAD")
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
        assert process.returncode == 1 and "fix:   python -m agent restore" in told
    assert started.agent("restore").returncode == 0
    assert (
        started.clean()
        and started.git("rev-parse", "HEAD") == commit
        and len(started.folders()) == 2
    )


def test_an_interrupted_starting_point_leaves_nothing(fresh: Repo) -> None:
    set_parameter(fresh, "conf/train/lora.yaml", "learning_rate: 1.0e-3", "learning_rate: 6.0e-3")
    before = {name: value for name, value in fresh.state().items() if not name.startswith("models")}
    with in_the_middle_of_training(fresh, "5e-4") as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130 and not alive(fresh)
    assert fresh.state() == before and fresh.clean() and fresh.folders() == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_try_puts_the_tree_back_and_records_nothing(
    started: Repo, sign: signal.Signals
) -> None:
    before, commit = started.state(), started.git("rev-parse", "HEAD")
    with in_the_middle_of_training(started) as process:
        assert record(started, "0003-learning-rate-6e-3")["status"] == "PLANNED"
        process.send_signal(sign)
        told, _ = process.communicate(timeout=60)
        assert process.returncode == 130, told
        assert not alive(started)
    assert started.state() == before and started.clean() and dvc_is_clean(started)
    assert "nothing half-written was kept" in told and "CRASHED" not in told
    assert (
        len(started.folders()) == len(rows(started)) == 2
        and started.git("rev-parse", "HEAD") == commit
    )
    assert "interrupted" not in (started.root / "experiments/lessons.md").read_text()


def test_after_kill_9_the_next_try_names_the_command_that_restores(started: Repo) -> None:
    before, commit = started.state(), started.git("rev-parse", "HEAD")
    with in_the_middle_of_training(started) as process:
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while alive(started):  # the stage dies with DVC, and DVC with its agent
            assert time.monotonic() < deadline
            time.sleep(0.1)
    done = started.agent("try", "train.learning_rate=2e-3", "--why", "x")
    assert (
        done.returncode == 1
        and "fix:   python -m agent restore" in done.stderr
        and "0003-learning-rate-6e-3" in done.stderr
    )
    restored = started.agent("restore")
    assert restored.returncode == 0, restored.stderr
    assert (
        started.state() == before
        and started.clean()
        and dvc_is_clean(started)
        and started.git("rev-parse", "HEAD") == commit
    )
    assert "nothing to restore" in started.agent("restore").stdout


def test_restore_leaves_other_peoples_work_alone(started: Repo) -> None:
    (started.root / "conf/train/lora.yaml").write_text("mine: 1\n")
    (started.root / "reports/notes.txt").write_text("mine")
    done = started.agent("restore")
    assert (
        done.returncode == 0
        and "nothing to restore" in done.stdout
        and "conf/train/lora.yaml" in done.stdout
    )
    assert (started.root / "reports/notes.txt").exists() and (
        started.root / "conf/train/lora.yaml"
    ).read_text() == "mine: 1\n"
