"""The agent edits declared parameters of training and data; not the ruler, not where it runs, not where models and rows come from."""

from __future__ import annotations

import re

from agent.gates.known import Known, Refusal
from agent.proposal import Proposal

_OUT = {
    "model": re.compile(r"model\.(?!repo$|revision$|dtype$).+"),
    "data": re.compile(
        r"data\.(ngram|max_contamination|max_bad_fraction|sources\.[^.]+\.(kind|task|path|package|sha256|part|licence)|.*(base_url|api_key_env))"
    ),
    "train": re.compile(
        r"train\.(name|logging_steps|device|extra\..*(path|dir|token|hub|remote|report|url|deepspeed|fsdp|ray|output|resume|push|model|dataset).*)"
    ),
}  # fmt: skip
_OPEN = ("train", "data", "model")


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused: list[Refusal] = []
    for option in proposal.options:
        before = len(refused)
        for change in option.changes:
            if reason := why_not(change.key, option.kind):
                refused.append(Refusal("reach", option.name, reason))
        if option.changes and len(refused) == before and (problem := known.resolve(option.overrides)):
            refused.append(Refusal("reach", option.name, problem))
    return refused


def why_not(key: str, kind: str = "parameter") -> str:
    """Why the agent may not change a key; "" where it may."""
    section = key.split(".")[0]
    if section not in _OPEN:
        return f"the agent may not change {key}: open to it are {', '.join(_OPEN)}; the rest measures, starts or names experiments"
    if _OUT[section].fullmatch(key):
        return f"the agent may not change {key}: it says where things come from or how they are told, which is a person's decision"
    if section == "model" and kind != "model_variant":
        return f"{key} belongs to an option of kind model_variant"
    return ""
