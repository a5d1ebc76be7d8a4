"""No number moves by more than the allowed factor in one experiment, unless a quoted source names the value it jumps to."""

from __future__ import annotations

import math

from agent.citations import holds, normal, numbers, own, tag
from agent.gates.known import Known, Refusal
from agent.proposal import Change, Option, Proposal


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    for option in proposal.options:
        for change in option.changes:
            if isinstance(change.after, str) and _is_number(change.before):
                reason = f"{change.key} is a number, and {change.after[:40]!r} is a text; write the number itself"
                refused.append(Refusal("ratio", option.name, reason))
            elif change.numeric and not allowed(change, known) and not _quoted(change, option, known):
                refused.append(Refusal("ratio", option.name, _reason(change, known.agent.max_ratio)))
    return refused


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def allowed(change: Change, known: Known) -> bool:
    """Within the factor; from or to a value that means off or all (0, -1), within the first step that conf/agent declares for it."""
    if change.before == change.after:
        return True
    if change.ratio is not None:
        slack = 1 + 1e-9
        return 1 / (known.agent.max_ratio * slack) <= change.ratio <= known.agent.max_ratio * slack
    declared = known.agent.space.get(change.key)
    return declared is not None and declared.first > 0 and max(change.before or 0, change.after) <= declared.first * (1 + 1e-9)


def _quoted(change: Change, option: Option, known: Known) -> bool:
    """A quote that stands in its source, names the parameter's last word or the change's value, and holds that very value."""
    name = change.key.rpartition(".")[2]
    for quote in option.evidence:
        citation = tag(quote.citation)
        if own(citation) or not holds(known.sources.get(citation, ""), quote.text):
            continue
        names_it = normal(name) in normal(quote.text) or normal(name.replace("_", " ")) in normal(quote.text) or name in quote.citation
        if names_it and any(math.isclose(value, change.after, rel_tol=1e-9) for value in numbers(quote.text)):
            return True
    return False


def _reason(change: Change, most: float) -> str:
    if change.ratio is None:
        return (f"{change.key} from {change.before} to {change.after} switches something on or off; "
                f"quote a source that names {change.after}, "
                f"or declare agent.space.{change.key}.first")  # fmt: skip
    low, high = change.before / most, change.before * most
    return (
        f"{change.key} from {change.before} to {change.after} is a factor of {change.ratio:.3g}, outside 1/{most:g} to {most:g}; "
        f"stay within {low:.3g} to {high:.3g}, or quote a source that names {change.after}"
    )
