"""From what is known to the experiment that runs next: propose, pass the gates, revise, fall back;
all of it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent import gates
from agent.gates import Known, Refusal
from agent.gates.proposal import Option, Proposal
from agent.knowledge import grounding
from agent.knowledge.grounding import FIRST_LINE
from agent.knowledge.history import Record
from agent.propose import policy_llm, policy_optuna, situation
from agent.propose.survey import survey
from agent.run import trial
from agent.run.progress import say
from stages.common.errors import PawlError
from stages.common.schema import Agent
from stages.common.text import plain


@dataclass
class Attempt:
    """One proposal and what the gates said about it; `proposal` is None if none came, and `refused`
    says why.
    """

    number: int
    policy: str
    proposal: Proposal | None
    refused: list[Refusal] = field(default_factory=list)


@dataclass
class Plan:
    """The option that runs, the proposal that it is of, and the way there; `option` is None if
    nothing passed.

    `silent`: why the language model did not answer, "" if it did or was not asked.
    """

    option: Option | None
    proposal: Proposal | None
    attempts: list[Attempt]
    mode: str
    known: Known
    silent: str = ""


def plan(
    policy: str,
    agent: Agent,
    records: Sequence[Record],
    run: str,
    number: int,
    hours_left: float = 0.0,
    told: Callable[[str], None] = say,
) -> Plan:
    """The next experiment: what a language model argues for, else what Optuna draws."""
    if policy != "llm":
        return _drawn(agent, records, hours_left, [], "")
    argued = _argued(agent, records, run, number, hours_left, told)
    if argued.option:
        return argued
    if any(attempt.proposal for attempt in argued.attempts):
        why = "no proposal of the language model passed the gates"
    else:
        why = "no proposal came from the language model"
    told(f"agent: {why}; Optuna proposes this experiment")
    return _drawn(agent, records, hours_left, argued.attempts, argued.silent)


def _drawn(
    agent: Agent, records: Sequence[Record], hours_left: float, attempts: list[Attempt], silent: str
) -> Plan:
    known, found = survey(agent, records, hours_left, reads=False)
    offered, refused = policy_optuna.propose(known, known.gain or 0.01)
    attempt = Attempt(len(attempts) + 1, policy_optuna.POLICY, offered, refused)
    options = gates.clean(offered, gates.check(offered, known)) if offered else []
    chosen = options[0] if options else None
    return Plan(chosen, offered, [*attempts, attempt], found.mode, known, silent)


def _argued(
    agent: Agent,
    records: Sequence[Record],
    run: str,
    number: int,
    hours_left: float,
    told: Callable[[str], None],
) -> Plan:
    """What a language model proposes. A refused proposal goes back to it `agent.max_revisions`
    times; then the first option that no gate objected to runs, the newest proposal's first.
    """
    known, found = survey(agent, records, hours_left, reads=True)
    told(f"agent: {FIRST_LINE[found.mode]}")
    _tell_failures(found.failures, told)
    asking = policy_llm.begin(
        known, found, situation.comparable(known.params, records), run, number
    )
    attempts: list[Attempt] = []
    silent = ""
    for count in range(1, agent.max_revisions + 2):
        try:
            proposal, reply = policy_llm.ask(asking)
        except PawlError as error:
            attempts.append(
                Attempt(count, "llm", None, [Refusal("reply", "", plain(error.what, 300))])
            )
            if isinstance(error, policy_llm.Unreachable):
                silent = plain(f"{error.what} ({error.where})", 400)
            told(
                f"agent: warning: {plain(error.what, 300)}; where: {error.where}; fix: {error.fix}"
            )
            break
        refused = gates.check(proposal, known)
        attempts.append(Attempt(count, "llm", proposal, refused))
        if not refused:
            break
        for refusal in refused:
            told(f"agent: refused, {plain(str(refusal), 300)}")
        hypotheses = [
            f"{' '.join(change.key for change in option.changes)} {option.why}"
            for option in proposal.options
        ]
        looked_up, failures = grounding.look_up(agent, found, hypotheses)
        _tell_failures(failures, told)
        found = replace(found, passages=[*found.passages, *looked_up])
        known = replace(known, sources=found.sources, angles=found.angles, numbers={})
        asking = policy_llm.revise(
            replace(asking, known=known), reply, refused, looked_up, hypotheses
        )
    for attempt in reversed(attempts):
        if attempt.proposal and (left := gates.clean(attempt.proposal, attempt.refused)):
            return Plan(left[0], attempt.proposal, attempts, found.mode, known, silent)
    return Plan(None, None, attempts, found.mode, known, silent)


def _tell_failures(failures: Sequence[str], told: Callable[[str], None]) -> None:
    for failure in failures:
        told(f"agent: not read: {plain(failure, 200)}")


def record_of(plan: Plan, commit: str, run: str, number: int) -> Record:
    """The record that is written before the experiment runs."""
    option, proposal = plan.option, plan.proposal
    assert option is not None and proposal is not None
    return trial.plan(
        option.overrides,
        trial.hypothesis(f"{option.why} {option.expected}"),
        option.name,
        commit,
        policy=proposal.policy,
        run=run,
        trial=number,
        expected=plain(option.expected, 2000),
        gate={"metric": "accuracy", "at_least": option.at_least},
    )
