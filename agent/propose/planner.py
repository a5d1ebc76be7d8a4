"""From what is known to the experiment that runs next: propose, pass the gates, revise, fall back; all of it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agent import gates
from agent.gates import Known, Refusal, citations
from agent.gates.proposal import Option, Proposal
from agent.knowledge import base_model, grounding, history
from agent.knowledge.grounding import FIRST_LINE, Knowledge, Question
from agent.knowledge.history import Record
from agent.knowledge.library import open_library
from agent.propose import policy_llm, policy_optuna, situation, words
from agent.propose.evidence import DOCUMENTED
from agent.run import preflight, settings, trial
from agent.run.progress import say
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import write_json, write_text
from stages.common.schema import Agent
from stages.common.text import markdown, plain


@dataclass
class Attempt:
    """One proposal and what the gates said about it; `proposal` is None where none came, and `refused` says why."""

    number: int
    policy: str
    proposal: Proposal | None
    refused: list[Refusal] = field(default_factory=list)


@dataclass
class Plan:
    """The option that runs, the proposal that it is of, and the way there; `option` is None where nothing passed.

    `silent`: why the language model did not answer, "" if it did or was not asked.
    """

    option: Option | None
    proposal: Proposal | None
    attempts: list[Attempt]
    mode: str
    known: Known
    silent: str = ""


def survey(agent: Agent, records: Sequence[Record], hours_left: float, *, reads: bool) -> tuple[Known, Knowledge]:
    """Everything that the gates and the proposer need. `reads`: knowledge base and web are asked too, not only what is installed."""
    params = settings.require_composed()
    there = situation.observe(params, records)
    past = situation.tried(params, records)
    compared = situation.comparable(params, records)
    keys = [DOCUMENTED.get(key, key) for key in agent.space if key in params]
    if reads:
        problem = _problem(agent.reported)
        tried = "\n".join(situation.in_words(record) for record in compared[-10:])
        found = grounding.gather(
            agent, status=there.text[:3000], tried=tried, questions=_questions(there, params, problem), keys=keys,
            repository=repository(agent, params), problem=problem,
        )  # fmt: skip
    else:
        library = open_library()
        found = Knowledge(
            "none" if library is None else "library", [] if library is None else grounding.from_library(library, [], keys, agent.passages)
        )
    library = open_library()
    found.passages += situation.passages(there, compared)
    composer = _Composer(records)
    known = Known(
        params=params, sources=found.sources, situation=there, agent=agent, mode=found.mode, angles=found.angles, tried=past,
        arguments=frozenset(library.arguments() if library else ()), resolve=composer.problem,
        repeats=composer.repeats, memory=_Memory(), hours_left=hours_left,
        gain=float(getattr(read_params("judge").judge, "min_effect", 0.01)),
    )  # fmt: skip
    return known, found


def _questions(there: gates.Situation, params: dict[str, Any], problem: str) -> list[Question]:
    """Every angle: the model, the framework, the data, and the failure."""
    method = f"{params.get('train.stage', 'sft')} {params.get('train.finetuning_type', 'lora')}"
    return [
        Question("model", f"fine-tuning {there.model}: architecture, chat template, known limits", f"{there.model} model card"),
        Question("framework", f"LLaMA-Factory {method} learning rate, rank, epochs, batch size", f"{method} fine-tuning configuration"),
        Question("framework", f"training data quality and size for fine-tuning on {there.rows} rows", "data for fine-tuning"),
        Question("problem", f"fine-tuned model: {problem}", f"why fine-tuning fails: {problem}"),
    ]


def _problem(reported: str) -> str:
    """The failure to read about: what people report, else the usual one."""
    return plain(reported, 300).strip() or "fine-tuning does not improve accuracy, overfitting or loss oscillates"


def repository(agent: Agent, params: dict[str, Any]) -> str:
    """The model's repository on the hub: as configured, else of the configured model."""
    return agent.repository or base_model.repository(params)


class _Composer:
    """Composes each set of overrides once: what is refused about it, and which experiment had the same result-shaping parameters."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.done: dict[tuple[str, ...], tuple[str, str]] = {}

    def _compose(self, overrides: list[str]) -> tuple[str, str]:
        key = tuple(sorted(overrides))
        if key not in self.done:
            try:
                self.done[key] = "", settings.fingerprint(settings.resolve(overrides))
            except PawlError as error:
                self.done[key] = plain(f"{error.what}{f' ({error.fix})' if error.fix else ''}", 400), ""
        return self.done[key]

    def problem(self, overrides: list[str]) -> str:
        return self._compose(overrides)[0]

    def repeats(self, overrides: list[str]) -> str:
        seal = self._compose(overrides)[1]
        found = trial.repeated(self.records, seal) or trial.crashed_alike(self.records, seal) if seal else None
        return f"this repeats {found.folder} ({trial.told(found)}{', ' + found.reason if found.reason else ''})" if found else ""


class _Memory:
    """Asks the training stage, once for each set of overrides; where it cannot say, the training itself will."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, ...], str] = {}

    def __call__(self, overrides: list[str]) -> str:
        key = tuple(sorted(overrides))
        if key not in self.answers:
            self.answers[key] = preflight.check_training([f"++{each}" if each.startswith("train.extra.") else each for each in overrides])
        return self.answers[key]


def plan(
    policy: str, agent: Agent, records: Sequence[Record], run: str, number: int, hours_left: float = 0.0, told: Callable[[str], None] = say
) -> Plan:
    """The next experiment. A language model gets its refused proposal back `agent.max_revisions` times; then the first option that
    nothing was said against runs, else what Optuna proposes."""
    attempts: list[Attempt] = []
    silent = ""
    if policy == "llm":
        known, found = survey(agent, records, hours_left, reads=True)
        told(f"agent: {FIRST_LINE[found.mode]}")
        for failure in found.failures:
            told(f"agent: not read: {plain(failure, 200)}")
        asking = policy_llm.begin(known, found, situation.comparable(known.params, records), run, number)
        for count in range(1, agent.max_revisions + 2):
            try:
                proposal, reply = policy_llm.ask(asking)
            except PawlError as error:
                attempts.append(Attempt(count, "llm", None, [Refusal("reply", "", plain(error.what, 300))]))
                silent = plain(f"{error.what} ({error.where})", 400) if isinstance(error, policy_llm.Unreachable) else ""
                told(f"agent: warning: {plain(error.what, 300)}; where: {error.where}; fix: {error.fix}")
                break
            refused = gates.check(proposal, known)
            attempts.append(Attempt(count, "llm", proposal, refused))
            if not refused:
                break
            for refusal in refused:
                told(f"agent: refused, {plain(str(refusal), 300)}")
            hypotheses = [f"{' '.join(change.key for change in option.changes)} {option.why}" for option in proposal.options]
            looked_up, failures = grounding.look_up(agent, found, hypotheses)
            for failure in failures:
                told(f"agent: not read: {plain(failure, 200)}")
            found = replace(found, passages=[*found.passages, *looked_up])
            known = replace(known, sources=found.sources, angles=found.angles, numbers={})
            asking = policy_llm.revise(replace(asking, known=known), reply, refused, looked_up, hypotheses)
        for attempt in reversed(attempts):
            if attempt.proposal and (left := gates.clean(attempt.proposal, attempt.refused)):
                return Plan(left[0], attempt.proposal, attempts, found.mode, known, silent)
        answered = any(attempt.proposal for attempt in attempts)
        why = "no proposal of the language model passed the gates" if answered else "no proposal came from the language model"
        told(f"agent: {why}; Optuna proposes this experiment")
    known, found = survey(agent, records, hours_left, reads=False)
    offered, refused = policy_optuna.propose(known, known.gain or 0.01)
    attempts.append(Attempt(len(attempts) + 1, "optuna", offered, refused))
    options = gates.clean(offered, gates.check(offered, known)) if offered else []
    return Plan(options[0] if options else None, offered, attempts, found.mode, known, silent)


def record_of(plan: Plan, commit: str, run: str, number: int) -> Record:
    """The record that is written before the experiment runs."""
    option, policy = plan.option, plan.proposal.policy if plan.proposal else ""
    assert option is not None
    why = trial.hypothesis(f"{option.why} {option.expected}")
    return trial.plan(
        option.overrides, why, option.name, commit, policy=policy, run=run, trial=number, expected=plain(option.expected, 2000),
        gate={"metric": "accuracy", "at_least": option.at_least},
    )  # fmt: skip


def write_papers(plan: Plan, record: Record) -> None:
    """proposal.json and proposal.md into the experiment's folder: every proposal, every refusal, the option that was chosen."""
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
    write_json(folder / "proposal.json", {"mode": plan.mode, "chosen": chosen, "attempts": attempts})
    page = words.render(
        "proposal.md.j2", first_line=FIRST_LINE[plan.mode], folder=record.folder, policy=record.policy,
        proposal=_safe(plan.proposal, plan.known.sources),
        chosen=chosen,
        attempts=attempts,
    )  # fmt: skip
    write_text(folder / "proposal.md", page)


def _json(proposal: Proposal | None) -> Any:
    if proposal is None:
        return None
    value = asdict(proposal)
    for option, shown in zip(proposal.options, value["options"], strict=True):
        shown["at_least"] = option.at_least if option.at_least == option.at_least else None  # NaN is no JSON
        for change, part in zip(option.changes, shown["changes"], strict=True):
            part["ratio"] = change.ratio
    return value


def _safe(proposal: Proposal | None, sources: dict[str, str]) -> Any:
    """The proposal with every text of its author as Markdown shows it unchanged; only citations of what was read stay links and tags."""
    if proposal is None:
        return None

    def shown(text: str) -> str:
        parts = citations.split(text)
        return "".join(part if name in sources or name == citations.UNVERIFIED else markdown(f"-{part}-")[1:-1] for part, name in parts)

    options = tuple(
        replace(
            option,
            changes=tuple(replace(each, key=shown(each.key)) for each in option.changes),
            evidence=tuple(replace(each, citation=shown(each.citation)) for each in option.evidence),
            why=shown(option.why),
            several=shown(option.several),
            different=shown(option.different),
            disagreement=shown(option.disagreement),
            expected=shown(option.expected),
        )
        for option in proposal.options
    )
    return replace(proposal, verified=shown(proposal.verified), options=options)


def standing(plan: Plan) -> list[str]:
    """What a person has to do before any parameter, as lines for the terminal: options that change nothing by themselves."""
    options = plan.proposal.options if plan.proposal else ()
    first = [option for option in options if not option.changes and option.kind in ("data_quality", "model_variant")]
    return [f"agent: option 0, for you: {option.name}: {plain(citations.without_tags(option.why), 300)}" for option in first]
