"""The share of verdicts that change when the same weights are evaluated twice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from stages.common import noise
from stages.common.reports.evaluation import Answer
from stages.common.reports.noise import Counts, NoiseReport
from stages.common.schema import Config
from stages.common.scoring import Task
from stages.evaluate import infer, results

Ask = Callable[[Config, int], AbstractContextManager[results.Answered]]
"""Asks every item with these parameters, as the run of this number."""


def measure(ask: Ask, tasks: list[Task], params: Config, root: Path, model: str) -> str:
    """Evaluate the validation items twice, write the figures below `root`, and say them.

    The second run has half as many requests in flight: so the batches differ, as they do between
    two machines.

    Raises:
        PawlError: an evaluation failed. The replies so far are kept, and nothing is written.
    """
    again = copy.deepcopy(params)
    many = infer.in_flight(params.engine, params.evaluate)
    again.evaluate.concurrency = max(1, many // 2)
    with ExitStack() as stack:
        first = stack.enter_context(ask(params, 1))
        second = stack.enter_context(ask(again, 2))
        rows, summary = results.split("val", tasks, first, params)
        others, _ = results.split("val", tasks, second, again)
        overall, benchmarks = compare(rows, others)
        report = NoiseReport(
            **dict(overall),
            benchmarks=benchmarks,
            model=model,
            concurrency=[many, again.evaluate.concurrency],
            fingerprint=summary.fingerprint,
            items_sha256=summary.items_sha256,
        )
        path = root / noise.place(summary)
        report.write(path)
    return (
        f"noise: {report.flips} of {report.answers} verdicts changed, and {report.texts} texts\n"
        f"  kept:  {path.relative_to(root)} (commit it: the page shows it beside each "
        "verdict of this configuration)"
    )


def compare(rows: list[Answer], others: list[Answer]) -> tuple[Counts, dict[str, Counts]]:
    """Counts of two evaluations of the same items, of all and of each benchmark."""
    pairs = list(zip(rows, others, strict=True))
    assert all((one.item_id, one.repeat) == (other.item_id, other.repeat) for one, other in pairs)
    names = sorted({row.benchmark for row in rows})
    return _counts(pairs), {
        name: _counts([pair for pair in pairs if pair[0].benchmark == name]) for name in names
    }


def _counts(pairs: list[tuple[Answer, Answer]]) -> Counts:
    return Counts(
        answers=len(pairs),
        flips=sum(one.correct != other.correct for one, other in pairs),
        texts=sum(one.prediction != other.prediction for one, other in pairs),
    )
