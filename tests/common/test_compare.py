"""`make compare`: a run shows its own scores or none, and a sweep stays in the table when HEAD has
moved on.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stages.common import compare

SCORES = {
    "reports/judge.json": {
        "data": {"outcome": "accept", "evidence": {"pooled": {"difference": 0.67}}}
    }
}


def run(rate: float, name: str = "", metrics: dict[str, Any] | None = None) -> dict[str, Any]:
    data = {
        "params": {"params.yaml": {"data": {"train": {"learning_rate": rate, "seed": 1}}}},
        "metrics": metrics or SCORES,
    }
    return {"rev": "0" * 40, "name": name, "data": data}


@pytest.mark.parametrize(
    ("state", "own"),
    [("Running", False), ("Queued", False), ("Failed", False), ("Success", True), (None, True)],
)
def test_a_run_that_is_not_done_shows_no_scores(state: str | None, own: bool) -> None:
    executor = {"state": state} if state else None
    base = {
        **run(1e-3, "main"),
        "experiments": [
            {"revs": [run(5e-4, "fit-lynx")], "executor": executor, "name": "fit-lynx"}
        ],
    }
    _, shown = compare.rows([base])
    assert shown["train.learning_rate"] == "0.0005" and shown["run"] == "  fit-lynx"
    assert (shown.get("outcome"), shown.get("difference")) == (
        ("accept", "0.67") if own else (None, None)
    )
    assert shown["state"] == ("" if own else str(state).lower())


def test_the_table_has_what_differs_only() -> None:
    text = compare.table(
        list(
            compare.rows(
                [
                    {
                        **run(1e-3, "main"),
                        "experiments": [{"revs": [run(5e-4, "a-b")], "name": "a-b"}],
                    }
                ]
            )
        )
    )
    assert (
        "train.learning_rate" in text
        and "train.seed" not in text
        and len({len(line) for line in text.splitlines()}) == 1
    )


def test_a_broken_report_leaves_a_gap_and_no_traceback() -> None:
    broken = {"rev": "workspace", "error": {"msg": "x"}, "data": None, "experiments": None}
    assert "this tree" in compare.table(
        list(compare.rows([broken, run(1e-3, "main", {"reports/judge.json": {"data": None}})]))
    )


def test_runs_of_earlier_commits_and_of_the_queue_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "ROOT", tmp_path)

    def git(*argv: str) -> str:
        names = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        return subprocess.run(
            ["git", *names, *argv], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    commits = []
    for number in range(3):
        git("commit", "-q", "--allow-empty", "-m", str(number))
        commits.append(git("rev-parse", "HEAD"))
    done, queued, head = commits
    git("update-ref", f"refs/exps/{done[:2]}/{done[2:]}/fit-lynx", head)
    git(
        "update-ref",
        "--create-reflog",
        "-m",
        f"commit: dvc-exp:{queued}:{queued}:slow-newt",
        "refs/exps/celery/stash",
        head,
    )
    assert compare.bases() == [head, queued, done]
