"""Made-up experiments as the agent records them, for the tests of the page. Nothing in them was
measured.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from stages.common.files import write_json

HOSTILE = (
    '</script><script>alert(1)</script><img src=x onerror=alert(1)> {{7*7}} {% if %} "quoted" \' &'
    " \x00 \x1b[31m \u202e txet"
)


def write_experiment(folder: Path, number: int, slug: str, status: str, **changes: Any) -> str:
    """One finished experiment's record and verdict; returns the name of its folder."""
    name = f"{number:04d}-{slug}"
    accuracy = changes.pop("accuracy", 0.5)
    words = changes.pop(
        "words",
        {"Reason": f"Because of {slug}.", "Decision": "no", "Code Summary": "610 rows, 77 steps."},
    )
    evidence = {
        "n": 400,
        "accuracy": accuracy,
        "incumbent_accuracy": 0.5,
        "difference": accuracy - 0.5,
        "low": accuracy - 0.55,
        "high": accuracy - 0.45,
        "p": 0.02,
        "benchmarks": {"chain_sum": {"difference": accuracy - 0.5}},
    }
    record = {
        "number": number,
        "slug": slug,
        "status": status,
        "hypothesis": f"{slug} helps",
        "parent": "",
        "incumbent": "reports/baseline",
        "changes": [{"key": "train.learning_rate", "before": 0.001, "after": 0.0005}],
        "duration_s": 443.8,
        "reason": "",
        "finished_at": "2026-11-29T16:29:24Z",
        "evidence": {} if status == "CRASHED" else evidence,
    }
    write_json(folder / name / "record.json", {**record, **changes})
    if status != "CRASHED":
        write_json(folder / name / "judge.json", {"words": words})
    return name


def write_search(folder: Path, count: int, seed: int = 0) -> list[str]:
    """A search of `count` experiments in which about one in eight is kept; returns the champion's
    path, oldest first.
    """
    rng = random.Random(seed)
    path = [write_experiment(folder, 1, "start", "KEPT", accuracy=0.4, changes=[])]
    best = 0.4
    for number in range(2, count + 1):
        accuracy = round(min(0.99, max(0.0, best + rng.gauss(-0.05, 0.06))), 4)
        kept = accuracy > best + 0.01
        status = (
            "KEPT"
            if kept
            else "CRASHED"
            if rng.random() < 0.05
            else rng.choice(["DISCARDED", "INCONCLUSIVE"])
        )
        long = {
            "Reason": "The difference is what chance makes of it. " * 12,
            "Code Summary": "610 rows, 77 steps. " * 8,
            "Decision": "no",
        }
        why = f"the loss still falls at the end, so that more of it helps: {number}"
        name = write_experiment(
            folder,
            number,
            f"try-{number}",
            status,
            accuracy=accuracy,
            parent=path[-1],
            incumbent=f"experiments/{path[-1]}",
            words=long,
            hypothesis=why,
            reason="out of memory" if status == "CRASHED" else "",
        )
        if kept:
            path.append(name)
            best = accuracy
    return path
