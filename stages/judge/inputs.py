"""What the judge reads: validation results and aggregate reports. It has no way to a test split.

Every file goes through `_validation_only`, which refuses a name that speaks of test results before it is opened.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import read_json
from stages.common.items import Row, read_rows
from stages.common.losses import Loss, read_losses

SPLIT = "val"
_INCUMBENT = re.compile(r"reports/baseline|experiments/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Side:
    """One evaluation of the validation split: its rows, and the summary written beside them."""

    rows: list[Row]
    summary: dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """Everything a verdict depends on, besides params.yaml."""

    candidate: Side
    incumbent: Side
    benchmark: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]
    losses: list[Loss]


def read_inputs(root: Path, incumbent: str) -> Inputs:
    """Read the reports under `root`; `incumbent` is reports/baseline or a folder of experiments/.

    Raises:
        PawlError: a missing or broken file, an incumbent elsewhere, rows of another split.
    """
    if not _INCUMBENT.fullmatch(incumbent) or ".." in incumbent:
        fix = "name reports/baseline, or the folder of a finished experiment: experiments/0001-name"
        raise PawlError(f"experiment.incumbent is {incumbent!r}", where="experiment.incumbent", fix=fix)
    reports = root / "reports"
    return Inputs(
        candidate=_side(reports / "eval_val"),
        incumbent=_side(root / incumbent),
        benchmark=read_json(_validation_only(reports / "build_benchmark.json")),
        data=read_json(_validation_only(reports / "generate_data.json")),
        training=read_json(_validation_only(reports / "train.json")),
        losses=read_losses(_validation_only(reports / "loss.csv")),
    )


def _side(folder: Path) -> Side:
    summary = read_json(_validation_only(folder / f"{SPLIT}.json"))
    if not isinstance(summary, dict) or summary.get("split") != SPLIT:
        fix = "run 'dvc repro' to evaluate it again"
        raise PawlError("not a summary of validation results", where=str(folder / f"{SPLIT}.json"), fix=fix)
    return Side(validation_rows(folder / f"{SPLIT}.jsonl"), summary)


def validation_rows(path: Path) -> list[Row]:
    """Per-item results of the validation split.

    Raises:
        PawlError: the file's name or a row says that it is of another split; broken rows (see `read_rows`).
    """
    rows = read_rows(_validation_only(path))
    if other := {row.split for row in rows} - {SPLIT}:
        fix = "compare on validation: what a decision has seen says nothing more about new data"
        raise PawlError(f"rows of another split ({', '.join(sorted(other))}) may not decide", where=str(path), fix=fix)
    return rows


def _validation_only(path: Path) -> Path:
    """Give the path back, unless it, or what it links to, is a test result."""
    for form in (path, path.resolve()):
        words = re.split(r"[^a-z0-9]+", form.name.lower())
        if "test" in words or form.parent.name.lower() in ("test", "eval_test"):
            raise PawlError("the judge does not open test results", where=str(path), fix=f"give it {SPLIT}.jsonl")
    return path


def figure(report: dict[str, Any], key: str, origin: str, *, optional: bool = False) -> Any:
    """The value of a dotted key of a report; a missing or non-finite number is an error that names it."""
    value: Any = report
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if (value is None and not optional) or (isinstance(value, float) and not math.isfinite(value)):
        raise PawlError(f"{key} is missing or no number", where=origin, fix="run 'dvc repro' to make the report again")
    return value
