"""What a policy without a language model quotes: the installed documentation of a parameter, the model's card, our own state."""

from __future__ import annotations

import re

from agent.gates import Known
from agent.gates.citations import SITUATION, words
from agent.gates.proposal import Quote
from agent.gates.quotes import FEWEST, MOST
from agent.gates.topics import concerns
from agent.knowledge.base_model import CARD

DOCUMENTED = {"data.max_rows": "max_samples"}
"""What LLaMA-Factory's documentation calls a parameter of ours."""


def evidence(known: Known, key: str) -> list[Quote]:
    """What the installed packages say about a parameter, the present value, and the newest experiment that moved it."""
    name = DOCUMENTED.get(key, key.rpartition(".")[2])
    read = [(citation, quote) for citation, text in known.sources.items() if citation.startswith("[lib:") and (quote := _quotable(text))]
    named = [Quote(quote, citation, "parameter") for citation, quote in read if citation.endswith(f".{name}]")]
    near = [Quote(quote, citation, "framework") for citation, quote in read if concerns(key, quote, citation)]
    found = [*named, *near][:1]
    found += _own_quotes(known, key)
    if line := next((line for line in known.sources.get(CARD, "").splitlines() if words(line) >= FEWEST), ""):
        found.append(Quote(" ".join(line.split()[:MOST]), CARD, "model"))
    mine = [each.folder for each in known.tried if key in each.differing and f"[experiment: {each.folder}]" in known.sources]
    for folder in mine[-1:]:
        text = " ".join(known.sources[f"[experiment: {folder}]"].split()[:12])
        found += [Quote(text, f"[experiment: {folder}]", "ours")] if words(text) >= FEWEST else []
    return found


def _own_quotes(known: Known, key: str) -> list[Quote]:
    lines = known.sources.get(SITUATION, "").splitlines()
    picked = [line for line in lines if line.startswith(f"{key} is ")][:1] + [line for line in lines if line.startswith("The model is")][:1]
    return [
        Quote(" ".join(line.split()[:MOST]), SITUATION, "model" if line.startswith("The model") else "ours")
        for line in picked
        if words(line) >= FEWEST
    ]


def _quotable(text: str) -> str:
    """The first sentence of a documentation, after its signature, if it is long enough to quote."""
    body = " ".join(text.partition("\n")[2].split())
    sentence = re.split(r"(?<=[.!?]) ", body)[0]
    chosen = sentence if words(sentence) >= FEWEST else body
    return " ".join(chosen.split()[:MOST]) if words(chosen) >= FEWEST else ""
