"""No claim without a source, and no source that does not hold the claim's numbers.

A claim is every sentence of a proposal, since a fact needs no number to be wrong ("Llama uses
grouped-query attention"). The one exception is the condition of a failure plan.
"""

from __future__ import annotations

import math
import re

from agent.gates.citations import UNVERIFIED, readings, sentences, tags, without_tags
from agent.gates.known import Known, Refusal, claims
from agent.gates.proposal import Option, Proposal

_ADVICE = re.compile(
    r"\b(should|must|recommend\w*|suggest\w*|advis\w+|prefer\w*|use|using|set|try|increas\w+|decreas\w+|rais\w+|lower\w*|reduc\w+|halv\w+|doubl\w+"
    r"|enabl\w+|disabl\w+|better|best|optimal|typical\w*|usual\w*|common\w*|default\w*)\b",
    re.IGNORECASE,
)
_CONDITION = "when"
_KEY = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b|\b(?:train|data|model)\.\w+")


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    count = 0
    for option, field, text in claims(proposal):
        count += len(tags(text))
        for position, sentence in enumerate(sentences(text)):
            asserts = field != _CONDITION or position > 0
            if reason := _wrong(
                sentence,
                known,
                next((each for each in proposal.options if each.name == option), None),
                asserts,
            ):
                refused.append(Refusal("tags", option, f'{field}: {reason}: "{sentence[:160]}"'))
    count += sum(len(option.evidence) for option in proposal.options)
    if count < known.agent.min_tags:
        refused.append(
            Refusal("tags", "", f"{count} citations in all, fewer than {known.agent.min_tags}")
        )
    return refused


def _wrong(sentence: str, known: Known, option: Option | None, asserts: bool) -> str:
    bare, named = without_tags(sentence), tags(sentence)
    found = readings(bare)
    technical = bool(found or _ADVICE.search(bare) or _KEY.search(bare))
    if not technical and not (asserts and re.search(r"\w", bare)):
        return ""
    if not named:
        told = "a number or a recommendation" if technical else "a claim"
        return f"{told} without a source; name one, or write [unverified]"
    if known.mode == "none" and UNVERIFIED not in named:
        return "no source could be read, so this is [unverified]"
    if UNVERIFIED in named:
        return ""
    held = set().union(*(known.numbers_of(name) for name in named)) | _own(option)
    for values in found:
        if not any(_same(value, other) for value in values for other in held):
            return f"{values[0]:g} is in none of the sources that its sentence names"
    return ""


def _own(option: Option | None) -> set[float]:
    """What an option may say of itself: its values, their ratio and its reverse, its steps, its
    gate, the experiment's count.
    """
    if option is None:
        return set()
    values: set[float] = {option.at_least, 100 * option.at_least, float(len(option.changes)), 1.0}
    for change in option.changes:
        values |= {
            float(each)
            for each in (change.before, change.after)
            if isinstance(each, int | float) and not isinstance(each, bool)
        }
        values |= {change.ratio, 1 / change.ratio} if change.ratio else set()
    return values | {float(pitfall.step) for pitfall in option.pitfalls}


def _same(value: float, other: float) -> bool:
    """Equal as written: to three significant digits."""
    return math.isclose(abs(value), abs(other), rel_tol=5e-3, abs_tol=1e-12)
