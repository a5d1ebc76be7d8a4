"""What a proposal has to pass. A gate is a pure function of the proposal and of what is known; it
gives refusals with their reasons.

SAFE gates hold for every policy: without them a run would not be safe, comparable or affordable.
ARGUED gates judge an argument, so they hold for whoever gives one: a language model. Of two gates
each policy sees a part. `priorities` lets nobody put a parameter before the data or the model's
variant; `repeat` lets nobody try anything twice.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.gates import (
    fits,
    keys,
    priorities,
    quotes,
    ratio,
    reach,
    repeat,
    sources,
    specific,
    success,
    tags,
)
from agent.gates.known import Known, Refusal, Situation, Tried
from agent.gates.proposal import Option, Proposal

__all__ = ["ARGUED", "GATES", "SAFE", "Known", "Refusal", "Situation", "Tried", "check", "clean"]

GATES: dict[str, Callable[[Proposal, Known], list[Refusal]]] = {
    "specific": specific.check,
    "priorities": priorities.check,
    "keys": keys.check,
    "reach": reach.check,
    "repeat": repeat.check,
    "ratio": ratio.check,
    "success": success.check,
    "sources": sources.check,
    "quotes": quotes.check,
    "tags": tags.check,
    "fits": fits.check,
}
"""In the order in which reasons are told; the one that asks another program is the last."""
SAFE = ("priorities", "keys", "reach", "repeat", "ratio", "fits")
ARGUED = ("specific", "success", "sources", "quotes", "tags")


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    """Every refusal; the last gate is asked only about options that nothing else was said
    against.
    """
    asked = [name for name in GATES if name in SAFE or proposal.argued]
    refused = [
        refusal for name in asked if name != "fits" for refusal in GATES[name](proposal, known)
    ]
    named = {refusal.option for refusal in refused}
    left = tuple(option for option in proposal.options if option.name not in named)
    return [*refused, *fits.check(Proposal(proposal.verified, left), known)]


def clean(proposal: Proposal, refused: list[Refusal]) -> list[Option]:
    """Options that may run: something to change, nothing said against them, nor against the
    whole.
    """
    named = {refusal.option for refusal in refused}
    return (
        []
        if "" in named
        else [option for option in proposal.options if option.changes and option.name not in named]
    )
