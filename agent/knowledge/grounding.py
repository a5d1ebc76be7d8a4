"""What a proposal may lean on, each text under its citation: the knowledge base or the web where
one answers, and always what is installed.

The mode is found out by the first question: `kb` if the knowledge base answers with pages, else
`web` if two pages of the registry can be read, else `library` if a package of ours is installed,
else `none`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.knowledge import knowledge_base, web
from agent.knowledge.cache import FOLDER, Cache
from agent.knowledge.library import Library, open_library
from agent.knowledge.relevance import excerpts
from stages.common.schema import Agent

_DAY_S = 86400.0
ANGLES = ("model", "framework", "problem")
"""What has to be read about before advice is given: the model, its framework, and the failure."""
FEWEST_PAGES = 2
"""Fewer pages of the web are no grounding."""
_SHORT_PROBLEM = 3
"""Words of a problem when it is searched for again: an issue tracker finds nothing for a long
sentence.
"""
FIRST_LINE = {
    "kb": "Grounding: knowledge base; citations name its pages, and what is installed here.",
    "web": "Grounding: web; citations name official pages, and what is installed here.",
    "library": (
        "Grounding: installed packages; citations name the documentation of the versions that run"
        " here."
    ),
    "none": (
        "No grounding: neither knowledge base, web nor installed packages could be read. Every"
        " technical claim below is [unverified]."
    ),
    "history": (
        "Grounding: the finished experiments; a draw cites nothing, so nothing else was read."
    ),
}


@dataclass(frozen=True)
class Passage:
    """A text under its citation. `about`: what its source covers, of model, framework, problem,
    parameter, ours; several joined by ", ".
    """

    citation: str
    about: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Question:
    """What to look up, about which angle, and in which other words if nothing is found."""

    about: str
    text: str
    again: str


@dataclass
class Knowledge:
    """What was found, in which mode, what was not (`failures`), and what was asked: excerpts are
    chosen by it.
    """

    mode: str
    passages: list[Passage] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    @property
    def sources(self) -> dict[str, str]:
        """The text that stands behind each citation; what is not here cannot be cited."""
        found: dict[str, str] = {}
        for passage in self.passages:
            found[passage.citation] = (
                f"{found[passage.citation]}\n{passage.text}"
                if passage.citation in found
                else passage.text
            )
        return found

    @property
    def angles(self) -> dict[str, frozenset[str]]:
        """The angles that each source covers, by citation: model, framework, problem. What is
        installed is of the framework.
        """
        read = [passage for passage in self.passages if passage.about != "ours"]
        return {
            passage.citation: frozenset(passage.about.replace("parameter", "framework").split(", "))
            for passage in read
        }


def gather(
    agent: Agent,
    *,
    status: str,
    tried: str,
    questions: Sequence[Question],
    keys: Sequence[str],
    repository: str,
    problem: str,
) -> Knowledge:
    """Ask every source that answers.

    Args:
        status: the present state in words; tried: the latest experiments in words, for the
            knowledge base's own hypotheses.
        questions: what to look up, of each angle one at least.
        keys: parameters whose documentation is wanted whatever the questions find.
        repository: the model's repository on the hub, "" if it has none.
        problem: the failure to look for in reports of others: what people report, else what the
            present state shows.
    """
    found: list[Passage] = []
    failures: list[str] = []
    mode = ""
    try:
        found, failures = _from_base(agent, status, tried, questions, keys)
        mode = "kb"
    except knowledge_base.Refused as error:
        failures.append(f"knowledge base: {error}")
    if not mode and agent.web.enabled:
        found, said = _from_web(agent, repository, problem)
        failures += said
        mode = "web" if len(found) >= FEWEST_PAGES else ""
    library = open_library()
    if library is not None:
        found += from_library(
            library, [question.text for question in questions], keys, agent.passages
        )
    asked = [*(question.text for question in questions), *(key.rpartition(".")[2] for key in keys)]
    return Knowledge(mode or ("library" if library is not None else "none"), found, failures, asked)


def _from_base(
    agent: Agent, status: str, tried: str, questions: Sequence[Question], keys: Sequence[str]
) -> tuple[list[Passage], list[str]]:
    """Pages of the knowledge base; for an angle that no page covers it is asked once more, in other
    words.
    """
    cache = Cache(FOLDER / "kb", agent.web.keep_days * _DAY_S)
    asked = [
        knowledge_base.Question(
            "propose_hypothesis", {"current_status": status, "recent_experiments": tried}, "problem"
        )
    ]
    asked += [
        knowledge_base.Question("search_knowledge", {"query": question.text}, question.about)
        for question in questions
    ]
    asked += [
        knowledge_base.Question(
            "query_hyperparameter_priors",
            {"query": f"{', '.join(keys[:8])} for: {status}"},
            "framework",
        )
    ]
    pages, failures = knowledge_base.ask(agent.knowledge_base, asked, cache)
    if lacking := [about for about in ANGLES if not any(about in page.angles for page in pages)]:
        again = [question for question in questions if question.about in lacking]
        asked += [
            knowledge_base.Question("search_knowledge", {"query": each.again}, each.about)
            for each in again
        ]
        pages, said = knowledge_base.ask(agent.knowledge_base, asked, cache)
        failures += said
    passages = [Passage(page.citation, ", ".join(sorted(page.angles)), page.text) for page in pages]
    return passages, [f"knowledge base: {each}" for each in dict.fromkeys(failures)] + _lacking(
        passages, "knowledge base"
    )


def _from_web(agent: Agent, repository: str, problem: str) -> tuple[list[Passage], list[str]]:
    """Pages of the registry; for an angle that no page covers its pages are tried once more, with a
    shorter problem.
    """
    cache = Cache(FOLDER / "web", agent.web.keep_days * _DAY_S)
    pages = web.fetch(agent.web, web.addresses(agent.web, repository, problem), cache)
    if lacking := [
        about for about in ANGLES if not any(page.text and page.about == about for page in pages)
    ]:
        shorter = " ".join(problem.split()[:_SHORT_PROBLEM])
        again = [at for at in web.addresses(agent.web, repository, shorter) if at[0] in lacking]
        pages = [page for page in pages if page.about not in lacking] + web.fetch(
            agent.web, again, cache
        )
    passages = [
        Passage(f"[source]({page.url})", page.about, page.text, f"fetched {page.day}")
        for page in pages
        if page.text
    ]
    failures = [f"{page.url}: {page.failure}" for page in pages if not page.text] + _lacking(
        passages, "web"
    )
    if 0 < len(passages) < FEWEST_PAGES:
        failures.append(
            f"web: {len(passages)} page was read, fewer than {FEWEST_PAGES}, so what is installed"
            " is the grounding"
        )
    return passages, failures


def _lacking(passages: Sequence[Passage], source: str) -> list[str]:
    there = {about for passage in passages for about in passage.about.split(", ")}
    return [
        f"{source}: no page about the {about} was read" for about in ANGLES if about not in there
    ]


def look_up(
    agent: Agent, known: Knowledge, hypotheses: Sequence[str]
) -> tuple[list[Passage], list[str]]:
    """What is read about each hypothesis of a proposal, one look-up for each: passages that `known`
    lacks, and what failed.

    The knowledge base is asked if it is the grounding; the installed packages are searched in any
    case.
    """
    found: list[Passage] = []
    failures: list[str] = []
    if known.mode == "kb" and hypotheses:
        asked = [
            knowledge_base.Question("search_knowledge", {"query": each[:1000]})
            for each in hypotheses
        ]
        try:
            pages, said = knowledge_base.ask(
                agent.knowledge_base, asked, Cache(FOLDER / "kb", agent.web.keep_days * _DAY_S)
            )
            found += [
                Passage(page.citation, ", ".join(sorted(page.angles)), page.text) for page in pages
            ]
            failures += [f"knowledge base: {each}" for each in dict.fromkeys(said)]
        except knowledge_base.Refused as error:
            failures.append(f"knowledge base: {error}")
    library = open_library()
    if library is not None:
        found += from_library(library, hypotheses, [], agent.passages)
    there = {(passage.citation, passage.text) for passage in known.passages}
    return [passage for passage in found if (passage.citation, passage.text) not in there], failures


def from_library(
    library: Library, questions: Sequence[str], keys: Sequence[str], limit: int
) -> list[Passage]:
    """What the installed packages say about the parameters, then what fits the questions."""
    found: dict[str, Passage] = {}
    for key in keys:
        for entry in library.of_field(key.rpartition(".")[2])[:2]:
            found.setdefault(entry.citation, Passage(entry.citation, "parameter", entry.text))
    for question in questions:
        for entry in library.search(question, limit=max(2, limit // max(1, len(questions)))):
            found.setdefault(entry.citation, Passage(entry.citation, "framework", entry.text))
    return list(found.values())


def shown(
    passages: Sequence[Passage], questions: Sequence[str], characters: int
) -> list[dict[str, Any]]:
    """Passages for a prompt: of each what concerns the questions, all together within
    `characters`.
    """
    texts = excerpts([passage.text for passage in passages], questions, characters)
    return [
        {"citation": passage.citation, "about": passage.about, "note": passage.note, "text": text}
        for passage, text in zip(passages, texts, strict=True)
        if text
    ]
