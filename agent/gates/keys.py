"""A configuration key exists: in our schema, or, below train.extra, in LLaMA-Factory's argument classes."""

from __future__ import annotations

import difflib
import re

from agent.gates.known import Known, Refusal, claims
from agent.proposal import Proposal

EXTRA = "train.extra."
_CODE = re.compile(r"`([A-Za-z_][\w.]*)`([^`\n]{0,20})")
VERIFY = "# VERIFY"


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    for option in proposal.options:
        for change in option.changes:
            if not _exists(change.key, known):
                refused.append(Refusal("keys", option.name, f"there is no parameter {change.key}{_near(change.key, known)}"))
    for name, field, text in claims(proposal):
        for key, after in _CODE.findall(text):
            if "_" in key and not _exists(key, known, prose=True) and not after.lstrip().startswith(VERIFY):
                refused.append(
                    Refusal("keys", name, f"{field}: there is no parameter `{key}`{_near(key, known)}, else write {VERIFY} behind it")
                )
    return refused


def _exists(key: str, known: Known, *, prose: bool = False) -> bool:
    if key in known.params:
        return True
    if key.startswith(EXTRA):
        return key.removeprefix(EXTRA) in known.arguments and "train.extra" in {name[:11] for name in known.params}
    last = key.rpartition(".")[2]
    return prose and (last in known.arguments or last in {name.rpartition(".")[2] for name in known.params} or _held(last, known))


def _held(name: str, known: Known) -> bool:
    """A name of a source that was read, verbatim."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for text in known.sources.values())


def _near(key: str, known: Known) -> str:
    last = key.rpartition(".")[2]
    if key.startswith(EXTRA) or (last in known.arguments and f"train.{last}" not in known.params):
        near = difflib.get_close_matches(last, sorted(known.arguments), n=1, cutoff=0.6)
        return f"; LLaMA-Factory has {EXTRA}{near[0]}" if near else ""
    names = [name for name in known.params if not name.startswith(("experiment.", "agent."))]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6) or [name for name in names if name.endswith(f".{last}")][:1]
    return f"; did you mean {near[0]}?" if near else ""
