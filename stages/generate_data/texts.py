"""The text of a row as the search for benchmark items sees it: all of it, whatever its keys and
however deep it lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from stages.common.errors import PawlError
from stages.common.shapes import Question
from stages.generate_data.overlap import Turns

# lists and objects within each other; a row that goes deeper is refused, since part of it would not
# be searched
_DEEPEST = 200
_TEXTS = (
    "question",
    "answer",
    "instruction",
    "input",
    "output",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "system",
    "reasoning",
    "messages",
    "conversations",
    "history",
    "text",
)
_ANSWERS = (
    "answer",
    "output",
    "completion",
    "chosen",
    "rejected",
    "reasoning",
    "response",
    "targets",
    "solution",
)
_ROLES = ("user", "assistant", "system", "human", "gpt", "tool")
_SEEN = ("context", "question", "reasoning", "answer", "rejected")
# of a Question: they tell of a row and stand in no training file
_UNTRAINED = ("category", "difficulty", "entry")


def turns(question: Question) -> Turns:
    """A training row: every text of it, also of a field that rows gain later."""
    prompts = [*(content for _, content in question.context), question.question]
    others = (field.name for field in fields(question) if field.name not in (*_SEEN, *_UNTRAINED))
    more = [text for name in others for _, text in _leaves(getattr(question, name))]
    return Turns(
        [*prompts, *more],
        [text for text in (question.reasoning, question.answer, question.rejected) if text],
    )


def of_row(row: Any, where: str) -> Turns:
    """A row of a file; it need not be fit for training.

    Raises:
        PawlError: no text, or text deeper than is searched.
    """
    found = Turns([], [])
    for name, role, text in _named(row, where):
        is_answer = role in ("assistant", "gpt") if role else name in _ANSWERS
        (found.answers if is_answer else found.prompts).append(text)
    if not found.prompts and not found.answers:
        raise PawlError(
            "a row without text", where=where, fix=f"the usual fields are: {', '.join(_TEXTS)}"
        )
    return found


def of_item(row: Any, where: str) -> Turns:
    """A benchmark item: its usual fields, since an id or a licence is no part of a question; all
    text where they hold no question.

    Raises:
        PawlError: none of the usual fields is there.
    """
    usual = {key: row[key] for key in _TEXTS if row.get(key)} if isinstance(row, dict) else {}
    if not usual:
        raise PawlError(
            "an item without text in one of the usual fields",
            where=where,
            fix=f"the fields are: {', '.join(_TEXTS)}",
        )
    found = of_row(usual, where)
    return found if found.prompts else of_row(row, where)


def _named(row: Any, where: str) -> Iterator[tuple[str, str, str]]:
    """(key, role, text) of every text of a row, those of the usual fields first."""
    if not isinstance(row, dict):
        return
    if (
        isinstance(row.get("instruction"), str)
        and isinstance(row.get("input"), str)
        and row["input"]
    ):
        row = {**row, "instruction": f"{row['instruction']}\n{row['input']}", "input": ""}
    for name in sorted(row, key=lambda name: _TEXTS.index(name) if name in _TEXTS else len(_TEXTS)):
        try:
            yield from (
                (name, role, text)
                for role, text in _leaves(row[name] if name in _TEXTS else {name: row[name]})
            )
        except RecursionError:
            what = f"a row with more than {_DEEPEST} lists and objects in each other"
            raise PawlError(what, where=where, fix="flatten or remove that row") from None


def _leaves(value: Any, role: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """(role, text) of every text and number below a value. A key of several words is text; so is
    what a text holds as JSON.

    Raises:
        RecursionError: it goes deeper than _DEEPEST.
    """
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, bool) or value is None or value == "":
        return
    if isinstance(value, str | int | float):
        yield role, str(value)
        # the arguments of a tool call: escapes would hide words
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            yield from _leaves(_decoded(value), role, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part, role, depth + 1)
    elif isinstance(value, dict):
        given = value.get("role", value.get("from"))
        own = given if isinstance(given, str) and given in _ROLES else role
        for key, part in value.items():
            if " " in str(key):
                yield own, str(key)
            if not (part is given and own == given and key in ("role", "from")):
                yield from _leaves(part, own, depth + 1)


def _decoded(text: str) -> Any:
    """What a text is as JSON: its lists and objects, and None where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None
