"""What is cited was fetched in this run, and each angle that has a source is cited: the model, the framework, the problem."""

from __future__ import annotations

import difflib

from agent.citations import UNVERIFIED, tag, tags
from agent.gates.known import Known, Refusal, claims
from agent.proposal import Proposal


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = [
        Refusal("sources", option, f"{field}: {reason}")
        for option, field, text in claims(proposal)
        for name in dict.fromkeys(tags(text))
        if (reason := _unknown(name, known))
    ]
    for option in proposal.options:
        for quote in option.evidence:
            if reason := _unknown(tag(quote.citation), known, quote.citation):
                refused.append(Refusal("sources", option.name, reason))
    said = {quote.about for option in proposal.options for quote in option.evidence if tag(quote.citation) in known.sources}
    if lacking := sorted(known.angles - said):
        refused.append(
            Refusal("sources", "", f"nothing is quoted about the {' and the '.join(lacking)}, although sources on that were read")
        )
    return refused


def _unknown(name: str, known: Known, written: str = "") -> str:
    if not name:
        return f'no citation: "{written[:120]}"'
    if name == UNVERIFIED or name in known.sources:
        return ""
    near = difflib.get_close_matches(name, list(known.sources), n=1, cutoff=0.7)
    return f"{name} was not fetched{f'; did you mean {near[0]}?' if near else ''}"
