"""What one MLflow run holds, worked out from params and reports without MLflow: a key, parameters, metrics with steps, tags."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from stages.common.files import flatten, read_json, sha256_text
from stages.common.losses import Loss, read_losses
from stages.common.text import plain

REPORTS = (
    "generate_data.json", "train.json", "baseline/val.json", "baseline/test.json", "eval_val/val.json", "eval_test/test.json", "judge.json",
)  # fmt: skip
SCORES = {
    "val": "eval_val/val.json",
    "test": "eval_test/test.json",
    "baseline_val": "baseline/val.json",
    "baseline_test": "baseline/test.json",
}
LOSSES = "loss.csv"
TIMES = re.compile(r".*_s|peak_memory_gib")
"""Keys of reports that differ between identical runs (seconds, rates, memory): measured, but no part of what a run is."""
PARAM_LIMIT = 6000
TAG_LIMIT = 5000


class Metric(NamedTuple):
    name: str
    value: float
    step: int


class Record(NamedTuple):
    """One run. `key` is the same for the same params and results, whenever and wherever they were made."""

    key: str
    name: str
    params: dict[str, str]
    metrics: list[Metric]
    tags: dict[str, str]
    artifacts: list[Path]


def make_record(root: Path, sections: dict[str, Any]) -> Record:
    """Build the record from the sections of params.yaml and the reports under `root`.

    Raises:
        PawlError: a report is missing or broken.
    """
    folder = root / "reports"
    values = {name: asdict(section) for name, section in sections.items()}
    reports = {name: read_json(folder / name) for name in REPORTS}
    losses = read_losses(folder / LOSSES)
    parts = {
        "params": values,
        "reports": {name: without_times(report) for name, report in reports.items()},
        "losses": [str(loss) for loss in losses],
    }
    key = sha256_text(json.dumps(parts, sort_keys=True))
    return Record(
        key=key,
        name=plain(values["experiment"]["name"], 250) or "unnamed",
        params={mlflow_name(name)[:250]: shown(value, PARAM_LIMIT) for name, value in flatten(values).items()},
        metrics=_scores(reports)
        + _teaching(reports["generate_data.json"])
        + _training(reports["train.json"])
        + _evidence(reports["judge.json"])
        + _losses(losses),
        tags={**_tags(reports["judge.json"]), "pawl.key": key},
        artifacts=[path for name in ("data_card.md", "judge.md", LOSSES, *REPORTS) if (path := folder / name).is_file()],
    )


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if not TIMES.fullmatch(name)}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def shown(value: Any, limit: int) -> str:
    """A value as MLflow shows it, in one line within its limit, credentials in addresses left out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(without_credentials(text), limit)


def without_credentials(text: str) -> str:
    """Leave out the user and password of addresses."""
    return re.sub(r"(?<=//)[^/@\s]+@", "***@", text)


def mlflow_name(name: str) -> str:
    """A name that MLflow takes: its letters, no empty or dotted path parts; one that had to change ends in a short hash of what it was."""
    parts = [part for part in re.sub(r"[^\w.\- /]", "_", name).split("/") if part.strip(". ")]
    clean = "/".join(parts)[:230] or "_"
    return clean if clean == name else f"{clean}_{sha256_text(name)[:6]}"


def _scores(reports: dict[str, Any]) -> list[Metric]:
    """val/NAME/accuracy and the like; `baseline_` before the split for the base model; test scores only under test/ and baseline_test/."""
    found = []
    for prefix, file in SCORES.items():
        report = reports[file]
        groups = {"overall": report.get("overall", {}), **report.get("benchmarks", {})}
        for name, scores in groups.items():
            path = f"{prefix}/{name.replace('/', '_')}"
            found += _metrics({f"{path}/{key}": scores.get(key) for key in ("accuracy", "lenient", "truncated")})
    return found


def _teaching(report: dict[str, Any]) -> list[Metric]:
    """What the replies in the training data cost when they were made, for each teacher."""
    names = ("requests", "prompt_tokens", "output_tokens", "cost")
    return _metrics({f"teacher/{tier}/{name}": usage.get(name) for tier, usage in report.get("teacher", {}).items() for name in names})


def _training(report: dict[str, Any]) -> list[Metric]:
    names = ("initial_loss", "final_loss", "best_eval_loss", "steps", "rows", "runtime_s", "tokens_per_s", "peak_memory_gib")
    return _metrics({f"train/{name}": report.get(name) for name in names})


def _evidence(verdict: dict[str, Any]) -> list[Metric]:
    evidence = verdict.get("evidence", {})
    groups = {"overall": evidence.get("pooled", {}), **evidence.get("benchmarks", {})}
    names = ("difference", "low", "high", "p_better", "lenient_difference")
    return _metrics({f"evidence/{group.replace('/', '_')}/{name}": part.get(name) for group, part in groups.items() for name in names})


def _metrics(values: dict[str, Any]) -> list[Metric]:
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float)) and math.isfinite(value)}
    return [Metric(mlflow_name(name), float(value), 0) for name, value in numbers.items()]


def _losses(losses: list[Loss]) -> list[Metric]:
    """loss/train and loss/eval with their steps; of two losses at one step the last counts."""
    points = {(mlflow_name(f"loss/{split}"), step): loss for step, split, loss in losses}
    return [Metric(name, value, step) for (name, step), value in points.items() if math.isfinite(value)]


def _tags(verdict: dict[str, Any]) -> dict[str, str]:
    experiment, words = verdict.get("experiment", {}), verdict.get("words", {})
    tags = {
        "pawl.outcome": verdict.get("outcome", ""),
        "pawl.decision": words.get("Decision", ""),
        "pawl.reason": words.get("Reason", ""),
        "pawl.hypothesis": experiment.get("hypothesis", ""),
        "pawl.incumbent": experiment.get("incumbent", ""),
        "pawl.parent": experiment.get("parent", ""),
        "pawl.test_scores": "metrics under test/ and baseline_test/ are for human eyes: no decision may read them",
        "mlflow.note.content": words.get("Reason", ""),
    }
    return {name: shown(value, TAG_LIMIT) for name, value in tags.items()}
