"""What was tried: one folder an experiment in experiments/, the journal, and the lineage tree that
a person reads.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from stages.common.files import ROOT, write_text
from stages.common.text import markdown, plain

EXPERIMENTS = ROOT / "experiments"
JOURNAL = EXPERIMENTS / "journal.md"
LESSONS = EXPERIMENTS / "lessons.md"
PLANNED = "PLANNED"
INTERRUPTED = "interrupted"
"""The reason in older records of a try that was stopped."""
BASELINE = "reports/baseline"
"""What is compared with as long as nothing is kept."""
FINISHED = ("KEPT", "DISCARDED", "INCONCLUSIVE", "CRASHED")
LOOKS = EXPERIMENTS / "looks.jsonl"
"""Every look at the validation items, which the judge writes down; never restored, never dropped,
committed with each record.
"""
FILES = (
    "record.json",
    "current.yaml",
    "params.yaml",
    "val.jsonl",
    "val.json",
    "judge.json",
    "proposal.json",
    "proposal.md",
)
"""What an experiment's folder may hold."""
FOLDER_NAME = re.compile(r"(\d{4,})-([a-z0-9][a-z0-9-]*)")


@dataclass(frozen=True)
class Record:
    """An experiment's record.json.

    Attributes:
        parent: folder name of the experiment that this one starts from ("": none).
        incumbent: what the judge compared with, a path: reports/baseline, or experiments/NNNN-slug.
        changes: {key, before, after}, against the parent's resolved parameters.
        commit: the commit that the experiment started from.
        evidence: n, accuracy, incumbent_accuracy, difference, low, high (95 %), p, and the same
            under `benchmarks`; validation only.
        fingerprint: hash of the resolved parameters but for seeds and names; the same one twice is
            a repetition.
        reason: why it crashed, and `words`: what the judge's explain-failure says to it.
        overrides: what was changed, as key=value, on the state of `commit`; enough to take a run up
            that was cut short.
        expected: what the proposal expects, and `gate` what it calls a success: {metric, at_least},
            with `met` once it is finished.
        policy, run, trial: who proposed it, in which run of the agent, and as which experiment of
            it; empty for `try`.
        curve: the judge's reading of the training loss: {shape, learning_rate, overfitting}; of
            training rows alone.
        cost: {llm, prompt_tokens, output_tokens, gpu_hours} of planning and running it; what a
            stage took from the cache costs nothing.
    """

    number: int
    slug: str
    status: str
    hypothesis: str
    parent: str = ""
    incumbent: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    planned_at: str = ""
    finished_at: str | None = None
    duration_s: float | None = None
    commit: str = ""
    dvc_lock_sha256: str | None = None
    outcome: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    curve: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    fingerprint: str = ""
    reason: str = ""
    words: str = ""
    overrides: list[str] = field(default_factory=list)
    expected: str = ""
    gate: dict[str, Any] = field(default_factory=dict)
    policy: str = ""
    run: str = ""
    trial: int = 0
    cost: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return f"{self.number:04d}-{self.slug}"

    @property
    def own_changes(self) -> list[dict[str, Any]]:
        """What the experiment itself changed, first what was given: not the settings of judge and
        launcher that older records carry.
        """
        given = {override.partition("=")[0] for override in self.overrides}
        mine = [
            each
            for each in self.changes
            if each.get("key") in given
            or str(each.get("key")).startswith(("model.", "data.", "train."))
        ]
        return sorted(mine, key=lambda change: change.get("key") not in given)

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def judged(self) -> bool:
        return self.finished and self.status != "CRASHED"


def read_history(folder: Path = EXPERIMENTS) -> tuple[list[Record], list[str]]:
    """All records, oldest first, and a line for each folder that is no experiment of ours or is
    broken.
    """
    records, broken = [], []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir() or path.name.startswith("."):
            continue
        try:
            records.append(read_record(path))
        except ValueError as error:
            broken.append(f"{plain(path.name, 80)} ({plain(str(error), 120)})")
    return sorted(records, key=lambda record: (record.number, record.slug)), broken


def read_record(folder: Path) -> Record:
    """Read and check one experiment's record.

    Raises:
        ValueError: the folder's name, or the record, is not what an experiment has.
    """
    name = FOLDER_NAME.fullmatch(folder.name)
    if not name:
        raise ValueError("its name is not NNNN-slug")
    try:
        value = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"record.json: {error.strerror}") from None
    except RecursionError:
        raise ValueError("record.json: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("record.json: not an object")
    known = {spec.name: value[spec.name] for spec in fields(Record) if spec.name in value}
    for key, given in known.items():
        if not isinstance(given, _TYPES[key]) or isinstance(given, bool):
            raise ValueError(f"record.json: {key} is of the wrong type")
    missing = [key for key in ("number", "slug", "status", "hypothesis") if key not in known]
    if missing:
        raise ValueError(f"record.json: {missing[0]} is missing")
    record = Record(**known)
    if record.folder != folder.name:
        raise ValueError(f"record.json is of {record.folder}")
    if record.status not in (PLANNED, *FINISHED):
        raise ValueError(f"record.json: unknown status {record.status}")
    if not all(isinstance(change, dict) for change in record.changes):
        raise ValueError("record.json: changes is of the wrong type")
    return record


def _kinds(hint: Any) -> tuple[type, ...]:
    kinds = [
        getattr(kind, "__origin__", kind)
        for kind in (get_args(hint) if type(None) in get_args(hint) else (hint,))
    ]
    return (*kinds, int) if float in kinds else tuple(kinds)


_TYPES = {name: _kinds(hint) for name, hint in get_type_hints(Record).items()}


def next_number(folder: Path = EXPERIMENTS) -> int:
    """One more than the highest number in use, broken folders included."""
    names = [re.match(r"\d{4,}", path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name[0]) for name in names if name), default=0) + 1


def write_journal(records: list[Record]) -> None:
    """Generate experiments/journal.md, newest last."""
    lines = [
        "# Journal of experiments",
        "",
        (
            "Generated by `python -m agent` from the folders beside it; edits are overwritten."
            " Numbers are of the validation split."
        ),
        "",
        (
            "| number | name | status | what changed | accuracy | difference (95 % interval) | p |"
            " hypothesis |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        hypothesis = record.hypothesis + (f" (crashed: {record.reason})" if record.reason else "")
        figures = f"{accuracy(record)} | {difference(record)} | {p_value(record)}"
        what = f"{record.slug} | {record.status} | {markdown(changes(record), 300)}"
        lines.append(f"| {record.number:04d} | {what} | {figures} | {markdown(hypothesis, 300)} |")
    write_text(JOURNAL, "\n".join(lines) + "\n")


def changes(record: Record) -> str:
    parts = [
        f"{change.get('key')} {change.get('before')} → {change.get('after')}"
        for change in record.own_changes
    ]
    return (
        ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
        or "(starting point)"
    )


def accuracy(record: Record) -> str:
    value = number(record.evidence.get("accuracy"))
    return "" if value is None else f"{value:.3f}"


def difference(record: Record) -> str:
    value, low, high = (number(record.evidence.get(key)) for key in ("difference", "low", "high"))
    if value is None:
        return ""
    return f"{value:+.3f}" + ("" if low is None or high is None else f" [{low:+.3f}, {high:+.3f}]")


def p_value(record: Record) -> str:
    value = number(record.evidence.get("p"))
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def as_json(records: list[Record]) -> list[dict[str, Any]]:
    return [asdict(record) for record in records]


def tree(records: list[Record], width: int = 100) -> list[str]:
    """The lineage, newest last: the line of kept experiments goes straight down, each try hangs
    from the one that it started from.
    """
    # the last one kept of each parent goes on
    heirs = {record.parent: record.folder for record in records if record.status == "KEPT"}
    depth: dict[str, int] = {}
    for record in records:  # a parent is older, so its depth is known
        depth[record.folder] = (
            min(6, depth[record.parent] + (heirs.get(record.parent) != record.folder))
            if record.parent in depth
            else 0
        )
    margin = 2 * max(depth.values(), default=0) + 2
    return [
        fit(
            _row(
                record,
                ("│ " * (depth[record.folder] - 1) + "├─" if depth[record.folder] else "●").ljust(
                    margin
                ),
            ),
            width,
        )
        for record in records
    ]


def _row(record: Record, branch: str) -> str:
    what = [
        changes(record) if record.own_changes else "",
        f"crashed: {record.reason}" if record.reason else "",
        record.hypothesis,
    ]
    text = plain("; ".join(part for part in what if part))
    return (
        f"{branch}{record.number:04d} {record.status:<12} {difference(record):<23} {record.slug}:"
        f" {text}"
    )


def fit(text: str, width: int) -> str:
    """Cut to `width` columns of a terminal; East Asian characters and emoji take two."""
    columns = 0
    for position, character in enumerate(text):
        if unicodedata.east_asian_width(character) in "WF":
            columns += 2
        elif not unicodedata.combining(character):
            columns += 1
        if columns > width - (position < len(text) - 1):
            return text[:position].rstrip() + "…"
    return text
