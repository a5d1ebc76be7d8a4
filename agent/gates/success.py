"""An option says before the run what would be a success, how a failure would show, and where to
turn then.
"""

from __future__ import annotations

import math

from agent.gates.known import Known, Refusal
from agent.gates.proposal import METRIC, Proposal

_ROUNDING = 1e-4


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    names = [option.name for option in proposal.options]
    now = known.situation.accuracy
    refused = []
    for option in proposal.options:
        if not math.isfinite(option.at_least) or not 0 < option.at_least <= 1:
            refused.append(
                Refusal(
                    "success",
                    option.name,
                    f"no success gate: success.metric has to be {METRIC}, success.at_least above 0"
                    " and at most 1",
                )
            )
        elif now is not None and option.at_least <= now:
            refused.append(
                Refusal(
                    "success",
                    option.name,
                    f"its success gate, {METRIC} {option.at_least:g}, is what there is already"
                    f" ({now:.3f})",
                )
            )
        elif now is not None and option.at_least < min(1.0, now + known.gain) - _ROUNDING:
            reason = (
                f"its success gate, {METRIC} {option.at_least:g}, is less than judge.min_effect"
                f" ({known.gain:g}) above {now:.4f}"
            )
            refused.append(Refusal("success", option.name, reason))
        if not option.pitfalls or any(not pitfall.metric.strip() for pitfall in option.pitfalls):
            refused.append(
                Refusal("success", option.name, "no pitfall with metric, direction and step")
            )
        if option.instead not in names or option.instead == option.name:
            others = ", ".join(name for name in names if name != option.name)
            refused.append(
                Refusal(
                    "success",
                    option.name,
                    f"its failure plan names {option.instead[:40]!r}, which is no other option"
                    f" ({others})",
                )
            )
    return refused
