"""What the judge reads: validation items and results, and aggregate reports.

It has no way to a test split: a row and a summary are of the validation split by their models,
whatever their file is called, and the models of test results are in a module that the judge may not
import (tests/test_graph.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.common import looks
from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl, read_object, sha256_file
from stages.common.items import item_id
from stages.common.losses import Loss, read_losses
from stages.common.reports.base import LARGEST_COUNT
from stages.common.reports.benchmark import BenchmarkReport
from stages.common.reports.data import DataReport
from stages.common.reports.evaluation import EvalSummary, Row, read_rows
from stages.common.reports.training import TrainReport
from stages.common.reports.verdict import Verdict
from stages.judge.pairing import COLUMNS, as_table

SPLIT = "val"
ITEMS = Path("data/benchmark") / SPLIT
FAILURES = Path(".pawl/failure")
LOGS = Path(".pawl/logs")
OPTIONAL = {"repeat": 0, "fingerprint": ""}
"""Columns that older rows lack, and what they mean then."""
LIMITS = {
    "score": 1,
    "prompt_tokens": LARGEST_COUNT,
    "output_tokens": LARGEST_COUNT,
    "repeat": LARGEST_COUNT,
}
"""The largest value of each column of numbers; the smallest is 0."""
DEEPEST = 500
"""Brackets in a line that Arrow may see: its reader recurses, and the process dies of some ten
thousand, or of a line that is `null`.
"""
_INCUMBENT = re.compile(r"reports/baseline|experiments/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Side:
    """One evaluation of the validation split.

    Attributes:
        rows: columns as in `COLUMNS`.
        summary: what was written beside them; None if two files of rows are compared that have
            none.
        rows_sha256: of the file of rows.
        accepted: whether the history of looks says that these very results were accepted once.
    """

    rows: pa.Table
    summary: EvalSummary | None
    rows_sha256: str
    accepted: bool

    @property
    def stated(self) -> EvalSummary:
        """The summary, of a side of a run."""
        assert self.summary is not None
        return self.summary

    @property
    def fingerprints(self) -> list[str]:
        """The distinct fingerprints of the rows; "" where they carry none."""
        return sorted(pc.unique(self.rows["fingerprint"]).to_pylist())


@dataclass(frozen=True)
class Inputs:
    """Everything a verdict depends on, besides params.yaml; `items` are those of data/benchmark/val
    (see `read_items`).
    """

    candidate: Side
    incumbent: Side
    items: dict[str, dict[str, str]]
    benchmark: BenchmarkReport
    data: DataReport
    training: TrainReport
    losses: list[Loss]


def read_inputs(root: Path, incumbent: str) -> Inputs:
    """Read the reports under `root`; `incumbent` is reports/baseline or a folder of experiments/.

    Raises:
        PawlError: a missing or broken file, an incumbent elsewhere, results of another split.
    """
    if not _INCUMBENT.fullmatch(incumbent) or ".." in incumbent:
        fix = "name reports/baseline, or the folder of a finished experiment: experiments/0001-name"
        raise PawlError(
            f"experiment.incumbent is {incumbent!r}", where="experiment.incumbent", fix=fix
        )
    reports, accepted = root / "reports", looks.accepted(root)
    return Inputs(
        candidate=_side(reports / "eval_val", accepted),
        incumbent=_side(root / incumbent, accepted),
        items=read_items(root),
        benchmark=BenchmarkReport.read(reports / "build_benchmark.json"),
        data=DataReport.read(reports / "generate_data.json"),
        training=TrainReport.read(reports / "train.json"),
        losses=read_losses(reports / "loss.csv"),
    )


def _side(folder: Path, accepted: set[str]) -> Side:
    summary = EvalSummary.read(folder / f"{SPLIT}.json")
    path = folder / f"{SPLIT}.jsonl"
    rows = validation_rows(path)
    return Side(rows, summary, sha256_file(path), looks.outcomes_sha256(rows) in accepted)


def file_side(path: Path) -> Side:
    """A file of rows alone, with the summary of the same name beside it, as an evaluation leaves
    it.
    """
    rows, beside = validation_rows(path), path.with_suffix(".json")
    held = read_object(beside) if beside.is_file() else {}
    stated = held.keys() & EvalSummary.model_fields.keys()  # else it is something else of that name
    summary = EvalSummary.check(held, str(beside)) if stated else None
    return Side(
        rows,
        summary,
        sha256_file(path),
        summary is None or "rows_sha256" not in summary.model_fields_set,
    )


def validation_rows(path: Path) -> pa.Table:
    """Per-item results of the validation split, as columns; one at least.

    Raises:
        PawlError: no rows; broken rows, or rows of another split (see `read_rows`).
    """
    rows = _columns(path)
    if not len(rows):
        raise PawlError(
            "there are no rows",
            where=str(path),
            fix="evaluate it again: 'dvc repro -f' on its stage",
        )
    return rows


def _columns(path: Path) -> pa.Table:
    """Read as columns, thirty times as fast as row by row; what is not plain and sound is left to
    `read_rows`, which names the row.
    """
    from pyarrow import json as arrow

    parse = arrow.ParseOptions(explicit_schema=COLUMNS, unexpected_field_behavior="error")
    try:
        with open(path, "rb") as file:
            if not all(_plain(line.strip()) for line in file):
                raise pa.ArrowInvalid("left to Python's reader")
            file.seek(0)
            table = arrow.read_json(file, arrow.ReadOptions(block_size=2**24), parse)
        table.validate(full=True)
        for name, value in OPTIONAL.items():
            table = table.set_column(
                COLUMNS.names.index(name), name, pc.fill_null(table[name], value)
            )
        sound = (
            not any(column.null_count for column in table.columns)
            and not pc.any(pc.is_nan(table["score"])).as_py()
        )
        sound = sound and all(_within(table[name], most) for name, most in LIMITS.items())
        sound = sound and pc.all(pc.equal(table["split"], SPLIT)).as_py()
    except (pa.ArrowInvalid, FileNotFoundError):
        sound = False
    return table if sound else as_table(read_rows(path, Row))


def _plain(line: bytes) -> bool:
    return not line or (
        line[:1] == b"{" and line[-1:] == b"}" and line.count(b"[") + line.count(b"{") <= DEEPEST
    )


def _within(column: pa.ChunkedArray, most: float) -> bool:
    ends = pc.min_max(column).as_py()
    return ends["min"] is not None and ends["min"] >= 0 and ends["max"] <= most


def read_items(root: Path) -> dict[str, dict[str, str]]:
    """The validation items by item_id, as build_benchmark wrote them: benchmark, question and
    answer; {} where there are none.

    Raises:
        PawlError: a broken line, a column that is no text, an item twice, or one whose content is
            not that of its id.
    """
    items: dict[str, dict[str, str]] = {}
    fix = "run 'dvc repro -f build_benchmark' to make the items again"
    for path in sorted((root / ITEMS).glob("*.jsonl")):
        for number, row in enumerate(read_jsonl(path), 1):
            where = f"{path}, item {number}"
            if wrong := [
                name
                for name in ("item_id", "benchmark", "question", "answer")
                if not isinstance(row.get(name), str)
            ]:
                raise PawlError(f"no text in column {', '.join(wrong)}", where=where, fix=fix)
            if row["item_id"] in items or row["item_id"] != item_id(
                row["benchmark"], row["question"], row["answer"]
            ):
                raise PawlError(
                    "an item occurs twice, or its content is not the one that its id was made of",
                    where=where,
                    fix=fix,
                )
            items[row["item_id"]] = {
                name: row[name] for name in ("benchmark", "question", "answer")
            }
    return items


def read_former(root: Path, incumbent: str) -> dict[str, Any]:
    """The parameters that the incumbent ran with; empty where they are not recorded (the baseline
    is an untrained model).

    Raises:
        PawlError: the file is no YAML, or no mapping.
    """
    import yaml
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = root / incumbent / "params.yaml"
    if not path.exists():
        return {}
    try:
        found = OmegaConf.load(path)
        if not isinstance(found, DictConfig):
            raise ValueError("no mapping of sections")
        return {str(name): value for name, value in OmegaConf.to_container(found).items()}  # type: ignore[union-attr]
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        # OmegaConf raises OSError for a number
        told = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        fix = "restore it from Git: a finished experiment is never written again"
        raise PawlError(
            f"the incumbent's parameters cannot be read: {told}", where=str(path), fix=fix
        ) from None


def read_verdict(root: Path, incumbent: str) -> Verdict | None:
    """The verdict by which an experiment became the incumbent; None of the baseline, which was
    never judged.

    Raises:
        PawlError: it is broken.
    """
    path = root / incumbent / "judge.json"
    return Verdict.read(path) if path.exists() else None


def logs(root: Path, stage: str) -> list[str]:
    """The logs of a stage that are there, by their path in the working tree; they are named, not
    read.
    """
    found = sorted((root / LOGS).glob(f"*{stage}*.log"))
    return [str(path.relative_to(root)) for path in found if path.stat().st_size]


def read_failure(root: Path, since: float) -> dict[str, Any] | None:
    """The newest record of a failed stage that is not older than `since` (seconds since 1970); None
    where there is none.
    """
    records = []
    for path in sorted((root / FAILURES).glob("*.json")):
        try:
            record = read_json(path)
        except PawlError:
            continue  # half of a record, left by a killed process, explains nothing
        if (
            isinstance(record, dict)
            and isinstance(record.get("stage"), str)
            and path.stat().st_mtime >= since
        ):
            records.append((str(record.get("at", "")), record))
    return max(records, key=lambda each: each[0])[1] if records else None
