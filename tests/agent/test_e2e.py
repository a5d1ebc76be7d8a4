"""The loop on the real pipeline: LLaMA-Factory, OpenCompass, DVC and a served model, small enough
for minutes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import copy_repository, run_in

pytestmark = pytest.mark.e2e
UNTOUCHED = ("fetch_model", "build_benchmark", "baseline")


def test_three_real_experiments_with_rows_folders_and_commits_that_reuse_what_they_do_not_touch(
    tmp_path: Path,
) -> None:
    root = copy_repository(tmp_path / "repo", experiment="smoke")
    done = run_in(
        root,
        sys.executable,
        "-m",
        "agent",
        "run",
        "--trials",
        "3",
        "--policy",
        "optuna",
        timeout=1100,
    )
    assert "the run ends: 3 experiments done" in done.stdout, done.stdout
    folders = sorted(path.name for path in (root / "experiments").iterdir() if path.is_dir())
    assert len(folders) == 4 and folders[0] == "0001-smoke"
    rows = [
        line
        for line in (root / "experiments/journal.md").read_text().splitlines()
        if line.startswith("| 0")
    ]
    subjects = run_in(root, "git", "log", "--format=%s").stdout.splitlines()
    assert len(rows) == 4 and [subject.split()[1][:4] for subject in reversed(subjects[:-1])] == [
        "0001",
        "0002",
        "0003",
        "0004",
    ]
    assert run_in(root, "git", "status", "--porcelain").stdout == ""
    for folder in folders[1:]:
        record = json.loads((root / "experiments" / folder / "record.json").read_text())
        assert (
            record["status"] in ("KEPT", "DISCARDED", "INCONCLUSIVE")
            and record["loss"]
            and record["evidence"]["n"] == 16
        )
        log = (root / f".pawl/agent/{folder}.log").read_text()
        ran = set(re.findall(r"^Running stage '(\w+)'", log, re.MULTILINE))
        # an adapter that came out the same, such as of another warm-up in so few steps, is not
        # evaluated again
        touched = {change["key"].split(".")[0] for change in record["changes"]}
        assert (
            not ran & set(UNTOUCHED)
            and ("generate_data" in ran) == ("data" in touched)
            and {"train", "judge"} <= ran
        ), (
            folder,
            ran,
        )
        paper = json.loads((root / "experiments" / folder / "proposal.json").read_text())
        assert all(not each["refused"] or each["proposal"] for each in paper["attempts"])
