"""Multiple choice: a question with its choices, whose answer is a letter."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from stages.common.fields import is_empty, text_of

ASK = "Answer with the letter of the right choice alone."
LISTS = ("choices", "options")
ANSWERS = ("answer", "answerKey", "answer_key", "answer_idx", "answer_index", "correct_answer")
"""Where a row names the right choice; a row may do so twice, by letter and by text."""


def choices_of(row: dict[str, Any]) -> tuple[dict[str, str], set[str]]:
    """The choices by letter, and the keys that hold them; ({}, set()) where the row has none.

    They are a list, an object by letter, an object {text: [...], label: [...]}, or columns A, B,
    ...

    Raises:
        ValueError: choices of another form, fewer than two, or two that are the same.
    """
    key = next((name for name in LISTS if not is_empty(row.get(name))), "")
    columns = [name for name in row if re.fullmatch(r"[A-Z]", name) and not is_empty(row[name])]
    if key:
        labels, texts = _listed(row[key], key)
        used = {key}
    elif {"A", "B"} <= set(columns):
        labels, texts, used = sorted(columns), [row[name] for name in sorted(columns)], set(columns)
    else:
        return {}, set()
    found = {
        label: text_of(text, f"choice {label}").strip()
        for label, text in zip(labels, texts, strict=True)
    }
    if len(found) != len(texts) or len(found) < 2 or len(set(found.values())) != len(found):
        raise ValueError(
            f"{key or 'the columns A, B, ...'} must hold two different choices or more, each once"
        )
    return found, used


def _listed(value: Any, key: str) -> tuple[list[str], list[Any]]:
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts = value["text"]
        labels = [str(label) for label in value.get("label", [])] or _letters(len(texts))
        if len(labels) != len(texts):
            raise ValueError(f"{key} has {len(texts)} texts and {len(labels)} labels")
        return labels, texts
    if isinstance(value, dict) and all(re.fullmatch(r"[A-Z]", str(name)) for name in value):
        kept = {name: text for name, text in value.items() if not is_empty(text)}
        return list(kept), list(kept.values())
    if isinstance(value, list) and all(
        isinstance(text, str | int | float | Decimal) for text in value
    ):
        return _letters(len(value)), value
    raise ValueError(f"{key} is neither a list of texts nor an object of letters")


def _letters(count: int) -> list[str]:
    if count > 26:
        raise ValueError(f"{count} choices are more than there are letters")
    return [chr(ord("A") + number) for number in range(count)]


def asked(question: str, choices: dict[str, str]) -> str:
    """The question as the model sees it, in training and in a benchmark alike."""
    return "\n".join([question, *(f"{letter}. {text}" for letter, text in choices.items()), ASK])


def letter_of(row: dict[str, Any], choices: dict[str, str]) -> str:
    """The letter of the right choice, which a row names by letter, by text or by place, counted
    from 0.

    Raises:
        ValueError: none is named, it is none of the choices, or what names it can be read in two
            ways.
    """
    given = {name: row[name] for name in ANSWERS if not is_empty(row.get(name))}
    if not given:
        raise ValueError("answer is missing")
    letters = {
        letter for name, value in given.items() for letter in _readings(row, value, name, choices)
    }
    if len(letters) > 1:
        raise ValueError(
            f"{next(iter(given))} can be read as {' and as '.join(sorted(letters))}: write the"
            " letter"
        )
    return letters.pop()


def _readings(row: dict[str, Any], value: Any, name: str, choices: dict[str, str]) -> set[str]:
    """What an answer may mean. A number is a place in the list, unless the labels or the choices
    are numbers themselves.
    """
    said = text_of(value, name).strip()
    numbers = any(label.isdigit() for label in choices) or any(
        _is_number(part) for key in LISTS for part in _parts(row.get(key))
    )
    found = set()
    if numbers or not _is_number(value):
        found |= {letter for letter, text in choices.items() if text == said}
        found |= {letter for letter in choices if letter in (said, said.strip("().: "))}
    if (
        re.fullmatch(r"[0-9]{1,2}", said)
        and int(said) < len(choices)
        and not any(label.isdigit() for label in choices)
    ):
        found.add(list(choices)[int(said)])
    if not found:
        raise ValueError(f"{name} is none of the choices ({', '.join(choices)})")
    return found


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
