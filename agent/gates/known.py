"""What the gates know: everything they judge a proposal by, gathered before, so that each of them
is a function of two values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.gates.citations import known_numbers
from agent.gates.proposal import Proposal
from stages.common.schema import Agent


@dataclass(frozen=True)
class Refusal:
    """Why a proposal may not run. `option` is "" where it is about the whole."""

    gate: str
    option: str
    reason: str

    def __str__(self) -> str:
        return f"{self.gate}{f', option {self.option}' if self.option else ''}: {self.reason}"


@dataclass(frozen=True)
class Tried:
    """A finished experiment: its folder, in words what came of it, its parameters as far as they
    differ from `Known.params`.

    `accuracy` is None where it crashed.
    """

    folder: str
    told: str
    differing: dict[str, Any]
    accuracy: float | None = None


@dataclass(frozen=True)
class Situation:
    """The present state in the words and numbers that a specific proposal names.

    `chat`: the base model has a chat template; `instruct`: it was tuned to follow instructions,
    which a template alone does not say.
    """

    model: str
    rows: int
    accuracy: float | None
    hardware: str
    chat: bool
    text: str
    train_seconds: float = 0.0
    other_seconds: float = 0.0
    instruct: bool = True


@dataclass(frozen=True)
class Known:
    """
    Attributes:
        params: the present parameters by dotted key.
        sources: the text behind each citation.
        angles: what each page covers (model, framework, problem), by citation: an angle that has a
            page must be quoted.
        arguments: configuration keys of LLaMA-Factory's argument classes.
        resolve: composes overrides; gives what is refused about them, or "".
        repeats: the finished experiment that overrides would repeat, by the hash of what they
            compose to; "" where there is none.
        memory: asks the training stage whether overrides fit into memory; "" where they do, or
            where it cannot say.
        hours_left: of the budget; 0: no limit.
        gain: judge.min_effect, the smallest difference worth having.
    """

    params: dict[str, Any]
    sources: dict[str, str]
    situation: Situation
    agent: Agent
    mode: str = "library"
    angles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tried: Sequence[Tried] = ()
    arguments: frozenset[str] = frozenset()
    resolve: Callable[[list[str]], str] = lambda overrides: ""
    repeats: Callable[[list[str]], str] = lambda overrides: ""
    memory: Callable[[list[str]], str] = lambda overrides: ""
    hours_left: float = 0.0
    gain: float = 0.0
    numbers: dict[str, set[float]] = field(default_factory=dict)

    def numbers_of(self, citation: str) -> set[float]:
        if citation not in self.numbers:
            self.numbers[citation] = known_numbers([self.sources.get(citation, "")])
        return self.numbers[citation]


def claims(proposal: Proposal) -> Iterator[tuple[str, str, str]]:
    """(option, field, text) of everything in a proposal that a source has to stand behind."""
    if proposal.verified.strip():
        yield "", "verified", proposal.verified
    for option in proposal.options:
        for name, text in option.prose().items():
            yield option.name, name, text
