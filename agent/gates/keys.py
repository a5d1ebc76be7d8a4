"""A configuration key exists: in our schema, or, below train.extra, in LLaMA-Factory's argument
classes.
"""

from __future__ import annotations

import difflib
import re

from agent.gates.citations import without_tags
from agent.gates.known import Known, Refusal, claims
from agent.gates.permissions import CLOSED, EXTRA, OPEN
from agent.gates.proposal import Proposal

_NAME = re.compile(
    r"`([A-Za-z_][\w.]*)`([^`\n]{0,20})|(?<![\w./`-])([a-z][a-z0-9]*(?:[_.][a-z0-9_]+)+)(?![\w/`-]|\.\w)([^`\n]{0,20})"
)
"""A parameter's name in prose, in backticks or without: words joined by underscores, or after the
name of a section.
"""
_SECTIONS = tuple(f"{name}." for name in (*OPEN, *CLOSED))
VERIFY = "# VERIFY"


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    for option in proposal.options:
        for change in option.changes:
            if not _exists(change.key, known):
                refused.append(
                    Refusal(
                        "keys",
                        option.name,
                        f"there is no parameter {change.key}{_near(change.key, known)}",
                    )
                )
    for name, field, text in claims(proposal):
        values = _values(proposal, known)
        for found in _NAME.finditer(without_tags(text)):
            key, after = (found[1], found[2]) if found[1] else (found[3].rstrip("."), found[4])
            named = "_" in key or key.startswith(_SECTIONS)
            if (
                named
                and key not in values
                and not _exists(key, known, prose=True)
                and not after.lstrip().startswith(VERIFY)
            ):
                refused.append(
                    Refusal(
                        "keys",
                        name,
                        f"{field}: there is no parameter `{key}`{_near(key, known)}, else write"
                        f" {VERIFY} behind it",
                    )
                )
    return refused


def _values(proposal: Proposal, known: Known) -> set[str]:
    """Words with an underscore that are values and no parameters, such as constant_with_warmup."""
    changed = {
        str(value)
        for option in proposal.options
        for change in option.changes
        for value in (change.before, change.after)
    }
    return (
        changed
        | {str(value) for value in known.params.values()}
        | {str(choice) for dimension in known.agent.space.values() for choice in dimension.choices}
    )


def _exists(key: str, known: Known, *, prose: bool = False) -> bool:
    if key in known.params:
        return True
    if key.startswith(EXTRA):
        return key.removeprefix(EXTRA) in known.arguments and "train.extra" in {
            name[:11] for name in known.params
        }
    if key.startswith(_SECTIONS):
        return prose and _held(key, known)
    last = key.rpartition(".")[2]
    return prose and (
        last in known.arguments
        or last in {name.rpartition(".")[2] for name in known.params}
        or _held(last, known)
    )


def _held(name: str, known: Known) -> bool:
    """A name of a source that was read, verbatim."""
    return any(
        re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for text in known.sources.values()
    )


def _near(key: str, known: Known) -> str:
    last = key.rpartition(".")[2]
    if key.startswith(EXTRA) or (last in known.arguments and f"train.{last}" not in known.params):
        near = difflib.get_close_matches(last, sorted(known.arguments), n=1, cutoff=0.6)
        return f"; LLaMA-Factory has {EXTRA}{near[0]}" if near else ""
    names = [name for name in known.params if not name.startswith(("experiment.", "agent."))]
    near = (
        difflib.get_close_matches(key, names, n=1, cutoff=0.6)
        or [name for name in names if name.endswith(f".{last}")][:1]
    )
    return f"; did you mean {near[0]}?" if near else ""
