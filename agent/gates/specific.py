"""An option is about this model, this data, this score and this machine, with the values that there
are, and changes one thing.
"""

from __future__ import annotations

import math

from agent.gates.citations import UNVERIFIED, normal, numbers, tags
from agent.gates.known import Known, Refusal
from agent.gates.proposal import Option, Proposal


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = [
        Refusal("specific", option.name, reason)
        for option in proposal.options
        for reason in _wrong(option, known)
    ]
    names = [option.name for option in proposal.options]
    if (
        not [name for name in tags(proposal.verified) if name != UNVERIFIED]
        and known.mode != "none"
    ):
        refused.append(
            Refusal(
                "specific",
                "",
                "`verified` names no source for what was checked of the model and its training",
            )
        )
    if len(set(names)) < len(names) or not 2 <= len(names) <= 3:
        refused.append(
            Refusal(
                "specific",
                "",
                "two or three options with names of their own are wanted, not"
                f" {', '.join(names) or 'none'}",
            )
        )
    return refused


def _wrong(option: Option, known: Known) -> list[str]:
    there, reasons = known.situation, []
    said, found = (
        normal(f"{option.why} {option.expected}"),
        numbers(f"{option.why} {option.expected}"),
    )
    lacking = []
    if normal(there.model) not in said and normal(there.model.partition(" (")[0]) not in said:
        lacking.append(f"the model ({there.model})")
    if there.rows and float(there.rows) not in found:
        lacking.append(f"the training rows ({there.rows})")
    if there.accuracy is not None and not any(_about(value, there.accuracy) for value in found):
        lacking.append(f"the present accuracy ({there.accuracy:.3f})")
    if normal(there.hardware) not in said:
        lacking.append(f"the hardware ({there.hardware})")
    if lacking:
        reasons.append(f"its why and expected name neither of: {', '.join(lacking)}")
    keys = [change.key for change in option.changes]
    if len(set(keys)) < len(keys):
        reasons.append("a parameter is changed twice")
    if len(keys) > 1 and not option.several.strip():
        reasons.append(f"changes {len(keys)} parameters, and `several` does not say why")
    elif len(keys) > 1 and (silent := [key for key in keys if not _named(key, option.several)]):
        reasons.append(f"`several` does not say why {silent[0]} changes too")
    for change in option.changes:
        present = known.params.get(change.key)
        if present != change.before:
            now = present if change.key in known.params else "not set"
            reasons.append(f"{change.key} is {now} now, not {change.before}")
    return reasons


def _named(key: str, text: str) -> bool:
    name = key.rpartition(".")[2]
    return normal(name) in normal(text) or normal(name.replace("_", " ")) in normal(text)


def _about(value: float, accuracy: float) -> bool:
    return math.isclose(value, accuracy, abs_tol=0.00051) or math.isclose(
        value, 100 * accuracy, abs_tol=0.051
    )
