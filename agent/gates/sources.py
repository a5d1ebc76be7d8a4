"""What is cited was fetched in this run, and each angle that has a page is quoted: the model, the
framework, the problem.

If two quoted sources name other values for what changes, the option says so, cites both and goes no
further than the nearer value.
"""

from __future__ import annotations

import difflib
import math

from agent.gates.citations import UNVERIFIED, normal, numbers, own, tag, tags
from agent.gates.known import Known, Refusal, claims
from agent.gates.proposal import Change, Option, Proposal


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
        refused += [
            Refusal("sources", option.name, reason) for reason in _disagreeing(option, known)
        ]
    quoted = {tag(quote.citation) for option in proposal.options for quote in option.evidence}
    said = {about for citation in quoted for about in known.angles.get(citation, ())}
    if lacking := sorted({about for covered in known.angles.values() for about in covered} - said):
        refused.append(
            Refusal(
                "sources",
                "",
                f"nothing is quoted about the {' and the '.join(lacking)}, although sources on that"
                " were read",
            )
        )
    return refused


def _disagreeing(option: Option, known: Known) -> list[str]:
    found = []
    for change in option.changes:
        named = _values(option, change, known)
        cited = sorted(named)
        if len(cited) < 2 or set.intersection(*(set(values) for values in named.values())):
            continue
        values = "; ".join(
            f"{citation}: {', '.join(f'{value:g}' for value in named[citation])}"
            for citation in cited
        )
        if not set(cited) <= set(tags(option.disagreement)):
            found.append(
                f"the quoted sources name other values for {change.key} ({values}): `disagreement`"
                " has to say so and cite each of them"
            )
        elif not _conservative(change, [value for values in named.values() for value in values]):
            found.append(
                f"{change.key} goes further than the most conservative of the values that the"
                f" sources name ({values})"
            )
    return found


def _values(option: Option, change: Change, known: Known) -> dict[str, list[float]]:
    """The values that quoted sources other than our own name for what changes; the present value is
    left out.
    """
    name = change.key.rpartition(".")[2]
    spellings = (normal(name), normal(name.replace("_", " ")))
    found: dict[str, list[float]] = {}
    for quote in option.evidence:
        citation, text = tag(quote.citation), normal(quote.text)
        if (
            citation in known.sources
            and not own(citation)
            and any(each in text for each in spellings)
        ):
            values = [
                value for value in numbers(quote.text) if value > 0 and value != change.before
            ]
            if change.ratio is not None and values:
                found.setdefault(citation, []).extend(values)
    return found


def _conservative(change: Change, values: list[float]) -> bool:
    """Whether a change goes no further from the present value than the nearest value that a source
    names, with a hundredth for rounding.
    """
    assert change.ratio is not None
    return (
        abs(math.log(change.ratio))
        <= min(abs(math.log(value / change.before)) for value in values) + 0.01
    )


def _unknown(name: str, known: Known, written: str = "") -> str:
    if not name:
        return f'no citation: "{written[:120]}"'
    if name == UNVERIFIED or name in known.sources:
        return ""
    near = difflib.get_close_matches(name, list(known.sources), n=1, cutoff=0.7)
    return f"{name} was not fetched{f'; did you mean {near[0]}?' if near else ''}"
