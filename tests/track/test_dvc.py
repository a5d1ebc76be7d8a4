"""Real DVC, judge, report, track and MLflow behind one quick stage: repros back and forth, two
queue workers at once, a winner adopted.
"""

from __future__ import annotations

import json
import re
import sys
import time

import pytest
import yaml

from tests.conftest import copy_repository, run_in
from tests.e2e.test_pipeline import tracked

pytestmark = pytest.mark.e2e

MADE = {
    "cmd": "python -m tests.track.toy",
    "params": ["train"],
    "deps": ["tests/track/toy.py", "tests/synthetic.py"],
    "outs": [
        "models/adapter",
        "data/train",
        "data/benchmark/val",
        "data/benchmark/test",
        "reports/data_card.md",
        "reports/baseline/val.jsonl",
        "reports/baseline/test.jsonl",
        "reports/baseline/test.json",
        "reports/eval_val/val.jsonl",
        "reports/eval_test/test.jsonl",
        "reports/eval_test/test.json",
    ],
    "metrics": [
        {f"reports/{name}.json": {"cache": False}}
        for name in ("build_benchmark", "generate_data", "train", "baseline/val", "eval_val/val")
    ],
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    """A clone whose first seven stages are the toy; the tests below go on in it, one after the
    other.
    """
    folder = copy_repository(tmp_path_factory.mktemp("toy") / "repo")
    whole = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]
    made = {**MADE, "plots": whole["train"]["plots"]}
    stages = {"train": made, **{name: whole[name] for name in ("judge", "report", "track")}}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    (folder / "dvc.lock").unlink(missing_ok=True)
    run_in(folder, "git", "rm", "-rq", "--cached", "reports", "dvc.lock", ok=False)
    for path in (folder / "reports").rglob("*.*"):
        path.unlink()
    return folder


def repro(folder, *overrides):
    run_in(folder, sys.executable, "-m", "stages.common.config", *overrides)
    return re.findall(r"Running stage '(\w+)'", run_in(folder, "dvc", "repro").stdout)


def test_five_repros_over_two_configurations_are_two_complete_runs(repo):
    seen = set()
    for rate in (1e-3, 5e-4, 1e-3, 5e-4, 1e-3):
        ran = repro(repo, f"train.learning_rate={rate}")
        assert ran[-2:] == ["report", "track"] and ("train" in ran) == (rate not in seen), (
            "a configuration is trained once, and logged"
        )
        seen.add(rate)
    runs = tracked(repo)
    assert {run["rate"] for run in runs} == {"0.001", "0.0005"} and len(runs) == 2
    for run in runs:
        assert (
            run["status"] == "FINISHED"
            and run["complete"] == "true"
            and run["losses"] == [5 * k for k in range(1, 17)]
        )
        assert (
            {"judge.json", "train.json", "loss.csv", "data_card.md"} <= set(run["reports"])
            and run["page"]
            and run["inputs"] == 3
        )


def test_two_workers_at_once_lose_no_run(repo):
    run_in(repo, "git", "add", "-A")
    run_in(repo, "git", "commit", "-qm", "a run")
    before = {run["id"] for run in tracked(repo)}
    queued = run_in(
        repo, "dvc", "exp", "run", "--queue", "-S", "train.learning_rate=choice(1e-4,3e-4)"
    ).stdout
    names = re.findall(r"Queued experiment '([\w-]+)'", queued)
    run_in(repo, "dvc", "queue", "start", "-j", "2")
    deadline = time.time() + 600
    while time.time() < deadline:
        status = run_in(repo, "dvc", "queue", "status").stdout
        if not re.search(r"\b(Running|Queued)\b", status):
            break
        time.sleep(2)
    assert len(re.findall(r"\bSuccess\b", status)) == 2, (
        status + run_in(repo, "dvc", "queue", "logs", names[0], ok=False).stdout
    )
    runs = [run for run in tracked(repo) if run["id"] not in before]
    (parent,) = [run for run in runs if run["kind"] == "sweep"]
    children = [run for run in runs if run["parent"] == parent["id"]]
    assert {run["rate"] for run in children} == {"0.0001", "0.0003"} and len(runs) == 3
    assert all(
        run["complete"] == "true" and len(run["losses"]) == 16 and run["page"] for run in children
    )


def test_a_verdict_from_a_shared_cache_is_a_look_in_the_clone_that_took_it(repo, tmp_path):
    clone = tmp_path / "clone"
    run_in(tmp_path, "git", "clone", "-q", str(repo), str(clone))
    run_in(clone, "dvc", "cache", "dir", "--local", str(repo / ".dvc/cache"))
    ledger = clone / "experiments/looks.jsonl"
    before = ledger.read_text().splitlines()
    assert repro(clone, "train.learning_rate=3e-4") == [
        "report",
        "track",
    ], "the sweep's judge is not run again"
    (added,) = {line for line in ledger.read_text().splitlines() if '"candidate"' in line} - set(
        before
    )
    assert added in (repo / "experiments/looks.jsonl").read_text().splitlines()


def test_the_sweep_fits_a_screen_and_is_on_the_page(repo):
    listed = run_in(repo, "dvc", "exp", "list", "--name-only").stdout.split()
    names = [name for name in listed if re.fullmatch(r"[a-z]+-[a-z]+", name)]
    table = run_in(repo, sys.executable, "-m", "stages.common.compare").stdout
    assert len(names) == 2 and all(name in table for name in names), table
    columns = [name.strip() for name in table.splitlines()[0].strip("|").split("|")]
    assert {"run", "train.learning_rate", "difference"} <= set(
        columns
    ) and "train.lora_rank" not in columns
    assert max(map(len, table.splitlines())) <= 180, "it fits a screen"
    run_in(repo, sys.executable, "-m", "stages.report")
    page = (repo / "reports/index.html").read_text(encoding="utf-8")
    assert "Sweep from" in page and all(name in page for name in names)


def test_its_winner_is_adopted_without_training_again(repo):
    listed = json.loads(run_in(repo, "dvc", "exp", "show", "--json").stdout)[-1]["experiments"]
    rates = {
        each["name"]: each["revs"][0]["data"]["params"]["params.yaml"]["data"]["train"][
            "learning_rate"
        ]
        for each in listed
    }
    winner = next(name for name, rate in rates.items() if rate == 3e-4)
    adopted = run_in(repo, sys.executable, "-m", "agent", "adopt", winner)
    assert re.findall(r"Running stage '(\w+)'", adopted.stdout) == ["judge", "report", "track"]
    record = json.loads(run_in(repo, sys.executable, "-m", "agent", "history", "--json").stdout)[-1]
    assert (
        record["slug"] == winner
        and record["status"] == "KEPT"
        and "one of 2 of its sweep" in record["hypothesis"]
    )
    assert f"0002-{winner}" in (repo / "reports/index.html").read_text(encoding="utf-8"), (
        "the agent builds the page for each record"
    )
    assert run_in(repo, "git", "status", "--porcelain").stdout == "" and repro(repo) == []
