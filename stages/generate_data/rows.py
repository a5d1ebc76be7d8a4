"""Training rows: from questions to conversations, and the filters that they pass."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from stages.common.questions import Question
from stages.generate_data.overlap import Hit, Index

Messages = list[dict[str, str]]


def messages(question: Question) -> Messages:
    """The row as a conversation, in OpenAI's form."""
    turns = [*question.context, ("user", question.question), ("assistant", question.answer)]
    return [{"role": role, "content": content} for role, content in turns]


@dataclass
class Counts:
    """What became of the rows of one source; `read` is the sum of the others. `unused`: beyond its `count` or `data.max_rows`."""

    read: int = 0
    bad: int = 0
    duplicates: int = 0
    contaminated: int = 0
    too_long: int = 0
    unused: int = 0
    kept: int = 0


@dataclass
class Kept:
    """A row that passed: its question, its source and its length in tokens."""

    question: Question
    source: str
    tokens: int


@dataclass
class Filters:
    """Exact duplicates, then decontamination, then length, over all sources together.

    Args:
        count_tokens: the length of a whole conversation as the model sees it.
        cutoff_len: tokens; a longer row is removed, never cut, since a cut row ends where its answer does not.
    """

    index: Index
    count_tokens: Callable[[Messages], int]
    cutoff_len: int
    hits: Counter[Hit] = field(default_factory=Counter)
    _seen: set[bytes] = field(default_factory=set)

    def keep(self, question: Question, source: str, counts: Counts) -> Kept | None:
        """The row if it passes, counted either way."""
        counts.read += 1
        text = "\0".join([*(f"{role}\0{content}" for role, content in question.context), question.question, question.answer])
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            counts.duplicates += 1
            return None
        self._seen.add(digest)
        hits = self.index.find([*(content for _, content in question.context), question.question], question.answer)
        if hits:
            counts.contaminated += 1
            self.hits.update(hits)
            return None
        tokens = self.count_tokens(messages(question))
        if tokens > self.cutoff_len:
            counts.too_long += 1
            return None
        return Kept(question, source, tokens)


def quantiles(lengths: Iterable[int]) -> dict[str, int]:
    """{total, p50, p90, p99, max} of token counts; a quantile is the smallest length that so many rows do not exceed."""
    ordered = sorted(lengths)
    at = {f"p{percent}": ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 90, 99)}
    return {"total": sum(ordered), **at, "max": ordered[-1]}


def table(rows: Iterable[Kept]) -> Iterable[dict[str, Any]]:
    """The rows of data/train/train.jsonl."""
    return ({"messages": messages(row.question)} for row in rows)
