"""What one MLflow run holds, worked out from params, lock and reports without MLflow."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stages.common.files import flatten, part, sha256_file, sha256_text
from stages.common.losses import Loss, read_losses
from stages.common.reports.base import Report
from stages.common.reports.data import DataReport
from stages.common.reports.evaluation import EvalSummary
from stages.common.reports.test_results import TestSummary
from stages.common.reports.training import TrainReport
from stages.common.text import plain
from stages.common.verdict import accepted

REPORTS: dict[str, type[Report]] = {
    "generate_data.json": DataReport,
    "train.json": TrainReport,
    "baseline/val.json": EvalSummary,
    "baseline/test.json": TestSummary,
    "eval_val/val.json": EvalSummary,
    "eval_test/test.json": TestSummary,
    "judge.json": Report,
}
SCORES = {
    "val": "eval_val/val.json",
    "test": "eval_test/test.json",
    "baseline_val": "baseline/val.json",
    "test/baseline": "baseline/test.json",
}
"""Where a summary's scores go: what was measured on test items only under test/."""
LOSSES = "loss.csv"
PAGE = "index.html"
TIMES = re.compile(r".*_(s|ms|gib|at)|seconds|cost|latency.*")
"""Keys of reports that differ between identical runs (seconds, rates, memory): measured, but no part of what a run is."""
MADE = re.compile(r"(models|data)/.*|reports/.*\.jsonl")
"""Entries of dvc.lock that say what came out, byte for byte; the small reports beside them hold times too."""
PARAM_LIMIT = 6000
TAG_LIMIT = 5000
LARGEST = 2**63
"""MLflow keeps a step in 64 bits; a figure beyond that is none that was measured."""


class Metric(NamedTuple):
    name: str
    value: float
    step: int


class Dataset(NamedTuple):
    """What a run read. `digest` is DVC's hash, `path` where it lies, `context` what it was used for."""

    name: str
    digest: str
    path: str
    context: str
    rows: int


class Parent(NamedTuple):
    """The run that this one is nested under: a sweep, or a session of the agent."""

    key: str
    name: str
    kind: str


class Record(NamedTuple):
    """One run. `key` is the same for the same params and results, whenever and wherever they were made.

    `model` is registered under the name `register`, where that is set; `champion` moves the alias to it.
    """

    key: str
    name: str
    params: dict[str, str]
    metrics: list[Metric]
    tags: dict[str, str]
    artifacts: list[tuple[Path, str]]
    datasets: list[Dataset] = []  # noqa: RUF012 - never changed
    parent: Parent | None = None
    register: str = ""
    model: Path | None = None
    champion: bool = False


def make_record(root: Path, sections: dict[str, Any]) -> Record:
    """Build the record from the sections of params.yaml, dvc.lock and the reports under `root`.

    Raises:
        PawlError: a report is missing or broken.
    """
    folder = root / "reports"
    values = {name: asdict(section) for name, section in sections.items()}
    reports = {name: kind.read(folder / name).plain() for name, kind in REPORTS.items()}
    losses = read_losses(folder / LOSSES)
    lock = read_lock(root / "dvc.lock")
    verdict = reports["judge.json"]
    key = run_key(shaping(flatten(values), root / "dvc.yaml"), lock, reports, losses)
    experiment, register = os.environ.get("DVC_EXP_NAME", ""), values["tracking"].get("register", "")
    name = plain(values["experiment"]["name"], 200) or "unnamed"
    tags = {**_tags(verdict), "pawl.key": key, "pawl.commit": _commit(root)}
    return Record(
        key=key,
        name=f"{name} ({plain(experiment, 40)})" if experiment else name,
        params={mlflow_name(name)[:250]: shown(value, PARAM_LIMIT) for name, value in flatten(values).items()},
        metrics=_scores(reports)
        + _teaching(reports["generate_data.json"])
        + _training(reports["train.json"])
        + _evidence(verdict)
        + _losses(losses),
        tags={**tags, "pawl.dvc_experiment": plain(experiment, 200)} if experiment else tags,
        artifacts=_artifacts(folder),
        datasets=_datasets(values, lock, reports),
        parent=parent_run(),
        register=register,
        model=root / "models/adapter" if register else None,
        champion=accepted(verdict) and not experiment,  # one of a sweep is no champion before it is adopted
    )


def shaping(params: dict[str, Any], pipeline: Path) -> dict[str, Any]:
    """The parameters that shape a result: those that a stage of dvc.yaml before report and track depends on; else all but tracking.

    A longer timeout makes no new run, just as it runs no stage again.
    """
    stages = _stages(pipeline)
    if not stages:
        return {key: value for key, value in params.items() if not key.startswith("tracking.")}
    names = {name for stage, spec in stages.items() if stage not in ("report", "track") for name in spec.get("params") or []}
    return {key: value for key, value in params.items() if any(key == name or key.startswith(f"{name}.") for name in names)}


def run_key(params: dict[str, Any], lock: dict[str, str], reports: dict[str, Any], losses: list[Loss]) -> str:
    """A hash of the parameters, the lock's entries of what came out, and the verdict; of all reports where there is no lock."""
    verdict = {name: reports["judge.json"].get(name) for name in ("outcome", "evidence")}
    parts: dict[str, Any] = {"params": params, "verdict": without_times(verdict)}
    if made := {path: digest for path, digest in lock.items() if MADE.fullmatch(path)}:
        parts["lock"] = made
    else:
        parts["reports"] = {name: without_times(report) for name, report in reports.items()}
        parts["losses"] = [str(loss) for loss in losses]
    return sha256_text(json.dumps(parts, sort_keys=True))


def read_lock(path: Path) -> dict[str, str]:
    """Path and hash of everything that the stages in dvc.lock made; {} where there is no lock."""
    outs = [out for stage in _stages(path).values() for out in stage.get("outs") or []]
    return {str(out["path"]): str(out["md5"]) for out in outs if out.get("md5")}


def _stages(path: Path) -> dict[str, Any]:
    """The stages of a dvc.yaml or dvc.lock; {} where there are none."""
    try:
        whole = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError):
        return {}
    return (whole.get("stages") if isinstance(whole, dict) else None) or {}


def _artifacts(folder: Path) -> list[tuple[Path, str]]:
    """Small reports, what was measured on test items apart, and the page if it is of this verdict."""
    found = []
    for name in ("data_card.md", "judge.md", LOSSES, *REPORTS):
        where = "test" if "test." in name else "reports"
        found.append((folder / name, f"{where}/{Path(name).parent}".removesuffix("/.")))
    page = folder / PAGE
    if page.is_file() and f'content="{sha256_file(folder / "judge.json")}"' in page.read_text(encoding="utf-8"):
        found.append((page, ""))
    return [(path, where) for path, where in found if path.is_file()]


def _datasets(values: dict[str, Any], lock: dict[str, str], reports: dict[str, Any]) -> list[Dataset]:
    data, benchmark = plain(values["data"]["name"], 200), plain(values["benchmark"]["name"], 200)
    rows = {
        "data/train": (data, "training", reports["generate_data.json"].get("rows")),
        "data/benchmark/val": (f"{benchmark}, validation", "validation", part(reports["eval_val/val.json"], "overall").get("n")),
        "data/benchmark/test": (f"{benchmark}, test", "test", part(reports["eval_test/test.json"], "overall").get("n")),
    }
    return [Dataset(name, lock[path], path, use, n if type(n) is int else 0) for path, (name, use, n) in rows.items() if path in lock]


def parent_run() -> Parent | None:
    """The agent names its session in PAWL_SESSION; DVC says which commit an experiment of `dvc exp run` started from."""
    if session := os.environ.get("PAWL_SESSION", ""):
        return Parent(sha256_text(f"session {session}"), f"agent session {plain(session, 100)}", "session")
    if base := os.environ.get("DVC_EXP_BASELINE_REV", ""):
        return Parent(sha256_text(f"sweep {base}"), f"sweep from {base[:7]}", "sweep")
    return None


def _commit(root: Path) -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if not TIMES.fullmatch(name)}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def shown(value: Any, limit: int) -> str:
    """A value as MLflow shows it, in one line within its limit, secrets left out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(text, limit)


def mlflow_name(name: str) -> str:
    """A name that MLflow takes: its letters, no empty or dotted path parts; one that had to change ends in a short hash of what it was."""
    parts = [part for part in re.sub(r"[^\w.\- /]", "_", name).split("/") if part.strip(". ")]
    clean = "/".join(parts)[:230] or "_"
    return clean if clean == name else f"{clean}_{sha256_text(name)[:6]}"


def _scores(reports: dict[str, Any]) -> list[Metric]:
    """val/NAME/accuracy and the like, baseline_val/ for the base model; test scores only under test/ and test/baseline/."""
    found = []
    for prefix, file in SCORES.items():
        report = reports[file]
        tasks = part(report, "benchmarks")
        for name, scores in {"overall": part(report, "overall"), **{task: part(tasks, task) for task in tasks}}.items():
            path = f"{prefix}/{name.replace('/', '_')}"
            figures = {key: scores.get(key) for key in ("accuracy", "lenient", "score", "truncated")}
            figures |= {f"pass_at_{k}": share for k, share in part(scores, "pass_at_k").items()}
            found += _metrics({f"{path}/{key}": value for key, value in figures.items()})
    return found


def _teaching(report: dict[str, Any]) -> list[Metric]:
    """What the replies in the training data cost when they were made, for each teacher."""
    names = ("requests", "prompt_tokens", "output_tokens", "cost")
    tiers = part(report, "teacher")
    return _metrics({f"teacher/{tier}/{name}": part(tiers, tier).get(name) for tier in tiers for name in names})


def _training(report: dict[str, Any]) -> list[Metric]:
    """Every number of train.json, at the last step."""
    steps = report.get("steps")
    last = steps if type(steps) is int and 0 <= steps < LARGEST else 0
    return [metric._replace(step=last) for metric in _metrics({f"train/{name}": value for name, value in flatten(report).items()})]


def _evidence(verdict: dict[str, Any]) -> list[Metric]:
    evidence = part(verdict, "evidence")
    tasks = part(evidence, "benchmarks")
    groups = {"overall": part(evidence, "pooled"), **{task: part(tasks, task) for task in tasks}}
    names = ("difference", "low", "high", "p_better", "lenient_difference")
    return _metrics({f"evidence/{group.replace('/', '_')}/{name}": found.get(name) for group, found in groups.items() for name in names})


def _metrics(values: dict[str, Any]) -> list[Metric]:
    numbers = {
        name: value for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    }  # fmt: skip
    return [Metric(mlflow_name(name), float(value), 0) for name, value in numbers.items()]


def _losses(losses: list[Loss]) -> list[Metric]:
    """loss/train and loss/eval with their steps; of two losses at one step the last counts."""
    points = {(mlflow_name(f"loss/{row.split}"), row.step): row.loss for row in losses}
    return [Metric(name, value, step) for (name, step), value in points.items() if math.isfinite(value)]


def _tags(verdict: dict[str, Any]) -> dict[str, str]:
    experiment, words = part(verdict, "experiment"), part(verdict, "words")
    tags = {
        "pawl.outcome": verdict.get("outcome", ""),
        "pawl.decision": words.get("Decision", ""),
        "pawl.reason": words.get("Reason", ""),
        "pawl.hypothesis": experiment.get("hypothesis", ""),
        "pawl.incumbent": experiment.get("incumbent", ""),
        "pawl.parent": experiment.get("parent", ""),
        "pawl.test_scores": "metrics and artifacts under test/ are for human eyes: no decision may read them",
        "mlflow.note.content": words.get("Reason", ""),
    }
    return {name: shown(value, TAG_LIMIT) for name, value in tags.items()}
