"""One experiment's folder in experiments/: planned before the run, filled from the reports after
it, and then never written again.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.knowledge.history import EXPERIMENTS, Record, number, read_record
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_file, write_json, write_text
from stages.common.losses import read_losses
from stages.common.reports.evaluation import EvalSummary, Row, read_rows
from stages.common.reports.verdict import Evidence, Figures, Metric, Verdict

REPORTS = ROOT / "reports"
OUTCOMES = {"accept": "KEPT", "reject": "DISCARDED", "inconclusive": "INCONCLUSIVE"}
COPIED = {
    "val.jsonl": REPORTS / "eval_val" / "val.jsonl",
    "val.json": REPORTS / "eval_val" / "val.json",
    "judge.json": REPORTS / "judge.json",
}
"""Validation results and the verdict on them; nothing here comes from the test split."""


def slug(text: str) -> str:
    """A folder's name from any text: a-z, 0-9 and single hyphens, at most 40 characters.

    Raises:
        PawlError: nothing of the text is left.
    """
    safe = re.sub(r"[^a-z0-9]+", "-", text[:400].lower()).strip("-")[:40].strip("-")
    if not safe:
        raise PawlError(
            f"no name can be made of {text[:40]!r}",
            where="--name",
            fix="use letters a-z and digits",
        )
    return safe


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def folder_of(record: Record) -> Path:
    return EXPERIMENTS / record.folder


def write_record(record: Record) -> None:
    """Write record.json.

    Raises:
        PawlError: the experiment was finished before.
    """
    folder = folder_of(record)
    _require_open(folder)
    write_json(folder / "record.json", asdict(record))


def write_settings(record: Record, current: str, params: str) -> None:
    """Keep the sparse configuration and the resolved parameters as run."""
    folder = folder_of(record)
    _require_open(folder)
    write_text(folder / "current.yaml", current)
    write_text(folder / "params.yaml", params)


def _require_open(folder: Path) -> None:
    try:
        finished = (folder / "record.json").exists() and read_record(folder).finished
    except ValueError:
        finished = True  # broken, so not ours to write into
    if finished:
        raise PawlError(
            "a finished experiment is never written again",
            where=str(folder),
            fix="start another: python -m agent try",
        )


def finish(record: Record, verdict: Verdict, seconds: float) -> Record:
    """Copy the evidence into the folder, then write the record that closes it; the record comes
    last, so that a finished one is whole.
    """
    folder = folder_of(record)
    _require_open(folder)
    for name, source in COPIED.items():
        shutil.copyfile(source, folder / name)
    found = summary(verdict.evidence)
    met = (
        {"met": found["accuracy"] >= record.gate["at_least"]}
        if number(record.gate.get("at_least")) is not None
        else {}
    )
    done = replace(
        record,
        status=OUTCOMES[verdict.outcome],
        outcome=verdict.outcome,
        evidence=found,
        loss=losses(),
        curve=curve(verdict),
        gate=record.gate | met,
        dvc_lock_sha256=sha256_file(ROOT / "dvc.lock"),
        finished_at=now(),
        duration_s=round(seconds, 1),
    )
    write_record(done)
    return done


def crash(record: Record, reason: str, seconds: float, words: str = "") -> Record:
    """Close the folder of an experiment without a result; `words` explain it."""
    _require_open(folder_of(record))
    for name in COPIED:
        (folder_of(record) / name).unlink(missing_ok=True)
    done = replace(
        record,
        status="CRASHED",
        reason=reason,
        words=words,
        finished_at=now(),
        duration_s=round(seconds, 1),
    )
    write_record(done)
    return done


def read_verdict(name: str, incumbent: str) -> Verdict:
    """reports/judge.json, once it is certain that it is about this experiment and rests on
    validation results.

    Raises:
        PawlError: missing, broken, contradictory, of another experiment or incumbent; results of
            another split.
    """
    verdict = Verdict.read(COPIED["judge.json"])
    about = verdict.experiment
    if (about.name, about.incumbent) != (name, incumbent):
        told = (
            f"the verdict is about {about.name!r:.80} against {about.incumbent!r:.80}, not {name!r}"
            f" against {incumbent!r}"
        )
        raise PawlError(told, where="reports/judge.json", fix=verdict.remedy)
    read_rows(COPIED["val.jsonl"], Row)
    EvalSummary.read(COPIED["val.json"])
    return verdict


def curve(verdict: Verdict) -> dict[str, Any]:
    """What the judge reads in the training loss, without figures."""
    held = verdict.curve
    return (
        {"shape": held.shape, "learning_rate": held.learning_rate, "overfitting": held.overfitting}
        if held
        else {}
    )


def summary(evidence: Evidence) -> dict[str, Any]:
    """The figures of a verdict that history needs: of what decided, and of each benchmark."""
    benchmarks = {
        name: _figures(part, evidence.metric) for name, part in sorted(evidence.benchmarks.items())
    }
    return {**_figures(evidence.deciding.figures, evidence.metric), "benchmarks": benchmarks}


def _figures(part: Figures, metric: Metric) -> dict[str, float]:
    return {
        "n": part.n,
        "accuracy": part.candidate.measured(metric),
        "incumbent_accuracy": part.incumbent.measured(metric),
        "difference": part.difference,
        "low": part.low,
        "high": part.high,
        "p": part.p_better,
    }


def losses() -> dict[str, Any]:
    """First, last and lowest finite training loss of reports/loss.csv and their number; {} where
    training logged none.

    Raises:
        PawlError: no loss curve there.
    """
    found = [
        row.loss
        for row in read_losses(REPORTS / "loss.csv")
        if row.split == "train" and math.isfinite(row.loss)
    ]
    return (
        {"first": found[0], "last": found[-1], "lowest": min(found), "points": len(found)}
        if found
        else {}
    )
