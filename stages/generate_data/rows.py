"""Training rows: from questions to what LLaMA-Factory reads, and what became of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stages.common.shapes import Question

Messages = list[dict[str, str]]
Seen = Messages | str
"""What training sees of a row: a conversation, or plain text."""


@dataclass
class Row:
    """A row on its way: where it comes from (file:line, or the number of the draw) and what it
    says.
    """

    question: Question
    source: str
    where: str


@dataclass
class Counts:
    """What became of the rows of one source; `read` is the sum of the others. `unused`: beyond its
    count, its share or `data.max_rows`.

    `unverified`: the teacher's answer was not shown to be right; `refused`: the teacher's server
    would not answer.
    """

    read: int = 0
    bad: int = 0
    refused: int = 0
    unverified: int = 0
    empty: int = 0
    refusal: int = 0
    format: int = 0
    language: int = 0
    duplicates: int = 0
    near_duplicates: int = 0
    contaminated: int = 0
    too_long: int = 0
    unused: int = 0
    kept: int = 0

    def removed(self) -> int:
        """How many rows are gone before a sample is drawn."""
        return sum(
            value for name, value in vars(self).items() if name not in ("read", "unused", "kept")
        )


def kind_of(question: Question) -> str:
    if question.plain:
        return "pt"
    if question.rejected:
        return "dpo"
    return "kto" if question.label is not None else "sft"


def answer_of(question: Question, think_tags: bool) -> str:
    """The assistant's turn. The tags are written here and nowhere else, so that no model can forget
    to close one.
    """
    if not question.reasoning:
        return question.answer
    reasoning = question.reasoning.strip()
    return (
        f"<think>\n{reasoning}\n</think>\n\n{question.answer}"
        if think_tags
        else f"{reasoning}\n\n{question.answer}"
    )


def messages(question: Question, think_tags: bool = False) -> Messages:
    """The row as a conversation, in OpenAI's form; of a pair, the better answer."""
    turns = [
        *question.context,
        ("user", question.question),
        ("assistant", answer_of(question, think_tags)),
    ]
    return [{"role": role, "content": content} for role, content in turns]


def seen(question: Question, think_tags: bool) -> list[Seen]:
    """All that training sees of a row: of a pair, two conversations."""
    if question.plain:
        return [question.question]
    chosen = messages(question, think_tags)
    return (
        [chosen, [*chosen[:-1], {"role": "assistant", "content": question.rejected}]]
        if question.rejected
        else [chosen]
    )


def record(question: Question, think_tags: bool) -> dict[str, Any]:
    """The row of data/train/train.jsonl."""
    if question.plain:
        return {"text": question.question}
    whole = messages(question, think_tags)
    if question.rejected:
        return {
            "messages": whole[:-1],
            "chosen": whole[-1],
            "rejected": {"role": "assistant", "content": question.rejected},
        }
    return (
        {"messages": whole}
        if question.label is None
        else {"messages": whole, "label": question.label}
    )


def dataset_info(kind: str, names: Iterable[str]) -> dict[str, Any]:
    """What LLaMA-Factory 0.9.5 is told of the files. It takes a tag that is absent for None, so all
    are named; "sharegpt" is its name for role-and-content turns.
    """
    if kind == "pt":
        return {
            name: {"file_name": f"{name}.jsonl", "columns": {"prompt": "text"}} for name in names
        }
    tags = {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "system_tag": "system",
        "observation_tag": "observation",
        "function_tag": "function",
    }
    columns = {"messages": "messages"}
    if kind == "dpo":
        columns |= {"chosen": "chosen", "rejected": "rejected"}
    elif kind == "kto":
        columns |= {"kto_tag": "label"}
    ranking = {"ranking": True} if kind == "dpo" else {}
    return {
        name: {
            "file_name": f"{name}.jsonl",
            "formatting": "sharegpt",
            **ranking,
            "columns": columns,
            "tags": tags,
        }
        for name in names
    }


def quantiles(lengths: Iterable[int]) -> dict[str, int]:
    """{total, p50, p90, p99, max} of token counts; a quantile is the smallest length that so many
    rows do not exceed.
    """
    ordered = array("I", sorted(lengths))
    at = {
        f"p{percent}": ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
        for percent in (50, 90, 99)
    }
    return {"total": sum(ordered), **at, "max": ordered[-1]}
