"""The reports of a run, and the metrics that MLflow shows of them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from stages.common.files import flatten, sha256_text
from stages.common.losses import Loss
from stages.common.reports.data import DataReport
from stages.common.reports.evaluation import EvalSummary, Summary
from stages.common.reports.test_results import TestSummary
from stages.common.reports.training import TrainReport
from stages.common.reports.verdict import Evidence, Verdict

LARGEST = 2**63
"""MLflow keeps a step in 64 bits; a figure beyond that is none that was measured."""


class Metric(NamedTuple):
    name: str
    value: float
    step: int


class Reports(NamedTuple):
    """What a run came to. Scores of test items go under test/ and nowhere else."""

    data: DataReport
    train: TrainReport
    baseline_val: EvalSummary
    baseline_test: TestSummary
    val: EvalSummary
    test: TestSummary
    verdict: Verdict


REPORTS = (
    "generate_data.json",
    "train.json",
    "baseline/val.json",
    "baseline/test.json",
    "eval_val/val.json",
    "eval_test/test.json",
    "judge.json",
)
"""Where they are, in the same order."""


def read_reports(folder: Path) -> Reports:
    """All reports of a folder.

    Raises:
        PawlError: one is missing or broken.
    """
    kinds = get_type_hints(Reports).values()
    return Reports(*(kind.read(folder / name) for kind, name in zip(kinds, REPORTS, strict=True)))


def mlflow_name(name: str) -> str:
    """A name that MLflow takes: its letters, no empty or dotted path parts; one that had to change
    ends in a short hash of what it was.
    """
    parts = [part for part in re.sub(r"[^\w.\- /]", "_", name).split("/") if part.strip(". ")]
    clean = "/".join(parts)[:230] or "_"
    return clean if clean == name else f"{clean}_{sha256_text(name)[:6]}"


def of_scores(reports: Reports) -> list[Metric]:
    """val/NAME/accuracy and the like, baseline_val/ for the base model; test scores only under
    test/ and test/baseline/.
    """
    places: dict[str, Summary] = {
        "val": reports.val,
        "test": reports.test,
        "baseline_val": reports.baseline_val,
        "test/baseline": reports.baseline_test,
    }
    found = []
    for prefix, summary in places.items():
        for name, scores in {"overall": summary.overall, **summary.benchmarks}.items():
            path = f"{prefix}/{name.replace('/', '_')}"
            figures = {
                key: getattr(scores, key) for key in ("accuracy", "lenient", "score", "truncated")
            }
            figures |= {f"pass_at_{k}": share for k, share in scores.pass_at_k.items()}
            found += _metrics({f"{path}/{key}": value for key, value in figures.items()})
    return found


def of_teaching(data: DataReport) -> list[Metric]:
    """What the replies in the training data cost when they were made, for each teacher."""
    names = ("requests", "prompt_tokens", "output_tokens", "cost")
    return _metrics(
        {
            f"teacher/{tier}/{name}": getattr(paid, name)
            for tier, paid in data.teacher.items()
            for name in names
        }
    )


def of_training(train: TrainReport) -> list[Metric]:
    """Every number of train.json, at the last step."""
    figures = {f"train/{name}": value for name, value in flatten(train.plain()).items()}
    return [metric._replace(step=train.steps) for metric in _metrics(figures)]


def of_evidence(evidence: Evidence) -> list[Metric]:
    groups = {"overall": evidence.pooled, **evidence.benchmarks}
    names = ("difference", "low", "high", "p_better", "lenient_difference")
    return _metrics(
        {
            f"evidence/{group.replace('/', '_')}/{name}": getattr(found, name)
            for group, found in groups.items()
            for name in names
        }
    )


def _metrics(values: dict[str, Any]) -> list[Metric]:
    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    }
    return [Metric(mlflow_name(name), float(value), 0) for name, value in numbers.items()]


def of_losses(losses: list[Loss]) -> list[Metric]:
    """loss/train and loss/eval with their steps; of two losses at one step the last counts."""
    points = {(mlflow_name(f"loss/{row.split}"), row.step): row.loss for row in losses}
    return [
        Metric(name, value, step) for (name, step), value in points.items() if math.isfinite(value)
    ]
