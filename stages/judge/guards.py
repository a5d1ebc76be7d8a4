"""What vetoes an acceptance whatever the scores say: an evaluation that is incomplete, two not run alike, data that gives it away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.common.files import flatten
from stages.judge.inputs import Inputs, Side

THE_MODEL = ("adapter", "base_sha256", "chat_template_sha256")
"""Parts of the fingerprint, by the beginning of their name, in which candidate and incumbent may differ: they are the model."""
QUALITY = ("truncation", "contamination", "same base model")
"""Guards that speak of the candidate's making; the others speak of its measurement."""


def check(inputs: Inputs, max_truncated: float, max_contamination: float, same_base_model: bool) -> list[dict[str, Any]]:
    """Every guard with its result: {guard, passed, detail}; `detail` says what was found, also where it passed."""
    sides = (("candidate", inputs.candidate), ("incumbent", inputs.incumbent))
    bases = [str(side.summary.get("fingerprint", {}).get("base_sha256")) for _, side in sides]
    other_base = f"the base model is another one ({_short(bases[0])}, the incumbent's {_short(bases[1])})" if bases[0] != bases[1] else ""
    results = [
        ("complete", [line for name, side in sides for line in _incomplete(name, side, inputs.benchmark)], "every item was answered"),
        ("summary", [line for name, side in sides for line in _misquoted(name, side)], "each summary is what its rows add up to"),
        ("same items", list(_other_items(inputs)), "both sides answered the same items"),
        ("same conditions", list(_differences(inputs)), "engine, precision, prompts, sampling and evaluator are the same"),
        ("same base model", [other_base] if other_base and same_base_model else [], other_base or "both sides stand on one base model"),
        ("truncation", list(_truncated(inputs.candidate, max_truncated)), _share(inputs.candidate.rows)),
        ("contamination", list(_contaminated(inputs.data, max_contamination)), "the training data was checked and cleaned"),
    ]
    return [{"guard": name, "passed": not found, "detail": "; ".join(found) or fine} for name, found, fine in results]


def _incomplete(name: str, side: Side, benchmark: dict[str, Any]) -> Iterator[str]:
    """Items answered against items built, for each task."""
    counts = side.rows.group_by("benchmark").aggregate([("item_id", "count_distinct")])
    answered = dict(zip(counts["benchmark"].to_pylist(), counts["item_id_count_distinct"].to_pylist(), strict=True))
    tasks = benchmark.get("tasks", {})
    for task in sorted(tasks.keys() | answered.keys()):
        built, found = tasks.get(task, {}).get("val", 0), answered.get(task, 0)
        if found != built:
            yield f"the {name} answered {found} of {built} items of {task}"
    if not tasks:
        yield "the benchmark's report names no task"


def _misquoted(name: str, side: Side) -> Iterator[str]:
    counted = {"n": len(side.rows), "accuracy": pc.mean(side.rows["correct"]).as_py()}
    stated = side.summary.get("overall", {})
    for key, value in counted.items():
        if not isinstance(stated.get(key), (int, float)) or abs(stated[key] - value) > 1e-9:
            yield f"the {name}'s summary states {key} {stated.get(key)}, its rows give {value}"


def _other_items(inputs: Inputs) -> Iterator[str]:
    left, right = (side.summary.get("items_sha256") for side in (inputs.candidate, inputs.incumbent))
    if not left or left != right:
        yield f"items_sha256 is {_short(left)} for the candidate and {_short(right)} for the incumbent"


def _differences(inputs: Inputs) -> Iterator[str]:
    """Compared key by key, unknown keys too: a condition that is not known to be harmless counts."""
    left, right = (flatten(side.summary.get("fingerprint", {})) for side in (inputs.candidate, inputs.incumbent))
    if not left or not right:
        yield "a fingerprint is missing"
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key) and not key.startswith(THE_MODEL):
            yield f"{key} is {_short(left.get(key))} for the candidate and {_short(right.get(key))} for the incumbent"


def truncated(rows: pa.Table) -> float:
    """The share of answers that were cut off at the output limit."""
    return float(pc.mean(rows["truncated"]).as_py())


def _share(rows: pa.Table) -> str:
    return f"{truncated(rows):.1%} of the candidate's answers were cut off"


def _truncated(side: Side, limit: float) -> Iterator[str]:
    if truncated(side.rows) > limit:
        yield f"{_share(side.rows)}, more than {limit:.0%}"


def _contaminated(data: dict[str, Any], limit: float) -> Iterator[str]:
    """The share of training rows that overlapped with benchmark items before they were taken out, and whether the search for them works."""
    found = data.get("contamination", {})
    share = found.get("fraction") if isinstance(found, dict) else None
    if not isinstance(share, (int, float)) or not 0 <= share <= 1:
        yield "the data report does not say how many training rows overlap with the benchmark"
    elif share > limit:
        yield f"{share:.1%} of the training rows overlapped with the benchmark, more than {limit:.0%}"
    control = flatten({"all": data.get("positive_control")})
    if missed := sorted(key.partition(".")[2] or key for key, value in control.items() if value is False):
        yield f"the search for overlaps missed rows that were planted for it ({', '.join(missed)})"


def _short(value: Any) -> str:
    text = "missing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
