"""Everything that a proposer and the gates need to know, asked once before a proposal is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.gates import Known, Situation
from agent.knowledge import base_model, grounding
from agent.knowledge.grounding import Knowledge, Question
from agent.knowledge.history import Record
from agent.knowledge.library import open_library
from agent.propose import situation
from agent.run import preflight, settings, trial
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.schema import Agent
from stages.common.text import plain

DOCUMENTED = {"data.max_rows": "max_samples"}
"""What LLaMA-Factory's documentation calls a parameter of ours."""
USUAL = "fine-tuning does not improve accuracy, overfitting or loss oscillates"
"""The failure to read about if nobody reports one."""


def survey(
    agent: Agent, records: Sequence[Record], hours_left: float, *, reads: bool
) -> tuple[Known, Knowledge]:
    """The present state, the past, and what was read.

    Args:
        reads: sources are read, as an argument needs them. Without them, what is known is the
            state and the finished experiments.
    """
    params = settings.require_composed()
    there = situation.observe(params, records)
    found = _read(agent, records, params, there) if reads else Knowledge("history")
    library = open_library()
    composed = Composed(records)
    known = Known(
        params=params,
        sources=found.sources,
        situation=there,
        agent=agent,
        mode=found.mode,
        angles=found.angles,
        tried=situation.tried(params, records),
        arguments=frozenset(library.arguments() if library else ()),
        resolve=composed.problem,
        repeats=composed.repeats,
        memory=Memory(),
        hours_left=hours_left,
        gain=read_params("judge").judge.min_effect,
    )
    return known, found


def _read(
    agent: Agent, records: Sequence[Record], params: dict[str, Any], there: Situation
) -> Knowledge:
    compared = situation.comparable(params, records)
    problem = plain(agent.reported, 300).strip() or USUAL
    found = grounding.gather(
        agent,
        status=there.text[:3000],
        tried="\n".join(situation.in_words(record) for record in compared[-10:]),
        questions=_questions(there, params, problem),
        keys=[DOCUMENTED.get(key, key) for key in agent.space if key in params],
        repository=agent.repository or base_model.repository(params),
        problem=problem,
    )
    found.passages += situation.passages(there, compared)
    return found


def _questions(there: Situation, params: dict[str, Any], problem: str) -> list[Question]:
    """Every angle: the model, the framework, the data, and the failure."""
    method = f"{params.get('train.stage', 'sft')} {params.get('train.finetuning_type', 'lora')}"
    return [
        Question(
            "model",
            f"fine-tuning {there.model}: architecture, chat template, known limits",
            f"{there.model} model card",
        ),
        Question(
            "framework",
            f"LLaMA-Factory {method} learning rate, rank, epochs, batch size",
            f"{method} fine-tuning configuration",
        ),
        Question(
            "framework",
            f"training data quality and size for fine-tuning on {there.rows} rows",
            "data for fine-tuning",
        ),
        Question("problem", f"fine-tuned model: {problem}", f"why fine-tuning fails: {problem}"),
    ]


class Composed:
    """Each set of overrides, composed once: what is refused about it, and which experiment had the
    same parameters.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.done: dict[tuple[str, ...], tuple[str, str]] = {}

    def _compose(self, overrides: list[str]) -> tuple[str, str]:
        """(what is refused, fingerprint of the parameters); one of them is empty."""
        key = tuple(sorted(overrides))
        if key not in self.done:
            try:
                self.done[key] = "", settings.fingerprint(settings.resolve(overrides))
            except PawlError as error:
                fix = f" ({error.fix})" if error.fix else ""
                self.done[key] = plain(f"{error.what}{fix}", 400), ""
        return self.done[key]

    def problem(self, overrides: list[str]) -> str:
        return self._compose(overrides)[0]

    def repeats(self, overrides: list[str]) -> str:
        seal = self._compose(overrides)[1]
        if not seal:
            return ""
        found = trial.repeated(self.records, seal) or trial.crashed_alike(self.records, seal)
        if not found:
            return ""
        reason = f", {found.reason}" if found.reason else ""
        return f"this repeats {found.folder} ({trial.told(found)}{reason})"


class Memory:
    """Asks the training stage, once for each set of overrides; if it cannot say, the training
    itself will.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[str, ...], str] = {}

    def __call__(self, overrides: list[str]) -> str:
        key = tuple(sorted(overrides))
        if key not in self.answers:
            self.answers[key] = preflight.check_training(overrides)
        return self.answers[key]
