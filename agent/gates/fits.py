"""What is proposed fits into this machine's memory, by the training stage's own estimate, and into
the time that is left.
"""

from __future__ import annotations

from typing import Any

from agent.gates.known import Known, Refusal
from agent.gates.proposal import Option, Proposal


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    for option in proposal.options:
        if not option.changes:
            continue
        hours = seconds(option, known) / 3600
        limit = min(known.agent.timeout_h, known.hours_left or known.agent.timeout_h)
        if hours > limit:
            refused.append(
                Refusal(
                    "fits",
                    option.name,
                    f"would take about {hours:.2g} h, and {limit:.2g} h are left",
                )
            )
        elif problem := known.memory(option.overrides):
            refused.append(Refusal("fits", option.name, problem))
    return refused


def seconds(option: Option, known: Known) -> float:
    """About how long it will take: training in proportion to the rows that it sees, the rest as it
    was; 0 where nothing was measured.
    """
    there = known.situation
    before = rows_seen(known.params, there.rows)
    after = rows_seen(
        {**known.params, **{change.key: change.after for change in option.changes}}, there.rows
    )
    return there.other_seconds + (
        there.train_seconds * after / before if before > 0 else there.train_seconds
    )


def rows_seen(params: dict[str, Any], rows: int) -> float:
    """Training rows that all steps together read: by max_steps where it is set, else by the
    epochs.
    """

    def number(key: str, default: float) -> float:
        value = params.get(key, default)
        return (
            float(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else default
        )

    most = number("data.max_rows", 0)
    rows = int(min(rows, most)) if most > 0 else rows
    steps = number("train.max_steps", -1)
    if steps > 0:
        return (
            steps
            * number("train.per_device_train_batch_size", 1)
            * number("train.gradient_accumulation_steps", 1)
        )
    return number("train.num_train_epochs", 1) * rows
