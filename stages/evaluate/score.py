"""From replies to per-item rows."""

from __future__ import annotations

from collections.abc import Sequence

from stages.common.errors import PawlError
from stages.common.llm import Reply
from stages.common.reports.evaluation import Answer, Row
from stages.common.reports.test_results import TestRow
from stages.common.scoring import Scorer, Task
from stages.common.verdicts import TOLERANCE, Score, Verdicts, decide
from stages.evaluate.think import Thinking

KINDS: dict[str, type[Answer]] = {"val": Row, "test": TestRow}


def rows(
    task: Task,
    replies: Sequence[Reply],
    scorer: Scorer,
    *,
    thinking: Thinking | None = None,
    repeat: int = 0,
    fingerprint: str = "",
    instead: Score | None = None,
    told: dict[str, list[Verdicts]] | None = None,
) -> list[Answer]:
    """One row for each item, in the order of the items.

    Args:
        instead: scores in the evaluator's place, if it must run elsewhere (code) or asks a
            language model.
        told: what else the verdicts say is added here, by the task's name.

    Raises:
        PawlError: fewer replies than items, an evaluator that fails, or rows that do not reproduce
            its metric.
    """
    if len(replies) != len(task.items):
        what = f"{len(replies)} replies to {len(task.items)} items of {task.name}"
        raise PawlError(what, fix="run again")
    thinking = thinking or Thinking()
    answers, texts = [], []
    for reply in replies:
        answer = thinking.strip(reply.text, cut_off=reply.finish_reason == "length")
        answers.append(answer)
        texts.append("" if reply.missing else answer.text)
    verdicts = decide(task, texts, scorer, instead)
    if told is not None:
        told.setdefault(task.name, []).append(verdicts)
    kind = KINDS[task.split]
    found = []
    pairs = zip(task.items, replies, answers, verdicts.scores, strict=True)
    for item, reply, answer, score in pairs:
        row = kind(
            item_id=item["item_id"],
            benchmark=task.name,
            split=task.split,
            correct=score >= 1 - TOLERANCE,
            score=score,
            prediction=reply.text,
            gold=item["answer"],
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            truncated=reply.finish_reason == "length" or answer.unclosed,
            repeat=repeat,
            fingerprint=fingerprint,
        )
        found.append(row)
    return found
