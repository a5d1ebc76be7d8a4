"""A quote is 5 to 30 words that stand in the cited source; an option has two sources at least, one
of them not our own.

For each parameter that changes, a source that is not our own is quoted about it or about its
effect.
"""

from __future__ import annotations

from agent.gates.citations import UNVERIFIED, holds, own, tag, words
from agent.gates.known import Known, Refusal
from agent.gates.proposal import Option, Proposal, Quote
from agent.gates.topics import concerns

FEWEST, MOST = 5, 30
SOURCES = 2


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    return [
        Refusal("quotes", option.name, reason)
        for option in proposal.options
        for reason in _wrong(option, known)
    ]


def _wrong(option: Option, known: Known) -> list[str]:
    reasons, cited, standing = [], set(), list[Quote]()
    for quote in option.evidence:
        citation, length = tag(quote.citation), words(quote.text)
        if not FEWEST <= length <= MOST:
            reasons.append(
                f'a quote of {length} words, not {FEWEST} to {MOST}: "{quote.text[:120]}"'
            )
        elif citation in known.sources and not holds(known.sources[citation], quote.text):
            reasons.append(f'not in {citation} as quoted: "{quote.text[:160]}"')
        elif citation in known.sources:
            cited.add(citation)
            standing += [] if own(citation) else [quote]
    if known.mode != "none" and len(cited) < SOURCES:
        reasons.append(
            f"{len(cited)} source(s) with a quote that stands in it, fewer than {SOURCES}"
        )
    elif known.mode != "none" and all(own(citation) for citation in cited):
        reasons.append(
            "quotes nothing but our own state and experiments; quote a source that was read, too"
        )
    elif known.mode != "none":
        for change in option.changes:
            if not any(concerns(change.key, quote.text, tag(quote.citation)) for quote in standing):
                reasons.append(
                    f"no quote is about {change.key} or its effect: quote a source on that"
                    " parameter"
                )
    if known.mode == "none" and any(tag(quote.citation) != UNVERIFIED for quote in option.evidence):
        reasons.append("no source could be read, so there is nothing to quote")
    return reasons
