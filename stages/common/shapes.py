"""The shapes in which a row of a file states a question and its answer.

| format            | keys of a row |
|-------------------|---|
| question          | question, answer; perhaps context, choices (a list, or columns A, B, ...),
reasoning, system, history |
| alpaca            | instruction, output; perhaps input, context, reasoning, system, history |
| messages          | messages: [{role, content}, ...] in turn, ending with the assistant; perhaps
system |
| sharegpt          | conversations: [{from, value}, ...], the same |
| prompt_completion | prompt (text or messages), completion; perhaps reasoning, system |
| dpo               | prompt, question, instruction or messages; chosen and rejected (text, a
message, or whole conversations) |
| kto               | any of the first five, and label or kto_tag (a good answer or a bad one) |
| text              | text: no question at all, for continued pre-training; never told by the keys
(see stages/generate_data/sources.py) |

Also category and difficulty, and the other names `query`, `response`, `passage`, `system_prompt`.
Any other key is harmless and told (id; see fields.py), or the row is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from stages.common import choices as multiple
from stages.common.fields import (
    Columns,
    Unused,
    is_empty,
    left_out,
    number_text,
    refuse_contrary,
    refuse_media,
    refuse_unclear,
    text_of,
)
from stages.common.turns import Turn, in_order, led, turns_of

_PLAIN = {
    "true": True,
    "false": False,
    "desirable": True,
    "undesirable": False,
    "thumbs_up": True,
    "thumbs_down": False,
    "\U0001f44d": True,
    "\U0001f44e": False,
}
_CLASSES = {
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
    "good": True,
    "bad": False,
    "accepted": True,
    "rejected": False,
    "like": True,
    "dislike": False,
    "up": True,
    "down": False,
    "y": True,
    "n": False,
    "t": True,
    "f": False,
}
"""Labels that say by themselves that an answer is good or bad, and those that might be classes
too.
"""
_OTHER_NAMES = {"query": "question", "passage": "context", "system_prompt": "system"}
_ANSWERED = {"instruction": "output", "question": "answer", "prompt": "completion"}
"""What `response` is called in our words, by what asks."""


@dataclass(frozen=True)
class Question:
    """One question and its answer.

    Attributes:
        category: the reasoning_gym task, or the file's own `category` ("" where it has none).
        context: turns before the question, as (role, content); only rows with several turns have
            any.
        reasoning: how the answer comes about, where the row tells it apart from the answer.
        rejected: the worse answer of a preference pair.
        label: whether the answer is a good one, of a KTO row.
        plain: no question at all but plain text, which stands in `question`; its `answer` is empty.
        entry: what reasoning_gym needs to score another answer.
        unused, choices: keys of the row that change nothing of what it means; (letter, text) of
            what the question asks to choose from.
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
    unused: tuple[str, ...] = field(default=(), compare=False, repr=False)
    choices: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)


def question_of(value: Any, form: str = "", *, unanswered: bool = False) -> Question:
    """One row. ValueError says what is wrong with it.

    Args:
        unanswered: a question without an answer is a row too (its `answer` is empty), for a teacher
            to answer.
    """
    if not isinstance(value, dict):
        raise ValueError(
            "expected a JSON object, found"
            f" {'an array' if isinstance(value, list) else type(value).__name__}"
        )
    if form == "text":
        refuse_media(value)
        rest = tuple(
            sorted(
                name
                for name in value
                if name not in ("text", *_EXTRA) and not is_empty(value[name])
            )
        )
        return Question(
            text_of(value.get("text"), "text"), "", plain=True, unused=rest, **_extra(value)
        )
    value = _renamed(value)
    refuse_unclear(value)
    if unanswered and (bare := _bare(value)):
        question, used = bare
    elif form == "dpo" or (
        not form and value.keys() >= {"chosen", "rejected"} and value["chosen"] is not None
    ):
        question, used = _pair(value)
    else:
        question, used = _answered(value, "" if form == "kto" else form)
        label, labelled = _label(value, form, used)
        question = replace(question, label=label)
        used |= labelled
    unused = {*question.unused, *left_out(value, used | set(_EXTRA))}
    return replace(question, unused=tuple(sorted(unused)), **_extra(value))


_EXTRA = ("category", "difficulty")


def _extra(value: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value.get(name)) for name in _EXTRA}


def _renamed(value: dict[str, Any]) -> dict[str, Any]:
    """Usual other names of our keys, where the row has not ours."""
    names = {
        other: ours
        for other, ours in _OTHER_NAMES.items()
        if other in value and is_empty(value.get(ours))
    }
    if "response" in value:
        asks = {names.get(name, name) for name in value}
        ours = next((answer for name, answer in _ANSWERED.items() if name in asks), "")
        if ours and is_empty(value.get(ours)):
            names["response"] = ours
    return {
        names.get(name, name): part for name, part in value.items() if name not in names.values()
    }


def _bare(value: dict[str, Any]) -> tuple[Question, set[str]] | None:
    """A row that asks without answering, and the keys that it does so with."""
    if any(
        not is_empty(value.get(name))
        for name in (
            "answer",
            "output",
            "completion",
            "messages",
            "conversations",
            "chosen",
            "answers",
        )
    ):
        return None
    answers = {"answer", "output", "completion"}
    if value.get("instruction"):
        return (
            Question(_asked(value), "", context=_history(value)),
            {"instruction", "input", "context", "system", "history"} | answers,
        )
    name = "question" if "question" in value else "prompt"
    asked, used = _stated({**value, "question": value.get(name)})
    return (
        Question(asked, "", context=_history(value)),
        used | {name, "system", "history"} | answers,
    )


def _plain(value: Any) -> str:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return number_text(value, "category or difficulty") if value == value else ""
    return value if isinstance(value, str) else ""


def _label(value: dict[str, Any], form: str, used: set[str]) -> tuple[bool | None, set[str]]:
    """Whether the answer is a good one, where the row says so, and the key that does.

    Raises:
        ValueError: a label that may say so, or may be a class.
    """
    name = next(
        (
            name
            for name in ("kto_tag", "label")
            if not is_empty(value.get(name)) and name not in used
        ),
        "",
    )
    if not name:
        if form == "kto":
            raise ValueError("label is missing")
        return None, set()
    given = value[name]
    said = text_of(given, name) if not isinstance(given, bool | list | dict) else str(given)
    said = re.sub(r"(?<=[a-z])[-\s]+(?=[a-z])", "_", said.strip().lower()).removesuffix(".0")
    if said in _PLAIN:
        return _PLAIN[said], {name}
    sure = form == "kto" or name == "kto_tag"
    if said in _CLASSES and (sure or used & {"messages", "conversations", "completion"}):
        return _CLASSES[said], {name}
    if sure:
        raise ValueError(f"{name} is {said!r:.40}, neither true nor false")
    if (
        said not in _CLASSES
        and isinstance(given, str)
        and used & {"question", "instruction"}
        and not said.replace(".", "").isdigit()
    ):
        return None, set()  # the name of a class, as harmless as a category
    raise Unused(
        name,
        f"{name!r} is {said!r:.40}, which may say that the answer is good or bad, or be a class",
    )


def _answered(value: dict[str, Any], form: str) -> tuple[Question, set[str]]:
    """A row with one answer, and the keys that it is made of."""
    has = value.keys()
    form = form or next((name for name, keys in _KEYS.items() if has >= keys), "")
    if not form and "question" in has and has & {*multiple.ANSWERS, "answers"}:
        form = "question"
    if not form:
        keys = ", ".join(map(repr, list(value)[:8])) or "none"
        what = (
            "expected question and answer, instruction and output, or messages; columns found:"
            f" {keys:.200}"
        )
        raise Columns(what, value)
    if form in ("messages", "sharegpt"):
        key = "messages" if form == "messages" else "conversations"
        _need(value, form)
        return _conversation(value[key], value.get("system")), {key, "system"}
    if form == "question":
        return _plainly(value)
    _need(value, form)
    used = {*_KEYS[form], "system", "reasoning"}
    if form == "prompt_completion":
        turns = turns_of(value["prompt"], "prompt", "user")
        question = _of_turns(
            [
                *led(turns, value.get("system")),
                *turns_of(value["completion"], "completion", "assistant"),
            ]
        )
        return replace(question, reasoning=_reasoning(value) or question.reasoning), used
    question = Question(
        _asked(value),
        text_of(value["output"], "output"),
        context=_history(value),
        reasoning=_reasoning(value),
    )
    return question, used | {"input", "context", "history"}


_KEYS = {
    "messages": {"messages"},
    "sharegpt": {"conversations"},
    "question": {"question", "answer"},
    "alpaca": {"instruction", "output"},
    "prompt_completion": {"prompt", "completion"},
}
FORMATS = ("", *_KEYS, "dpo", "kto")


def _need(value: dict[str, Any], form: str) -> None:
    if missing := sorted(_KEYS[form] - value.keys()):
        raise Columns(
            f"{missing[0]} is missing; columns found: {', '.join(map(repr, list(value)[:8])):.200}",
            value,
        )


def _plainly(value: dict[str, Any]) -> tuple[Question, set[str]]:
    """Question and answer, perhaps with a passage before them or choices after them."""
    if "question" not in value:
        _need(value, "question")
    asked, used = _stated(value)
    choices, _ = multiple.choices_of(value)
    if choices:
        answer = multiple.letter_of(value, choices)
        used |= set(multiple.ANSWERS)
    elif "answer" not in value and "answers" in value:
        answer = _only(value["answers"])
        used.add("answers")
    else:
        _need(value, "question")
        answer = text_of(value["answer"], "answer")
        used.add("answer")
    used |= {"question", "reasoning", "system", "history"}
    return (
        Question(
            asked,
            answer,
            context=_history(value),
            reasoning=_reasoning(value),
            choices=tuple(choices.items()),
        ),
        used,
    )


def _stated(value: dict[str, Any]) -> tuple[str, set[str]]:
    """The question with its passage and its choices, and the keys that they stand in."""
    asked = text_of(value["question"], "question")
    passage = value.get("context")
    if not is_empty(passage):
        parts = passage if isinstance(passage, list) else [passage]
        asked = "\n\n".join([*(text_of(part, "context") for part in parts), asked])
    choices, keys = multiple.choices_of(value)
    return (multiple.asked(asked, choices) if choices else asked), keys | {"context", "question"}


def _only(answers: Any) -> str:
    """The one answer of a list of them (SQuAD's form too)."""
    found = answers.get("text") if isinstance(answers, dict) else answers
    if not isinstance(found, list) or not found:
        raise ValueError("answers is not a list of texts, or is empty")
    texts = {text_of(one, "answers").strip() for one in found}
    if len(texts) > 1:
        raise ValueError(f"answers holds {len(texts)} different answers: keep one, as answer")
    return text_of(found[0], "answers")


def _reasoning(value: dict[str, Any]) -> str:
    return "" if is_empty(value.get("reasoning")) else text_of(value["reasoning"], "reasoning")


def _asked(value: dict[str, Any]) -> str:
    more = [
        text_of(value[name], name) for name in ("input", "context") if not is_empty(value.get(name))
    ]
    return "\n".join([text_of(value["instruction"], "instruction"), *more])


def _history(value: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    turns = [(turn.role, turn.content) for turn in led([], value.get("system"))]
    history = value.get("history") or []
    if not isinstance(history, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in history
    ):
        raise ValueError("history is not a list of pairs")
    for pair in history:
        turns += [("user", text_of(pair[0], "history")), ("assistant", text_of(pair[1], "history"))]
    return tuple(turns)


def _pair(value: dict[str, Any]) -> tuple[Question, set[str]]:
    """A preference pair: one prompt, a better and a worse answer; and the keys that it is made
    of.
    """
    for name in ("chosen", "rejected"):
        if value.get(name) is None:
            raise ValueError(f"{name} is missing")
    chosen, rejected = (turns_of(value[name], name, "assistant") for name in ("chosen", "rejected"))
    refuse_contrary(value)
    used = {"chosen", "rejected", "system"}
    if "instruction" in value:
        asked = [*(Turn(*turn) for turn in _history(value)), Turn("user", _asked(value))]
        used |= {"instruction", "input", "context", "history"}
    else:
        key = next(
            (
                name
                for name in ("prompt", "question", "messages", "conversations")
                if not is_empty(value.get(name))
            ),
            "",
        )
        asked = turns_of(value[key], key, "user") if key else chosen[:-1]
        used.add(key)
        if asked == chosen:  # the better conversation once more, as the published sets have it
            asked = chosen[:-1]
    # whole conversations, with or without a prompt beside them
    if len(chosen) > 1 and chosen[:-1] == rejected[:-1]:
        said = {turn.content.strip() for turn in chosen}
        if any(turn.content.strip() not in said for turn in asked):
            raise ValueError("the prompt is not in the conversations of chosen and rejected")
        asked = chosen[:-1]
    elif len(chosen) > 1 or len(rejected) > 1:
        raise ValueError("chosen and rejected do not answer the same conversation")
    asked = led(asked, value.get("system"))
    better, worse = _of_turns([*asked, chosen[-1]]), _of_turns([*asked, rejected[-1]])
    if better.reasoning or worse.reasoning:
        raise ValueError("chosen or rejected has thoughts of its own, which pairs cannot have")
    if better.answer.strip() == worse.answer.strip():
        raise ValueError("chosen and rejected are the same")
    return replace(better, rejected=worse.answer), used


def _conversation(messages: Any, system: Any) -> Question:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages is not a list of objects")
    return _of_turns(led(turns_of(messages, "messages", "user") if messages else [], system))


def _of_turns(turns: list[Turn]) -> Question:
    in_order(turns)
    last = turns[-1]
    context = tuple((turn.role, turn.content) for turn in turns[:-2])
    unused = tuple(sorted({name for turn in turns for name in turn.unused}))
    return Question(
        turns[-2].content, last.content, context=context, reasoning=last.thoughts, unused=unused
    )
