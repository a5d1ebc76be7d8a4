"""The shapes in which a row of a file states a question and its answer.

| format            | keys of a row |
|-------------------|---|
| question          | question, answer; perhaps reasoning, category, difficulty |
| alpaca            | instruction, output; perhaps input, system, history |
| messages          | messages: [{role, content}, ...] in turn, ending with the assistant |
| sharegpt          | conversations: [{from, value}, ...], the same |
| prompt_completion | prompt (text or messages), completion |
| dpo               | prompt, question, instruction or messages; chosen and rejected (text, a message, or whole conversations) |
| kto               | any of the first five, and label or kto_tag (true, false) |
| text              | text: no question at all, for continued pre-training; never told by the keys (see stages/generate_data/sources.py) |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

_WORDS, _DIGITS = {"true": True, "false": False}, {"1": True, "0": False}
_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True)
class Question:
    """One question and its answer.

    Attributes:
        category: the reasoning_gym task, or the file's own `category` ("" where it has none).
        context: turns before the question, as (role, content); only rows with several turns have any.
        reasoning: how the answer comes about, where the row tells it apart from the answer.
        rejected: the worse answer of a preference pair.
        label: whether the answer is a good one, of a KTO row.
        plain: no question at all but plain text, which stands in `question`; its `answer` is empty.
        entry: what reasoning_gym needs to score another answer.
    """

    question: str
    answer: str
    category: str = ""
    context: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    rejected: str = ""
    label: bool | None = None
    plain: bool = False
    difficulty: str = ""
    entry: Any = field(default=None, compare=False, repr=False)


def question_of(value: Any, form: str = "", *, unanswered: bool = False) -> Question:
    """One row. ValueError says what is wrong with it.

    Args:
        unanswered: a question without an answer is a row too (its `answer` is empty), for a teacher to answer.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {'an array' if isinstance(value, list) else type(value).__name__}")
    if unanswered and (bare := _bare(value)):
        value = bare
    extra: Any = {name: _plain(value.get(name)) for name in ("category", "difficulty")}
    if form == "text":
        return Question(_text(value.get("text"), "text"), "", plain=True, **extra)
    paired, labelled = value.keys() >= {"chosen", "rejected"}, value.keys() & {"label", "kto_tag"}
    if form == "dpo" or (not form and paired and value["chosen"] is not None):
        return replace(_pair(value), **extra)
    if unanswered and value.get("answer", "missing") == "":
        return Question(_text(value["question"], "question"), "", context=_history(value), **extra)
    question = _answered(value, "" if form == "kto" else form)
    given = value[min(labelled)] if labelled else None
    known = _WORDS | _DIGITS if form == "kto" or "kto_tag" in labelled else _WORDS  # the numbers of a column "label" may be classes
    label = known.get(str(given).strip().lower())  # a CSV has text alone
    if form == "kto" or (not form and label is not None):
        if label is None:
            raise ValueError(f"label is {'missing' if given is None else 'neither true nor false'}")
        question = replace(question, label=label)
    return replace(question, **extra)


def _bare(value: dict[str, Any]) -> dict[str, Any] | None:
    """A row that asks without answering, as {question, answer: ""}."""
    if any(value.get(name) not in (None, "") for name in ("answer", "output", "completion", "messages", "conversations", "chosen")):
        return None
    asked = _asked(value) if value.get("instruction") else value.get("question", value.get("prompt"))
    return {**value, "question": asked, "answer": ""}


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _answered(value: dict[str, Any], form: str) -> Question:
    """A row with one answer."""
    has = value.keys()
    form = form or next((name for name, keys in _KEYS.items() if has >= keys), "")
    if not form:
        keys = ", ".join(map(repr, list(value)[:8])) or "nothing"
        raise ValueError(f"expected question and answer, instruction and output, or messages; found {keys:.200}")
    if missing := sorted(_KEYS[form] - has):
        raise ValueError(f"{missing[0]} is missing")
    if form in ("messages", "sharegpt"):
        return _conversation(value["messages" if form == "messages" else "conversations"], value.get("system"))
    if form == "prompt_completion":
        turns = _turns(value["prompt"], "prompt", "user")
        return _of_turns([*_led(turns, value), *_turns(value["completion"], "completion", "assistant")])
    context = _history(value) if form == "alpaca" else tuple(_led([], value))
    if form == "alpaca":
        return Question(_asked(value), _text(value["output"], "output"), context=context)
    reasoning = value.get("reasoning")
    told = _text(reasoning, "reasoning") if reasoning not in (None, "") else ""
    return Question(_text(value["question"], "question"), _text(value["answer"], "answer"), context=context, reasoning=told)


_KEYS = {
    "messages": {"messages"}, "sharegpt": {"conversations"}, "question": {"question", "answer"}, "alpaca": {"instruction", "output"},
    "prompt_completion": {"prompt", "completion"},
}  # fmt: skip
FORMATS = ("", *_KEYS, "dpo", "kto")


def _asked(value: dict[str, Any]) -> str:
    more = value.get("input")
    return _text(value["instruction"], "instruction") + ("" if more in (None, "") else "\n" + _text(more, "input"))


def _led(turns: list[tuple[str, str]], value: dict[str, Any]) -> list[tuple[str, str]]:
    """Turns after the row's own system prompt, where it has one beside them."""
    system = value.get("system")
    if system is None or (isinstance(system, str) and not system.strip()) or (turns[:1] and turns[0][0] == "system"):
        return turns
    return [("system", _text(system, "system")), *turns]


def _history(value: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    turns = _led([], value)
    for pair in value.get("history") or []:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("history is not a list of pairs")
        turns += [("user", _text(pair[0], "history")), ("assistant", _text(pair[1], "history"))]
    return tuple(turns)


def _pair(value: dict[str, Any]) -> Question:
    """A preference pair: one prompt, a better and a worse answer."""
    for name in ("chosen", "rejected"):
        if value.get(name) is None:
            raise ValueError(f"{name} is missing")
    chosen, rejected = (_turns(value[name], name, "assistant") for name in ("chosen", "rejected"))
    if "instruction" in value:
        asked = [*_history(value), ("user", _asked(value))]
    else:
        key = next((name for name in ("prompt", "question", "messages", "conversations") if value.get(name) is not None), "")
        asked = _turns(value[key], key, "user") if key else chosen[:-1]
    if len(chosen) > 1 and chosen[:-1] == rejected[:-1]:  # whole conversations, with or without a prompt beside them
        asked = chosen[:-1]
    elif len(chosen) > 1 or len(rejected) > 1:
        raise ValueError("chosen and rejected do not answer the same conversation")
    asked = _led(asked, value)
    better, worse = _of_turns([*asked, chosen[-1]]), _of_turns([*asked, rejected[-1]])
    if better.answer.strip() == worse.answer.strip():
        raise ValueError("chosen and rejected are the same")
    return replace(better, rejected=worse.answer)


def _turns(value: Any, name: str, role: str) -> list[tuple[str, str]]:
    """Text, one message or a list of messages, as (role, content)."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return [(role, _text(value, name))]
    if not value or not all(isinstance(message, dict) for message in value):
        raise ValueError(f"{name} is not a list of messages")
    turns = []
    for message in value:
        content = message.get("content", message.get("value"))
        given = message.get("role", message.get("from"))
        turns.append((_ROLES.get(given, str(given)), _text(content, "content")))
    return turns


def _conversation(messages: Any, system: Any) -> Question:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages is not a list of objects")
    turns = _turns(messages, "messages", "user") if messages else []
    if isinstance(system, str) and system.strip():
        turns = [("system", system), *turns]
    return _of_turns(turns)


def _of_turns(turns: list[tuple[str, str]]) -> Question:
    roles = [role for role, _ in turns]
    if roles[:1] == ["system"]:
        roles = roles[1:]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        raise ValueError("messages must be user and assistant in turn, ending with assistant, after at most one system message")
    return Question(turns[-2][1], turns[-1][1], context=tuple(turns[:-2]))


def _text(value: Any, name: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = json.dumps(value, allow_nan=False)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {'missing' if value is None else 'not text'}")
    if not value.strip():
        raise ValueError(f"{name} is empty")
    if "\0" in value:
        raise ValueError(f"{name} holds a NUL character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a lone surrogate, which is no character") from None
    return value
