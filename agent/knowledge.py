"""What a proposal may lean on, each text under its citation: the knowledge base or the web where one answers, and always what is installed.

The mode is found out by the first question: `kb` where the knowledge base answers, else `web` where a page of the registry can be read,
else `library` where a package of ours is installed, else `none`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent import knowledge_kb, knowledge_web
from agent.knowledge_cache import Cache
from agent.knowledge_library import Library, open_library
from agent.progress import FOLDER
from stages.common.schema import Agent

_DAY_S = 86400.0
FIRST_LINE = {
    "kb": "Grounding: knowledge base; citations name its pages, and what is installed here.",
    "web": "Grounding: web; citations name official pages, and what is installed here.",
    "library": "Grounding: installed packages; citations name the documentation of the versions that run here.",
    "none": "No grounding: neither knowledge base, web nor installed packages could be read. Every technical claim below is [unverified].",
}


@dataclass(frozen=True)
class Passage:
    """A text under its citation. `about`: model, framework, problem, parameter, ours."""

    citation: str
    about: str
    text: str
    note: str = ""


@dataclass
class Knowledge:
    """What was found, in which mode, and what was not (`failures`)."""

    mode: str
    passages: list[Passage] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def sources(self) -> dict[str, str]:
        """The text that stands behind each citation; what is not here cannot be cited."""
        found: dict[str, str] = {}
        for passage in self.passages:
            found[passage.citation] = f"{found[passage.citation]}\n{passage.text}" if passage.citation in found else passage.text
        return found

    @property
    def angles(self) -> frozenset[str]:
        """What the pages of knowledge base and web are about."""
        return frozenset(
            p.about for p in self.passages if p.about in ("model", "framework", "problem") and not p.citation.startswith("[lib:")
        )


def gather(agent: Agent, *, status: str, tried: str, questions: Sequence[str], keys: Sequence[str], repository: str) -> Knowledge:
    """Ask every source that answers.

    Args:
        status: the present state in words; tried: the latest experiments in words, for the knowledge base's own hypotheses.
        questions: what to look up.
        keys: parameters whose documentation is wanted whatever the questions find.
        repository: the model's repository on the hub, "" where it has none.
    """
    found, failures = [], []
    mode = ""
    try:
        asked: list[knowledge_kb.Question] = [("propose_hypothesis", {"current_status": status, "recent_experiments": tried})]
        asked += [("search_knowledge", {"query": question}) for question in questions]
        asked += [("query_hyperparameter_priors", {"query": f"{', '.join(keys[:8])} for: {status}"})]
        answers = knowledge_kb.ask(agent.knowledge_base, asked, Cache(FOLDER / "kb", agent.web.keep_days * _DAY_S))
        found += [Passage(citation, "framework", text) for citation, text in answers]
        mode = "kb"
    except knowledge_kb.Refused as error:
        failures.append(f"knowledge base: {error}")
    if not mode and agent.web.enabled:
        wanted = knowledge_web.addresses(agent.web, repository, agent.reported)
        pages = knowledge_web.fetch(agent.web, wanted, Cache(FOLDER / "web", agent.web.keep_days * _DAY_S))
        found += [Passage(f"[source]({page.url})", page.about, page.text, f"fetched {page.day}") for page in pages if page.text]
        failures += [f"{page.url}: {page.failure}" for page in pages if not page.text]
        mode = "web" if found else ""
        failures += [f"web: no page about the {about} was read" for about in missing(found, agent.reported)]
    library = open_library()
    if library is not None:
        found += from_library(library, questions, keys, agent.passages)
    return Knowledge(mode or ("library" if library is not None else "none"), found, failures)


def missing(found: Sequence[Passage], reported: str) -> list[str]:
    """Angles that no page covers: the model's card, the framework's documentation and, where people report one, the failure."""
    there = {passage.about for passage in found}
    return [about for about in ("model", "framework", *(("problem",) if reported.strip() else ())) if about not in there]


def from_library(library: Library, questions: Sequence[str], keys: Sequence[str], limit: int) -> list[Passage]:
    """What the installed packages say about the parameters, then what fits the questions."""
    found: dict[str, Passage] = {}
    for key in keys:
        for entry in library.of_field(key.rpartition(".")[2])[:2]:
            found.setdefault(entry.citation, Passage(entry.citation, "parameter", entry.text))
    for question in questions:
        for entry in library.search(question, limit=max(2, limit // max(1, len(questions)))):
            found.setdefault(entry.citation, Passage(entry.citation, "framework", entry.text))
    return list(found.values())


def shown(knowledge: Knowledge, characters: int) -> list[dict[str, Any]]:
    """Passages for a prompt, cut so that all together fit: each gets an equal share of what is left."""
    passages, left, out = knowledge.passages, characters, []
    for position, passage in enumerate(passages):
        share = max(200, left // (len(passages) - position))
        text = passage.text if len(passage.text) <= share else passage.text[:share] + " ..."
        left -= len(text)
        out.append({"citation": passage.citation, "about": passage.about, "note": passage.note, "text": text})
        if left <= 0:
            break
    return out
