"""Items that stand among the worked examples of their own prompt, with the answer: a suite's
configuration may take both from one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from stages.common.questions import normalize

_ENOUGH = 8
"""Words from which the longest part of a question (its text, its passage) tells it alone, whatever
its choices.
"""
_FEW = 4
"""Words below which a question may stand in another one by chance: it has to end a line of the
template.
"""


def shown(config: dict[str, Any], dataset: Any, shots: Sequence[Sequence[int]]) -> set[int]:
    """The numbers of the test items that their own examples hold.

    Args:
        shots: for each test item the rows of `dataset.train` that are its examples. What a template
            itself says counts too.
    """
    columns = [
        name for name in config["reader_cfg"]["input_columns"] if name in dataset.test.column_names
    ]
    template = list(dict.fromkeys(_texts(config["infer_cfg"])))
    whole = [normalize(text) for text in template]
    lines = {normalize(line) for text in template for line in text.splitlines()}
    example = cache(lambda number: _parts(dataset.train[number], columns))
    found = set()
    for number, row in enumerate(dataset.test):
        parts = _parts(row, columns)
        if parts and (
            _said(parts, whole, lines)
            or any(_same(parts, example(int(shot))) for shot in shots[number])
        ):
            found.add(number)
    return found


def _parts(row: dict[str, Any], columns: list[str]) -> tuple[str, ...]:
    """What an item asks, by its columns."""
    return tuple(text for name in columns if (text := normalize(str(row[name]))))


def _longest(parts: tuple[str, ...]) -> str:
    longest = max(parts, key=len)
    return longest if len(longest.split()) >= _ENOUGH else ""


def _same(parts: tuple[str, ...], example: tuple[str, ...]) -> bool:
    return parts == example or _longest(parts) in example


def _said(parts: tuple[str, ...], texts: list[str], lines: set[str]) -> bool:
    """Whether the template says this question."""
    if sum(len(part.split()) for part in parts) < _FEW:
        return any(
            all(_holds(line, part) for part in parts) and line.endswith(parts[-1]) for line in lines
        )
    longest = _longest(parts)
    return any(
        (longest and _holds(text, longest)) or all(_holds(text, part) for part in parts)
        for text in texts
    )


def _holds(text: str, part: str) -> bool:
    """Whether a text holds a part as whole words."""
    return part in text and re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def _texts(value: Any) -> Iterator[str]:
    """Every text of a configuration."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
