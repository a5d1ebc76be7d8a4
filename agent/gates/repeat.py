"""Nothing that was tried is tried again, and what is close to it says how it differs."""

from __future__ import annotations

import math
from typing import Any

from agent.gates.known import Known, Refusal, Tried
from agent.gates.proposal import Option, Proposal

MISSING = object()


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused: list[Refusal] = []
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for option in proposal.options:
        if not option.changes:
            continue
        found, far = nearest(option, known)
        if found is not None and far == 0:
            refused.append(
                Refusal(
                    "repeat",
                    option.name,
                    f"this repeats {found.folder} ({found.told}): the same parameters but for seeds"
                    " and names",
                )
            )
        elif (
            proposal.argued
            and found is not None
            and far < known.agent.near
            and not option.different.strip()
        ):
            refused.append(
                Refusal(
                    "repeat",
                    option.name,
                    f"close to {found.folder} ({found.told}), at a distance of {far:.2g}: say in"
                    " `different` how it differs",
                )
            )
        elif same := known.repeats(option.overrides):
            refused.append(Refusal("repeat", option.name, same))
        key = tuple(sorted((change.key, repr(change.after)) for change in option.changes))
        if key in seen:
            refused.append(
                Refusal("repeat", option.name, f"changes the same as option {seen[key]}")
            )
        seen[key] = option.name
        if all(change.before == change.after for change in option.changes):
            refused.append(
                Refusal("repeat", option.name, "changes nothing: this is the present state")
            )
    return refused


def nearest(option: Option, known: Known) -> tuple[Tried | None, float]:
    """The tried experiment closest to an option, and its distance; the option's own change from the
    present counts for it.
    """
    planned = {change.key: change.after for change in option.changes}
    best: tuple[Tried | None, float] = (None, math.inf)
    for each in known.tried:
        keys = planned.keys() | each.differing.keys()
        far = 0.0
        for key in keys:
            present = known.params.get(key, MISSING)
            far += distance(planned.get(key, present), each.differing.get(key, present))
            if far >= best[1]:
                break
        if far < best[1]:
            best = (each, far)
    return best


def distance(a: Any, b: Any) -> float:
    """0 for equal values, 1 for a threefold step of a positive number, at most 2 for a number; 1
    for any other difference.
    """
    if a == b:
        return 0.0
    if all(
        isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in (a, b)
    ):
        return min(2.0, abs(math.log(a / b)) / math.log(3))
    return 1.0
