"""What the judge reads: validation items and results, and aggregate reports. It has no way to a test split.

Every file goes through `_validation_only`, which refuses a name that speaks of test results before it is opened.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl
from stages.common.items import read_rows
from stages.common.losses import Loss, read_losses
from stages.judge.pairing import COLUMNS, as_table

SPLIT = "val"
ITEMS = Path("data/benchmark") / SPLIT
FAILURES = Path(".pawl/failure")
_INCUMBENT = re.compile(r"reports/baseline|experiments/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Side:
    """One evaluation of the validation split: its rows (columns as in `COLUMNS`), and the summary written beside them."""

    rows: pa.Table
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


def validation_rows(path: Path) -> pa.Table:
    """Per-item results of the validation split, as columns.

    Raises:
        PawlError: the file's name or a row says that it is of another split; broken rows (see `read_rows`).
    """
    rows = _columns(path)
    if other := set(pc.unique(rows["split"]).to_pylist()) - {SPLIT}:
        fix = "compare on validation: what a decision has seen says nothing more about new data"
        raise PawlError(f"rows of another split ({', '.join(sorted(other))}) may not decide", where=str(path), fix=fix)
    return rows


def _columns(path: Path) -> pa.Table:
    """Read as columns, thirty times as fast as row by row; what is not plain and sound is left to `read_rows`, which names the row."""
    from pyarrow import json as arrow

    parse = arrow.ParseOptions(explicit_schema=COLUMNS, unexpected_field_behavior="ignore")
    try:
        with open(_validation_only(path), "rb") as file:
            table = arrow.read_json(file, arrow.ReadOptions(block_size=2**24), parse)
        table.validate(full=True)
        absent = [name for name in COLUMNS.names if name != "repeat" and table[name].null_count]
        score = pc.min_max(table["score"]).as_py()
        sound = not absent and not pc.any(pc.is_nan(table["score"])).as_py() and score["min"] >= 0 and score["max"] <= 1
    except (pa.ArrowInvalid, FileNotFoundError):
        sound = False
    if not sound:
        return as_table(read_rows(_validation_only(path)))
    position = COLUMNS.names.index("repeat")
    return table.set_column(position, "repeat", pc.fill_null(table["repeat"], 0))


def read_items(root: Path) -> dict[str, dict[str, str]]:
    """The validation items by item_id, as build_benchmark wrote them: benchmark, question and answer."""
    items = {}
    for path in sorted((root / ITEMS).glob("*.jsonl")):
        for row in read_jsonl(_validation_only(path)):
            items[str(row.get("item_id"))] = {name: str(row.get(name, "")) for name in ("benchmark", "question", "answer")}
    return items


def read_former(root: Path, incumbent: str) -> dict[str, Any]:
    """The parameters that the incumbent ran with; empty where they are not recorded (the baseline is an untrained model)."""
    from omegaconf import OmegaConf

    path = root / incumbent / "params.yaml"
    if not path.exists():
        return {}
    return dict(OmegaConf.to_container(OmegaConf.load(_validation_only(path))))  # type: ignore[arg-type]


def read_failure(root: Path, since: float) -> dict[str, Any] | None:
    """The newest record of a failed stage that is not older than `since` (seconds since 1970); None where there is none."""
    records = []
    for path in sorted((root / FAILURES).glob("*.json")):
        try:
            record = read_json(_validation_only(path))
        except PawlError:
            continue  # half of a record, left by a killed process, explains nothing
        if isinstance(record, dict) and isinstance(record.get("stage"), str) and path.stat().st_mtime >= since:
            records.append((str(record.get("at", "")), record))
    return max(records, key=lambda each: each[0])[1] if records else None


def _validation_only(path: Path) -> Path:
    """Give the path back, unless it, or what it links to, is a test result or lies among test items."""
    for form in (path, path.resolve()):
        words = re.split(r"[^a-z0-9]+", form.name.lower())
        # a task may be called what it likes: its items lie in the folder of their split; so may a stage that failed
        named_by_folder = form.parent.parts[-2:] in (ITEMS.parts[-2:], FAILURES.parts[-2:])
        if ("test" in words and not named_by_folder) or form.parent.name.lower() in ("test", "eval_test"):
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
