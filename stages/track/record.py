"""What one MLflow run holds, worked out from params, lock and reports without MLflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stages.common.files import flatten, sha256_file, sha256_text
from stages.common.losses import Loss, read_losses
from stages.common.reports.verdict import Verdict
from stages.common.text import plain
from stages.track.metrics import (
    REPORTS,
    Metric,
    Reports,
    mlflow_name,
    of_evidence,
    of_losses,
    of_scores,
    of_teaching,
    of_training,
    read_reports,
)

LOSSES = "loss.csv"
PAGE = "index.html"
TIMES = re.compile(r".*_(s|ms|gib|at)|seconds|cost|latency.*")
"""Keys of reports that differ between identical runs (seconds, rates, memory): measured, but no
part of what a run is.
"""
MADE = re.compile(r"(models|data)/.*|reports/.*\.jsonl")
"""Entries of dvc.lock that say what came out, byte for byte; the small reports beside them hold
times too.
"""
PARAM_LIMIT = 6000
TAG_LIMIT = 5000


class Dataset(NamedTuple):
    """What a run read. `digest` is DVC's hash, `path` where it lies, `context` what it was used
    for.
    """

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
    """One run. `key` is the same for the same params and results, whenever and wherever they were
    made.

    `model` is registered under the name `register`, where that is set; `champion` moves the alias
    to it.
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
    reports = read_reports(folder)
    losses = read_losses(folder / LOSSES)
    lock = read_lock(root / "dvc.lock")
    key = run_key(shaping(flatten(values), root / "dvc.yaml"), lock, reports, losses)
    experiment, register = (
        os.environ.get("DVC_EXP_NAME", ""),
        values["tracking"].get("register", ""),
    )
    name = plain(values["experiment"]["name"], 200) or "unnamed"
    tags = {**_tags(reports.verdict), "pawl.key": key, "pawl.commit": _commit(root)}
    return Record(
        key=key,
        name=f"{name} ({plain(experiment, 40)})" if experiment else name,
        params={
            mlflow_name(name)[:250]: shown(value, PARAM_LIMIT)
            for name, value in flatten(values).items()
        },
        metrics=[
            *of_scores(reports),
            *of_teaching(reports.data),
            *of_training(reports.train),
            *of_evidence(reports.verdict.evidence),
            *of_losses(losses),
        ],
        tags={**tags, "pawl.dvc_experiment": plain(experiment, 200)} if experiment else tags,
        artifacts=_artifacts(folder),
        datasets=_datasets(values, lock, reports),
        parent=parent_run(),
        register=register,
        model=root / "models/adapter" if register else None,
        # one of a sweep is no champion before it is adopted
        champion=reports.verdict.accepted and not experiment,
    )


def shaping(params: dict[str, Any], pipeline: Path) -> dict[str, Any]:
    """The parameters that shape a result: those that a stage of dvc.yaml before report and track
    depends on; else all but tracking.

    A longer timeout makes no new run, just as it runs no stage again.
    """
    stages = _stages(pipeline)
    if not stages:
        return {key: value for key, value in params.items() if not key.startswith("tracking.")}
    names = {
        name
        for stage, spec in stages.items()
        if stage not in ("report", "track")
        for name in spec.get("params") or []
    }
    return {
        key: value
        for key, value in params.items()
        if any(key == name or key.startswith(f"{name}.") for name in names)
    }


def run_key(
    params: dict[str, Any], lock: dict[str, str], reports: Reports, losses: list[Loss]
) -> str:
    """A hash of the parameters, the lock's entries of what came out, and the verdict; of all
    reports where there is no lock.
    """
    verdict = {"outcome": reports.verdict.outcome, "evidence": reports.verdict.evidence.plain()}
    parts: dict[str, Any] = {"params": params, "verdict": without_times(verdict)}
    if made := {path: digest for path, digest in lock.items() if MADE.fullmatch(path)}:
        parts["lock"] = made
    else:
        parts["reports"] = {
            name: without_times(report.plain())
            for name, report in zip(REPORTS, reports, strict=True)
        }
        parts["losses"] = [str(loss) for loss in losses]
    return sha256_text(json.dumps(parts, sort_keys=True))


def read_lock(path: Path) -> dict[str, str]:
    """Path and hash of everything that the stages in dvc.lock made; {} where there is no lock."""
    outs = [out for stage in _stages(path).values() for out in stage.get("outs") or []]
    return {str(out["path"]): str(out["md5"]) for out in outs if out.get("md5")}


def _stages(path: Path) -> dict[str, Any]:
    """The stages of a dvc.yaml or dvc.lock; {} where there are none."""
    try:
        whole = yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, yaml.YAMLError):
        return {}
    return (whole.get("stages") if isinstance(whole, dict) else None) or {}


def _artifacts(folder: Path) -> list[tuple[Path, str]]:
    """Small reports, what was measured on test items apart, and the page if it is of this
    verdict.
    """
    found = []
    for name in ("data_card.md", "judge.md", LOSSES, *REPORTS):
        where = "test" if "test." in name else "reports"
        found.append((folder / name, f"{where}/{Path(name).parent}".removesuffix("/.")))
    page = folder / PAGE
    if page.is_file() and f'content="{sha256_file(folder / "judge.json")}"' in page.read_text(
        encoding="utf-8"
    ):
        found.append((page, ""))
    return [(path, where) for path, where in found if path.is_file()]


def _datasets(values: dict[str, Any], lock: dict[str, str], reports: Reports) -> list[Dataset]:
    data, benchmark = plain(values["data"]["name"], 200), plain(values["benchmark"]["name"], 200)
    rows = {
        "data/train": (data, "training", reports.data.rows),
        "data/benchmark/val": (f"{benchmark}, validation", "validation", reports.val.overall.n),
        "data/benchmark/test": (f"{benchmark}, test", "test", reports.test.overall.n),
    }
    return [
        Dataset(name, lock[path], path, use, n)
        for path, (name, use, n) in rows.items()
        if path in lock
    ]


def parent_run() -> Parent | None:
    """The agent names its session in PAWL_SESSION; DVC says which commit an experiment of
    `dvc exp run` started from.
    """
    if session := os.environ.get("PAWL_SESSION", ""):
        return Parent(
            sha256_text(f"session {session}"), f"agent session {plain(session, 100)}", "session"
        )
    if base := os.environ.get("DVC_EXP_BASELINE_REV", ""):
        return Parent(sha256_text(f"sweep {base}"), f"sweep from {base[:7]}", "sweep")
    return None


def _commit(root: Path) -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: without_times(part) for name, part in value.items() if not TIMES.fullmatch(name)
        }
    return [without_times(part) for part in value] if isinstance(value, list) else value


def shown(value: Any, limit: int) -> str:
    """A value as MLflow shows it, in one line within its limit, secrets left out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(text, limit)


def _tags(verdict: Verdict) -> dict[str, str]:
    about, words = verdict.experiment, verdict.words
    tags = {
        "pawl.outcome": verdict.outcome,
        "pawl.decision": words.decision,
        "pawl.reason": words.reason,
        "pawl.hypothesis": about.hypothesis,
        "pawl.incumbent": about.incumbent,
        "pawl.parent": about.parent,
        "pawl.test_scores": (
            "metrics and artifacts under test/ are for human eyes: no decision may read them"
        ),
        "mlflow.note.content": words.reason,
    }
    return {name: shown(value, TAG_LIMIT) for name, value in tags.items()}
