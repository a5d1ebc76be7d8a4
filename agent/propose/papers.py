"""A proposal as people read it: proposal.json and proposal.md beside its record, and what a person
has to do first.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from agent.gates import citations
from agent.gates.proposal import Option, Proposal
from agent.knowledge import history
from agent.knowledge.grounding import FIRST_LINE
from agent.knowledge.history import Record
from agent.propose import words
from agent.propose.planner import Plan
from stages.common.files import write_json, write_text
from stages.common.text import markdown, plain


def write(plan: Plan, record: Record) -> None:
    """Every proposal, every refusal and the option that was chosen, into the experiment's
    folder.
    """
    folder = history.EXPERIMENTS / record.folder
    attempts = [
        {
            "number": each.number,
            "policy": each.policy,
            "proposal": _json(each.proposal),
            "refused": [str(refusal) for refusal in each.refused],
        }
        for each in plan.attempts
    ]
    chosen = plan.option.name if plan.option else ""
    write_json(
        folder / "proposal.json", {"mode": plan.mode, "chosen": chosen, "attempts": attempts}
    )
    page = words.render(
        "proposal.md.j2",
        first_line=FIRST_LINE[plan.mode],
        folder=record.folder,
        policy=record.policy,
        proposal=_safe(plan.proposal, plan.known.sources),
        chosen=chosen,
        attempts=attempts,
    )
    write_text(folder / "proposal.md", page)


def _json(proposal: Proposal | None) -> Any:
    if proposal is None:
        return None
    value = asdict(proposal)
    for option, shown in zip(proposal.options, value["options"], strict=True):
        if math.isnan(option.at_least):
            shown["at_least"] = None  # NaN is no JSON
        for change, part in zip(option.changes, shown["changes"], strict=True):
            part["ratio"] = change.ratio
    return value


def _safe(proposal: Proposal | None, sources: dict[str, str]) -> Proposal | None:
    """The proposal with every text of its author as Markdown shows it unchanged.

    Only citations of what was read stay links and tags.
    """
    if proposal is None:
        return None

    def shown(text: str) -> str:
        return "".join(
            part if name in sources or name == citations.UNVERIFIED else markdown(f"-{part}-")[1:-1]
            for part, name in citations.split(text)
        )

    def option(given: Option) -> Option:
        return replace(
            given,
            changes=tuple(replace(each, key=shown(each.key)) for each in given.changes),
            evidence=tuple(replace(each, citation=shown(each.citation)) for each in given.evidence),
            why=shown(given.why),
            several=shown(given.several),
            different=shown(given.different),
            disagreement=shown(given.disagreement),
            expected=shown(given.expected),
        )

    options = tuple(option(each) for each in proposal.options)
    return replace(proposal, verified=shown(proposal.verified), options=options)


def for_people(proposal: Proposal | None) -> list[str]:
    """What a person has to do before any parameter, as lines for the terminal: options that change
    nothing by themselves.
    """
    options = proposal.options if proposal else ()
    first = [each for each in options if not each.changes and each.kind != "parameter"]
    return [
        f"agent: option 0, for you: {each.name}: {plain(citations.without_tags(each.why), 300)}"
        for each in first
    ]
