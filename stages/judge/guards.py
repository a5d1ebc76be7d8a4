"""What vetoes an acceptance whatever the scores say: an evaluation that is incomplete, or two that were not run alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stages.common.files import flatten
from stages.common.items import summarize
from stages.judge.inputs import Inputs, Side

DIFFERS_BY_DESIGN = ("adapter", "base_sha256", "chat_template_sha256")
"""Parts of the fingerprint, by the beginning of their name, in which candidate and incumbent may differ: they are the model."""


def check(inputs: Inputs, max_truncated: float) -> list[dict[str, Any]]:
    """Every guard with its result: {guard, passed, detail}; `detail` says what was found, also where it passed."""
    sides = (("candidate", inputs.candidate), ("incumbent", inputs.incumbent))
    alike = "engine, precision, sampling and evaluator are the same"
    if len({side.summary.get("fingerprint", {}).get("base_sha256") for _, side in sides}) > 1:
        alike += "; the base model is another one"
    cut_off = f"at most {max_truncated:.0%} of the candidate's answers were cut off"
    results = [
        ("complete", [line for name, side in sides for line in _incomplete(name, side, inputs.benchmark)], "every item was answered"),
        ("summary", [line for name, side in sides for line in _misquoted(name, side)], "each summary is what its rows add up to"),
        ("same items", list(_other_items(inputs)), "both sides answered the same items"),
        ("same conditions", list(_differences(inputs)), alike),
        ("truncation", list(_truncated(inputs.candidate, max_truncated)), cut_off),
    ]
    return [{"guard": name, "passed": not found, "detail": "; ".join(found) or fine} for name, found, fine in results]


def _incomplete(name: str, side: Side, benchmark: dict[str, Any]) -> Iterator[str]:
    """Items answered against items built, for each task."""
    answered: dict[str, set[str]] = {}
    for row in side.rows:
        answered.setdefault(row.benchmark, set()).add(row.item_id)
    tasks = benchmark.get("tasks", {})
    for task in sorted(tasks.keys() | answered.keys()):
        built, found = tasks.get(task, {}).get("val", 0), len(answered.get(task, ()))
        if found != built:
            yield f"the {name} answered {found} of {built} items of {task}"
    if not tasks:
        yield "the benchmark's report names no task"


def _misquoted(name: str, side: Side) -> Iterator[str]:
    counted = summarize(side.rows)["overall"]
    stated = side.summary.get("overall", {})
    for key in ("n", "accuracy"):
        if not isinstance(stated.get(key), (int, float)) or abs(stated[key] - counted[key]) > 1e-9:
            yield f"the {name}'s summary states {key} {stated.get(key)}, its rows give {counted[key]}"


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
        if left.get(key) != right.get(key) and not key.startswith(DIFFERS_BY_DESIGN):
            yield f"{key} is {_short(left.get(key))} for the candidate and {_short(right.get(key))} for the incumbent"


def _truncated(side: Side, limit: float) -> Iterator[str]:
    share = sum(row.truncated for row in side.rows) / max(1, len(side.rows))
    if share > limit:
        yield f"{share:.1%} of the candidate's answers were cut off, more than {limit:.0%}"


def _short(value: Any) -> str:
    text = "missing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
