"""The agent edits declared parameters of training and data; not what measures it, where it runs, or
where models and rows come from.
"""

from __future__ import annotations

from typing import Any

from agent.gates import permissions
from agent.gates.known import Known, Refusal
from agent.gates.proposal import Proposal


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused: list[Refusal] = []
    for option in proposal.options:
        before = len(refused)
        planned = {**known.params, **{change.key: change.after for change in option.changes}}
        for change in option.changes:
            if reason := why_not(change.key, option.kind, planned):
                refused.append(Refusal("reach", option.name, reason))
        if (
            option.changes
            and len(refused) == before
            and (problem := known.resolve(option.overrides))
        ):
            refused.append(Refusal("reach", option.name, problem))
    return refused


def why_not(key: str, kind: str, planned: dict[str, Any]) -> str:
    """Why the agent may not change a key in an option of this kind; "" where it may. `planned`: the
    parameters as they would be then.
    """
    section = key.split(".")[0]
    if section not in permissions.OPEN_TO_LOOP:
        sections = ", ".join(permissions.OPEN_TO_LOOP)
        return (
            f"the agent may not change {key}: open to it are {sections}; the rest measures, starts"
            " or names experiments"
        )
    level = permissions.who(key)
    if level == permissions.HAND:
        return f"the agent may not change {key}: it guards the benchmark from the training data"
    if level == permissions.PERSON:
        return (
            f"the agent may not change {key}: it says where things come from, what they cost, how"
            " they are run or told, or it is luck, which is a person's decision"
        )
    if not level:
        return f"the agent may not change {key}: agent/gates/permissions.py does not list it"
    if section == "model" and kind != "model_variant":
        return f"{key} belongs to an option of kind model_variant"
    return permissions.unread(key, planned)
