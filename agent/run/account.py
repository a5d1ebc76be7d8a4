"""What was spent, in one account: the agent's own calls, the judge's and the teacher's, hours and
GPU hours; and when that is enough.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from agent.knowledge.cache import FOLDER
from agent.knowledge.history import Record, number
from agent.run import workspace
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.gpus import visible
from stages.common.reports.base import Report
from stages.common.reports.data import DataReport, Teaching
from stages.common.reports.training import TrainReport
from stages.common.reports.verdict import Opinion, Verdict
from stages.common.schema.loop import Budget

LEDGER = FOLDER / "calls.jsonl"
"""One line a call of the agent, written as soon as its reply is there."""
Kind = TypeVar("Kind", bound=Report)
_FIELDS = ("llm", "prompt_tokens", "output_tokens", "gpu_hours")
CRASHES = 3
"""So many crashes in a row end a run: then it is not the proposals that are wrong."""


@dataclass(frozen=True)
class Spent:
    """What a run has used: experiments, hours of work, money, GPU hours; experiments since the last
    that was kept; crashes in a row.
    """

    trials: int = 0
    hours: float = 0.0
    llm_cost: float = 0.0
    gpu_hours: float = 0.0
    since_kept: int = 0
    crashes: int = 0


def add_call(
    run: str, trial: int, purpose: str, prompt_tokens: int, output_tokens: int, cost: float
) -> None:
    """Append one call; one write below a page, so that a kill leaves the line whole or absent."""
    line = {
        "run": run,
        "trial": trial,
        "purpose": purpose,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "llm": cost,
    }
    LEDGER.parent.mkdir(parents=True, exist_ok=True)
    with open(LEDGER, "a+", encoding="utf-8") as file:
        file.seek(0)
        # by a kill: that line is lost, this one is not
        torn = not (file.read() or "\n").endswith("\n")
        file.write(("\n" if torn else "") + json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def calls(run: str, trial: int | None = None) -> dict[str, float]:
    """The agent's calls of a run, or of one of its experiments, added up."""
    lines = LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []
    return _add(
        each
        for each in map(_line, lines)
        if each.get("run") == run and trial in (None, each.get("trial"))
    )


def _line(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _add(parts: Iterable[dict[str, Any]]) -> dict[str, float]:
    whole = dict.fromkeys(_FIELDS, 0.0)
    for part in parts:
        for name in _FIELDS:
            whole[name] += number(part.get(name)) or 0.0
    return whole


def of_experiment(record: Record, training_s: float | None = None) -> dict[str, float]:
    """What planning and running an experiment cost. A stage whose report is still the commit's was
    not run, and cost nothing.

    Args:
        training_s: that it trained, as we saw it (None: nobody looked): a training that failed
            leaves no report, one that was taken up tells its last part, and one from DVC's
            run-cache tells what it cost when it was made.
    """
    parts = [calls(record.run, record.trial)] if record.run else []
    verdict, _ = _fresh("reports/judge.json", record.commit, Verdict)
    if verdict and verdict.opinion:  # a verdict is worded anew
        parts.append(_paid([verdict.opinion]))
    data, before = _fresh("reports/generate_data.json", record.commit, DataReport)
    # replies of a teacher are used again, and the report counts what they cost when they were made
    if data:
        held = _paid(before.teacher.values() if before else ())
        parts.append(
            {
                name: max(0.0, value - held[name])
                for name, value in _paid(data.teacher.values()).items()
            }
        )
    trained, _ = _fresh("reports/train.json", record.commit, TrainReport)
    seen = gpus_at_work() * training_s / 3600 if training_s else 0.0
    told = trained.gpu_hours if trained else 0.0
    hours = 0.0 if training_s == 0 else max(told, seen)
    return {name: round(value, 6) for name, value in _add([*parts, {"gpu_hours": hours}]).items()}


def _fresh(path: str, commit: str, kind: type[Kind]) -> tuple[Kind | None, Kind | None]:
    """A report of the working tree and the commit's, if they differ; None for what is not there,
    and for both if they are equal.
    """
    before = workspace.git("show", f"{commit}:{path}", check=False)
    try:
        text = (ROOT / path).read_text(encoding="utf-8")
    except OSError:
        return None, None
    return (None, None) if text == before else (kind.find_in(text), kind.find_in(before))


def _paid(replies: Iterable[Teaching | Opinion]) -> dict[str, float]:
    """What calls of language models cost, added up."""
    told = (
        {"llm": each.cost, "prompt_tokens": each.prompt_tokens, "output_tokens": each.output_tokens}
        for each in replies
    )
    return _add(told)


def gpus_at_work() -> int:
    """The GPUs on which the present configuration trains; those that the environment hides are
    none.
    """
    try:
        params = read_params("train", "launcher")
    except PawlError:  # broken since: a crash is recorded all the same
        return min(1, len(visible()))
    here = 0 if params.train.device == "cpu" else len(visible())
    if not here or params.launcher.kind == "local":
        return min(1, here)
    return (params.launcher.workers or here) * params.launcher.nodes


def spent(run: str, seconds: float, records: Iterable[Record]) -> Spent:
    """What a run has used so far, from its records and the calls of the experiment that it plans at
    the moment.
    """
    mine = [record for record in records if record.run == run and record.finished]
    # a starting point is no experiment of the run, but what it cost is
    tried = [record for record in mine if record.parent]
    since_kept = crashes = 0
    for record in tried:
        since_kept = 0 if record.status == "KEPT" else since_kept + 1
        crashes = crashes + 1 if record.status == "CRASHED" else 0
    planning = calls(run, len(tried) + 1)
    cost = math.fsum(number(record.cost.get("llm")) or 0.0 for record in mine) + planning["llm"]
    gpu = math.fsum(number(record.cost.get("gpu_hours")) or 0.0 for record in mine)
    return Spent(len(tried), seconds / 3600, cost, gpu, since_kept, crashes)


def why_stop(budget: Budget, used: Spent) -> str:
    """The limit that is reached, in words; "" while there is none. 0 is no limit."""
    if budget.trials and used.trials >= budget.trials:
        return f"{used.trials} experiments done"
    if budget.hours and used.hours >= budget.hours:
        return f"{used.hours:.2f} of {budget.hours:g} hours used"
    if budget.llm_cost and used.llm_cost >= budget.llm_cost:
        return f"{used.llm_cost:.4g} of {budget.llm_cost:g} spent on language models"
    if budget.gpu_hours and used.gpu_hours >= budget.gpu_hours:
        return f"{used.gpu_hours:.2f} of {budget.gpu_hours:g} GPU hours used"
    if budget.plateau and used.since_kept >= budget.plateau:
        return f"a plateau: none of the last {used.since_kept} experiments was kept"
    return f"{used.crashes} crashes in a row" if used.crashes >= CRASHES else ""


def in_words(used: Spent) -> str:
    money = f", {used.llm_cost:.4g} for language models" if used.llm_cost else ""
    return (
        f"spent {used.hours:.2f}"
        f" h{money}{f', {used.gpu_hours:.2f} GPU h' if used.gpu_hours else ''}"
    )
