"""The research loop: plan, run, keep or discard, until a limit is reached. Killed at any moment, it
is taken up where it was.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from dataclasses import asdict
from typing import Any

from agent.knowledge import history
from agent.knowledge.history import Record, number
from agent.propose import papers, planner, policy_llm
from agent.propose.audit import audit
from agent.run import account, execution, experiment, settings, telling, trial, workspace
from agent.run.progress import Progress, Run, clock, read_run, say
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.process import stage_lock
from stages.common.schema import Agent, validate
from stages.common.schema.loop import Budget

SILENT = 2
"""Plannings in a row without an answer of the language model that end a run: whoever asked for
`llm` did not ask for Optuna.
"""


def start(policy: str = "", limits: dict[str, Any] | None = None) -> None:
    """Begin a run: a clean tree on a branch, and limits from conf/agent with those of the command
    line on top.

    Raises:
        PawlError: the tree is not ready, an earlier run was cut short, or no language model is
            configured for `llm` or answers.
    """
    with stage_lock("agent", record_failure=False):
        before = read_run()
        if before and not before.ended:
            raise PawlError(
                f"the run {before.id} was cut short",
                where=before.folder or before.state,
                fix="python -m agent resume; or give it up: python -m agent restore",
            )
        workspace.require_ready()
        agent = read_params("agent").agent
        policy = policy or agent.policy
        if policy == "llm" and not agent.llm.base_url:
            raise PawlError(
                "no language model is configured",
                where="agent.llm.base_url",
                fix="see conf/agent/llm.yaml, or: --policy optuna",
            )
        budget = asdict(agent.budget) | {
            name: value for name, value in (limits or {}).items() if value is not None
        }
        validate(Budget(**budget), "agent.budget")
        run = Run(
            f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}",
            policy,
            budget,
            experiment.now(),
        )
        if policy == "llm":
            policy_llm.probe(agent.llm, run.id)
        _go(run)


def resume() -> None:
    """Take up what a kill or Ctrl-C cut short: end what still runs, finish and commit what is done,
    go on with what is planned.
    """
    with stage_lock("agent", record_failure=False):
        run = read_run()
        if run is None or run.ended:
            raise PawlError(
                "no run of the agent was cut short here",
                where=run.ended if run else "",
                fix="python -m agent run --trials 3",
            )
        execution.require_same_head(run.id)
        if ended := workspace.take_up():
            say(f"agent: ended what the killed run had left running: {', '.join(map(str, ended))}")
        progress = _progress(run)
        for folder in execution.commit_finished(progress):
            say(f"agent: committed the finished {folder}")
        for record in workspace.planned():
            workspace.forget_edit()
            say(f"agent: taking up {record.folder}, which was {run.state or 'planned'}")
            if record.parent:
                _finish(run, progress, record)
            else:
                telling.tell(
                    trial.starting_point(
                        record.commit, "taken up", progress, record, _hours_left(run)
                    )
                )
        workspace.put_back()  # a folder without a record: killed before it was written
        _go(run)


def _progress(run: Run) -> Progress:
    best = {"seconds": 0.0, "told": ""}

    def told() -> str:
        if time.monotonic() - best["seconds"] > 10 or not best["told"]:  # type: ignore[operator]
            records = history.read_history()[0]
            used = account.spent(run.id, run.seconds, records)
            most = run.budget.get("trials") or 0
            best["told"] = (
                f"experiment {used.trials + 1}{f' of {most}' if most else ''}, best"
                f" {best_of(records)}, {account.in_words(used)}"
            )
            best["seconds"] = time.monotonic()
        return str(best["told"])

    return Progress(run, told)


def best_of(records: list[Record]) -> str:
    """The best kept accuracy since the newest starting point, and its experiment: what another
    ruler measured is no match for it.
    """
    first = max(
        (k for k, record in enumerate(records) if record.judged and not record.parent), default=0
    )
    kept = [
        record
        for record in records[first:]
        if record.status == "KEPT" and number(record.evidence.get("accuracy")) is not None
    ]
    if not kept:
        return "none yet"
    best = max(kept, key=lambda record: float(record.evidence["accuracy"]))
    return f"{best.evidence['accuracy']:.3f} ({best.number:04d})"


def _go(run: Run) -> None:
    os.environ["PAWL_SESSION"] = run.id  # MLflow nests the runs of a session
    progress, budget = _progress(run), Budget(**run.budget)
    while True:
        records = history.read_history()[0]
        used = account.spent(run.id, run.seconds, records)
        if reason := account.why_stop(budget, used):
            return _end(progress, reason, records)
        commit = workspace.require_ready()
        hours_left = _hours_left(run)
        if reason := trial.why_start(settings.require_composed()):
            telling.tell(trial.starting_point(commit, reason, progress, hours_left=hours_left))
            continue
        progress.enter("planning")
        agent: Agent = read_params("agent").agent
        plan = planner.plan(run.policy, agent, records, run.id, used.trials + 1, hours_left)
        run.silent = run.silent + 1 if plan.silent else 0
        if run.silent >= SILENT:
            return _end(
                progress,
                f"the language model did not answer {run.silent} times in a row: {plan.silent}",
                records,
            )
        if path := audit(plan.proposal, agent.seed):
            say(f"agent: for you to read: {path}; facts that are wrong there no parameter mends")
        for line in papers.for_people(plan.proposal):
            say(line)
        if plan.option is None:
            for refusal in plan.attempts[-1].refused[:10]:
                say(f"agent: refused, {refusal}")
            return _end(progress, "nothing is left to try that passes the gates", records)
        record = planner.record_of(plan, commit, run.id, used.trials + 1)
        _finish(run, progress, record, plan)


def _hours_left(run: Run) -> float:
    """Of the budget; 0 where it has no limit."""
    hours = Budget(**run.budget).hours
    return max(0.01, hours - run.seconds / 3600) if hours else 0.0


def _finish(run: Run, progress: Progress, record: Record, plan: planner.Plan | None = None) -> None:
    """Run one experiment to its record; what crashed is a record too, and the loop goes on."""
    leave = functools.partial(papers.write, plan, record) if plan is not None else _nothing
    done, _ = execution.run(
        record, progress, papers=leave, resumable=True, hours_left=_hours_left(run)
    )
    telling.tell(done)


def _nothing() -> None:
    """The papers of an experiment that nobody argued for."""


def _end(progress: Progress, reason: str, records: list[Record]) -> None:
    run = progress.run
    assert run is not None
    progress.end(reason)
    mine = [record for record in records if record.run == run.id and record.parent]
    kept = sum(record.status == "KEPT" for record in mine)
    used = account.spent(run.id, run.seconds, records)
    say(f"agent: the run ends: {reason}")
    say(
        f"  {len(mine)} experiments, {kept} kept, best {best_of(records)}; "
        f"{account.in_words(used)} in {clock(run.seconds)}; python -m agent history"
    )
