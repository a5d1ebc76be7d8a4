"""From items to answers to rows: the server, a second one where the first died, and what each split's rows add up to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common import engine, items, llm
from stages.common.files import ROOT, sha256_text
from stages.common.schema import Config
from stages.common.server import ServerDiedError
from stages.evaluate import benchmark, details, infer, judged, sandbox, score
from stages.evaluate.benchmark import Scorer, Task
from stages.evaluate.journal import Journal
from stages.evaluate.think import Thinking


@dataclass(frozen=True)
class Answered:
    """Every item's replies.

    Attributes:
        replies: by repeat, task and item.
        fingerprint: what they depend on beside the questions: model, template, engine, sampling, and worked examples.
    """

    replies: infer.Replies
    scorers: list[Scorer]
    fingerprint: dict[str, Any]

    @property
    def short(self) -> str:
        """Its hash, for each row."""
        return sha256_text(json.dumps(self.fingerprint, sort_keys=True))[:16]


@contextmanager
def answered(
    tasks: list[Task], params: Config, base: dict[str, Any], model_dir: Path, adapter: Path | None, log: Path
) -> Iterator[Answered]:
    """All items' replies, for as long as the block lasts; the journal that kept them is removed when it ends without an error.

    A server that dies is started once more, and asked what is missing.

    Raises:
        PawlError: see `infer.ask` and `engine.serve`.
    """
    scorers: list[Scorer] = []

    def load() -> None:  # OpenCompass's imports take a while, as does the server's start
        scorers.extend(benchmark.scorer(task, params.benchmark) for task in tasks)

    for attempt in (1, 2):
        try:
            with engine.serve(
                params.engine, model_dir, adapter, log, weights_sha256=base["weights_sha256"],
                meanwhile=None if scorers else load, beside=_beside(),
            ) as endpoint:  # fmt: skip
                fingerprint = endpoint.fingerprint | infer.settings(params.evaluate) | infer.prompts_sha256(tasks)
                journal = Journal(ROOT / ".pawl" / "eval", fingerprint | {"base_url": params.engine.base_url})
                try:
                    replies = infer.ask(endpoint, tasks, params.engine, params.evaluate, journal, _right(tasks, scorers, params))
                finally:
                    journal.close()
            break
        except ServerDiedError as error:
            if attempt == 2:
                raise
            print(f"evaluate: {error.what.splitlines()[0]}; starting it once more")
    yield Answered(replies, scorers, fingerprint)
    journal.remove()


def split(which: str, tasks: list[Task], found: Answered, params: Config) -> tuple[list[items.Row], dict[str, Any]]:
    """Rows and summary of one split; the rows of a repeat follow those of the one before."""
    thinking, rows = _thinking(params), []
    for repeat, replies in enumerate(found.replies):
        for task, scorer, answers in zip(tasks, found.scorers, replies, strict=True):
            if task.split == which:
                instead = _instead(task, scorer, params)
                rows += score.rows(
                    task, answers, scorer, thinking=thinking, repeat=repeat, fingerprint=found.short, instead=instead
                )  # fmt: skip
    summary = items.summarize(rows) | {
        "split": which, "items_sha256": benchmark.items_sha256([task for task in tasks if task.split == which]),
    }  # fmt: skip
    if thinking.closing:
        summary["thinking"] = dict(thinking.counts)
    return rows, summary


def _instead(task: Task, scorer: Scorer, params: Config) -> score.Score | None:
    if task.scoring and task.scoring["executes_code"]:
        return sandbox.score(scorer)
    if scorer.evaluator is None:
        return judged.scores(params.engine.judge, ROOT / ".pawl" / "eval", scorer)
    return None


def _thinking(params: Config) -> Thinking:
    return Thinking(params.evaluate.think_open, params.evaluate.think_close, params.evaluate.think_begun)


def _right(tasks: list[Task], scorers: list[Scorer], params: Config) -> Any:
    """Whether a reply is right, for the progress: of validation items alone, whose scorers are cheap."""
    by_task = dict(zip(map(id, tasks), scorers, strict=True))

    def right(task: Task, index: int, reply: llm.Reply) -> bool | None:
        scorer = by_task[id(task)]
        if task.split != "val" or type(scorer.evaluator).__name__ not in details.ADAPTERS:
            return None  # nobody who decides sees how a test goes
        alone = Task(task.name, task.split, [task.items[index]], task.scoring)
        return score.rows(alone, [reply], scorer, thinking=_thinking(params))[0].correct

    return right


def _beside() -> Path | None:
    """The adapter that this run's other evaluations ask for, where it has been trained already."""
    path = ROOT / "models" / "adapter"
    return path if (path / "adapter_config.json").is_file() else None
