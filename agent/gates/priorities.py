"""What comes before any hyperparameter: the data where answers are made up, the model's variant where it does not fit the training."""

from __future__ import annotations

import re

from agent.gates.known import Known, Refusal
from agent.proposal import Proposal

_MADE_UP = re.compile(
    r"hallucinat|made[- ]up|makes? (things|facts|names) up|invent(s|ed|ing)?\b|fabricat|factual|incorrect fact|wrong (fact|name|entit|product|person|place|number|date)"
    r"|(fact|name|entit|product)\w* (is|are|were|was) wrong|untrue|false statement", re.IGNORECASE,
)  # fmt: skip


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    kinds = [option.kind for option in proposal.options]
    wrong_variant = variant(known)
    if wrong_variant and kinds[:1] != ["model_variant"]:
        refused.append(Refusal("priorities", "", f"{wrong_variant}: the first option has to be of kind model_variant"))
    if made_up(known.agent.reported):
        place = 1 if wrong_variant else 0
        if kinds[place : place + 1] != ["data_quality"]:
            refused.append(
                Refusal(
                    "priorities",
                    "",
                    "made-up or wrong facts were reported: an option of kind data_quality has to come before any parameter",
                )
            )
    for option in proposal.options:
        if option.kind == "data_quality" and any(not change.key.startswith("data.") for change in option.changes):
            refused.append(Refusal("priorities", option.name, "an option of kind data_quality changes data and nothing else"))
        if option.kind == "model_variant" and any(not change.key.startswith("model.") for change in option.changes):
            refused.append(Refusal("priorities", option.name, "an option of kind model_variant changes model and nothing else"))
    return refused


def made_up(reported: str) -> bool:
    """Whether people report answers that are made up, or facts and names that are wrong."""
    return bool(_MADE_UP.search(reported))


def variant(known: Known) -> str:
    """What is wrong about the model's variant for this training, in words; "" where it fits.

    Chat rows (sft, dpo, kto) want an instruct model, which has a chat template; continued pretraining (pt) wants a base model.
    """
    stage = str(known.params.get("train.stage", "sft"))
    if stage == "pt" and known.situation.chat:
        return f"{known.situation.model} is an instruct model, and train.stage is pt"
    if stage != "pt" and not known.situation.chat:
        return f"{known.situation.model} has no chat template, so it is a base model, and train.stage is {stage}"
    return ""
