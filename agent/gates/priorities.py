"""What comes before any hyperparameter: the data where answers are made up, the model's variant
where it does not fit the training.

For LoRA, `verified` says of three usual causes whether they were explored: a higher rank, a lower
learning rate, the format of the rows.
"""

from __future__ import annotations

import re

from agent.gates.known import Known, Refusal
from agent.gates.proposal import Option, Proposal

_ALONE = re.compile(
    r"hall?ucinat|confabul|fabricat|made[- ]up|mak(e|es|ing) (\S+"
    r" ){0,3}up\b|invent(s|ed|ing)?\b|factual|untruth|misinform|misnam|misquot"
    r"|misattribut|not grounded|un-?grounded|not (supported|backed)"
    r" by|un-?supported|\bl(ies|ying)\b|(not|n't) (\w+ )?true\b|untrue"
    r"|(not|n't|never) (really )?exist|non-?existen",
    re.IGNORECASE,
)
_FALSE = (
    r"wrong\w*|incorrect\w*|inaccura\w*|false\w*|bogus|fake|mistak\w*|erroneous|errors?|confus\w*|mix(es|ed|ing)?|swap\w*|imaginary"
    r"|fictional|fictitious|outdated|garbl\w*|mislead\w*|contradict\w*|misrepresent\w*|mangl\w*"
)
_FACT = (
    r"(fact|name|entit|product|person|people|place|date|figure|detail|claim|statement|information|citation|reference|source|price|title"
    r"|quote|url|link|event|compan|brand|author|address|knowledge|number|term)\w*"
)
_NEAR = r"(\W+\w+){0,4}?\W+"
_FALSE_FACT = re.compile(
    rf"\b({_FALSE})\b{_NEAR}{_FACT}|\b{_FACT}{_NEAR}({_FALSE})\b", re.IGNORECASE
)

QUALITY = re.compile(
    r"data\.(near_duplicates|sources\.[^.]+\.(prompt|recipe|tier|candidates|verify|weight)|teacher\.\w+\.temperature)"
)
"""Keys that change how right the rows are, or how much of the ground of an answer they show; not
how many rows there are.
"""
_CARE = re.compile(
    r"\baudit|\bsample\b|\bread(s|ing)? (\w+ )*rows|(check|compare)\w* (\w+"
    r" ){0,3}(names?|entit\w+|facts?)|expected (outputs?|answers?)"
    r"|grounding|context to|catalog",
    re.IGNORECASE,
)
"""What a person can do about the rows: read a sample, compare names with the expected outputs, add
grounding context.
"""
CHECK_LIST = {
    "a higher rank": r"\brank",
    "a lower learning rate": r"learning[ _]rate",
    "the format": r"format|template|special tokens",
}
"""For LoRA, what has to be looked up in the history before anything is proposed, and how `verified`
names it.
"""


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    kinds = [option.kind for option in proposal.options]
    wrong_variant = variant(known)
    if wrong_variant and kinds[:1] != ["model_variant"]:
        refused.append(
            Refusal(
                "priorities",
                "",
                f"{wrong_variant}: the first option has to be of kind model_variant",
            )
        )
    if made_up(known.agent.reported):
        place = 1 if wrong_variant else 0
        if kinds[place : place + 1] != ["data_quality"]:
            reason = (
                "made-up or wrong facts were reported: an option of kind data_quality has to come"
                " before any parameter"
            )
            refused.append(Refusal("priorities", "", reason))
    return [*refused, *_arguments(proposal, known)] if proposal.argued else refused


def _arguments(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    if lacking := unexplored(proposal.verified, known):
        told = " and ".join(lacking)
        refused.append(
            Refusal(
                "priorities",
                "",
                f"`verified` does not say whether {told} was explored (the LoRA check-list of"
                " [situation])",
            )
        )
    for option in proposal.options:
        if option.kind == "data_quality" and (reason := _careless(option)):
            refused.append(Refusal("priorities", option.name, reason))
        if option.kind == "model_variant" and any(
            not change.key.startswith("model.") for change in option.changes
        ):
            refused.append(
                Refusal(
                    "priorities",
                    option.name,
                    "an option of kind model_variant changes model and nothing else",
                )
            )
    return refused


def _careless(option: Option) -> str:
    """Why an option is no care for the quality of the data; "" if it is."""
    if other := [change.key for change in option.changes if not QUALITY.fullmatch(change.key)]:
        return (
            f"{other[0]} does not change the quality of the data: an option of kind data_quality"
            " changes data and nothing else, and of it how right the rows are (prompt, recipe,"
            " tier, candidates, verify, weight, near_duplicates), or it says what a person does"
        )
    if not option.changes and not _CARE.search(f"{option.why} {option.expected}"):
        return (
            "an option of kind data_quality without changes says what a person does: audit a sample"
            " of 50 to 100 rows, check entity names against the expected outputs, or add grounding"
            " context to the rows"
        )
    return ""


def made_up(reported: str) -> bool:
    """Whether people report answers that are made up, or facts and names that are wrong."""
    return bool(_ALONE.search(reported) or _FALSE_FACT.search(reported))


def unexplored(verified: str, known: Known) -> list[str]:
    """The parts of the LoRA check-list that `verified` does not speak of."""
    if known.params.get("train.finetuning_type", "lora") != "lora" or not known.tried:
        return []
    return [
        name for name, words in CHECK_LIST.items() if not re.search(words, verified, re.IGNORECASE)
    ]


def variant(known: Known) -> str:
    """What is wrong about the model's variant for this training, in words; "" where it fits.

    Chat rows (sft, dpo, kto) want an instruct model; continued pretraining (pt) wants a base model.
    A base model may have a chat template.
    """
    stage = str(known.params.get("train.stage", "sft"))
    there = known.situation
    if stage == "pt" and there.chat and there.instruct:
        return f"{there.model} is an instruct model, and train.stage is pt"
    if stage != "pt" and not there.chat:
        return (
            f"{there.model} has no chat template, so it is a base model, and train.stage is {stage}"
        )
    if stage != "pt" and not there.instruct:
        return (
            f"{there.model} is a base model, though it has a chat template, and train.stage is"
            f" {stage}"
        )
    return ""
