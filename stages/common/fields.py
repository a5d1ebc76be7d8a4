"""The fields of a row: a value as text, and the keys that may be left out without changing what the
row means.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any

_MOST_DIGITS = 15
"""Digits, beyond which a floating-point number is no longer the whole number that was meant."""
_MOST_WORDS = 20
"""Words, beyond which a field is a text that a question may be about, whatever its name."""
_HARMLESS = frozenset(
    """id ids idx index uid uuid guid hash md5 sha1 sha256 url urls uri link href source sources
    origin dataset split subset topic topics subject domain category categories
    subcategory genre tag tags lang language languages locale model models generator
    engine version revision date time timestamp created updated author authors annotator
    annotators worker username licence license copyright score scores rating ratings rank
    quality reward margin likelihood logprob perplexity length len count num tokens
    difficulty level title titles label labels page views likes upvotes file filename
    filepath path meta metadata type""".split()  # noqa: SIM905
)
"""Last words of names that say where a row comes from, how it is sorted and how it was rated."""
_CONTENT = frozenset(
    """source sources origin topic topics subject domain genre tag tags lang language languages
    locale date time author title titles page type length len count file""".split()  # noqa: SIM905
)
"""Those of them that a question may be about as well, if it says nothing else."""
_LEADING = frozenset(
    [
        "id",
        "num",
        "n",
        "avg",
        "mean",
        "score",
        "rating",
        "model",
        "original",
        "dataset",
        "meta",
        "metadata",
        "unnamed",
        "index",
        "created",
        "updated",
    ]
)
_LOOSE = frozenset({"meta", "metadata"})  # whatever they hold
_MEDIA = re.compile(
    r"(?:image|audio|video|picture|photo|file_data|input_audio)s?(?:_url|_path|_file)?s?",
    re.IGNORECASE,
)
# categories of Unicode: spaces, controls, joiners, marks of direction
_UNSEEN = frozenset(("Cc", "Cf", "Zs", "Zl", "Zp"))
_MISSING = frozenset(("\\N", "<NA>", "<noinput>"))
"""How SQL, pandas and Alpaca write that a field holds nothing; no text says so otherwise."""
_PERHAPS_MISSING = frozenset("NULL null NaN nan None N/A n/a".split())  # noqa: SIM905
_SHEET_ERRORS = frozenset(
    [
        "#REF!",
        "#N/A",
        "#VALUE!",
        "#NAME?",
        "#DIV/0!",
        "#NUM!",
        "#NULL!",
        "#SPILL!",
        "#CALC!",
        "#BEZUG!",
        "#NV",
        "#WERT!",
        "#ZAHL!",
    ]
)
_RATINGS = frozenset("rating ratings quality score scores reward".split())  # noqa: SIM905
_POOR = frozenset(
    (
        "bad",
        "wrong",
        "incorrect",
        "rejected",
        "dislike",
        "thumbs_down",
        "poor",
        "low",
        "terrible",
        "\U0001f44e",
    )
)
_SWITCHES = frozenset(
    [
        "weight",
        "weights",
        "train",
        "trainable",
        "training",
        "loss",
        "loss_mask",
        "loss_weight",
        "mask",
    ]
)
"""Whether, or how much, something is learnt; 1 and true change nothing."""


class Columns(ValueError):
    """The row has none of the shapes: its keys, for a guess at which holds what."""

    def __init__(self, what: str, found: Iterable[str]) -> None:
        super().__init__(what)
        self.found = tuple(found)


class Unused(ValueError):
    """A key that no shape uses and that may change what the row means."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def text_of(value: Any, name: str) -> str:
    """A value as the text that a person would write for it: a whole number without ".0", a date as
    2024-01-31.

    Raises:
        ValueError: nothing, a truth value, a list or an object; text that no file can hold; a
            number that has lost digits.
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        value = number_text(value, name)
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = value.isoformat()
    if not isinstance(value, str):
        raise ValueError(
            f"{name} is {'missing' if value is None else f'not text but {_kind(value)}'}"
        )
    if is_blank(value):
        raise ValueError(f"{name} is empty")
    if (said := value.strip()) in _MISSING:
        raise ValueError(f"{name} is missing ({said})")
    if said in _SHEET_ERRORS:
        raise ValueError(f"{name} is {said}, an error of a spreadsheet")
    if "\0" in value:
        raise ValueError(f"{name} holds a NUL character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a lone surrogate, which is no character") from None
    return value


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: spaces, of no width too, and controls."""
    return all(unicodedata.category(character) in _UNSEEN for character in text)


def number_text(value: float | Decimal, name: str) -> str:
    """18.0 as 18, 5e5 as 500000; a decimal as it stands, without an exponent."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {'missing (NaN)' if value != value else 'infinite'}")
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    if number and not -_MOST_DIGITS <= number.adjusted() <= 2 * _MOST_DIGITS:
        raise ValueError(f"{name} is a number of too many digits ({number:.3e}): write it as text")
    if number == number.to_integral_value():
        if isinstance(value, float) and number.adjusted() >= _MOST_DIGITS:
            raise ValueError(
                f"{name} is a floating-point number of more than {_MOST_DIGITS} digits, which may"
                " have lost some: write text"
            )
        return str(int(number))
    return format(number, "f")


def _kind(value: Any) -> str:
    named = {
        bool: "true or false",
        list: "a list",
        dict: "an object",
        bytes: "bytes",
        datetime.datetime: "a date and time",
    }
    return named.get(type(value), f"of the type {type(value).__name__}")


def is_empty(value: Any) -> bool:
    """Whether a field holds nothing, as the columns of a table do where another row has
    something.
    """
    if isinstance(value, dict):
        return all(is_empty(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(is_empty(part) for part in value)
    return (
        value is None
        or (isinstance(value, str) and (is_blank(value) or value.strip() in _MISSING))
        or (isinstance(value, float) and value != value)
    )


def texts_in(value: Any) -> Iterator[str]:
    """All text of a value, but for the roles of its turns."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("role", "from", "type"):
                yield from texts_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts_in(part)
    elif isinstance(value, str) and value.strip():
        yield value.strip()


def left_out(row: dict[str, Any], used: set[str], *, turn: str = "") -> list[str]:
    """The keys beside the used ones that hold something, where none of them changes what the row
    means.

    A key is harmless by its name (id, source, score), or because it says what the row says anyway:
    the same text, or all of it as one.

    Args:
        turn: the role of a message, where the row is one turn of a conversation.

    Raises:
        Unused: a key that is not known to be harmless.
    """
    rest = {
        str(key): value for key, value in row.items() if key not in used and not is_empty(value)
    }
    if not rest:
        return []
    said: set[str] = set()
    for name, value in rest.items():
        if name in _SWITCHES:
            if (turn and turn != "assistant") or str(value).lower() in ("1", "1.0", "true"):
                continue
            raise Unused(
                name,
                f"{name!r} is {json.dumps(value, default=str):.40}, and how much a row or turn"
                " counts is not used",
            )
        if (
            _words(name)[-1:]
            and _words(name)[-1] in _RATINGS
            and re.sub(r"[-\s]+", "_", str(value).strip().lower()) in _POOR
        ):
            raise Unused(name, f"{name!r} is {value!r:.40}, so the answer is a bad one")
        if _harmless(name) and (
            name.lower() in _LOOSE
            or all(len(text.split()) <= _MOST_WORDS for text in texts_in(value))
        ):
            continue
        if turn and name == "name":
            continue
        said = said or set(
            texts_in([row[key] for key in used - {"category", "difficulty"} if key in row])
        )
        if not turn and said and _repeats(value, said):
            continue
        raise Unused(name, _why(name))
    return sorted(rest)


def _why(name: str) -> str:
    if _MEDIA.fullmatch(name):
        return f"the key {name!r} holds pictures, sound or video, and training is on text"
    if name in ("tools", "functions", "tool_calls", "function_call", "tool_call_id"):
        return f"the key {name!r} is about tools, which rows cannot have"
    return f"the key {name!r} is not used, and may change what the row means"


def refuse_media(row: dict[str, Any]) -> None:
    """For plain text, which is whole whatever stands beside it, pictures aside."""
    for name, value in row.items():
        if _MEDIA.fullmatch(str(name)) and not is_empty(value):
            raise Unused(str(name), _why(str(name)))


def _repeats(value: Any, said: set[str]) -> bool:
    """Whether all text of a value is text of the used fields, or holds all of theirs."""
    texts = list(texts_in(value))
    return bool(texts) and all(text in said or all(part in text for part in said) for text in texts)


@lru_cache(maxsize=4096)
def _harmless(name: str) -> bool:
    words = _words(name)
    if not words:
        return True  # a column without a name, or with a number for one
    return words[-1] in _HARMLESS or words[0] in _LEADING or name.startswith("_")


def _words(name: str) -> list[str]:
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return [word for word in re.findall(r"[a-z]+[0-9]*|[0-9]+", plain) if not word.isdigit()]


def refuse_unclear(row: dict[str, Any]) -> None:
    """Refuse columns in the place of a row, and a field beside the question with a word for a
    missing value, which would be asked as text.

    Raises:
        ValueError: the field is named.
    """
    columns = [part for part in row.values() if isinstance(part, dict) and "0" in part]
    if len(columns) > 1 and len(columns) == len(row):
        raise ValueError(
            'these are columns, not rows: of pandas, write df.to_json("rows.jsonl",'
            ' orient="records", lines=True)'
        )
    for name in ("input", "context", "system", "reasoning"):
        if isinstance(said := row.get(name), str) and said.strip() in _PERHAPS_MISSING:
            raise ValueError(
                f"{name} is {said.strip()!r}, which may be a missing value: leave the field empty,"
                " or write a sentence"
            )


def refuse_contrary(row: dict[str, Any]) -> None:
    """Refuse a pair whose ratings say that the rejected answer is the better one.

    Raises:
        ValueError: both ratings are named.
    """
    for name in row:
        other = name.replace("chosen", "rejected")
        if other != name and other in row and _RATINGS & {*_words(name)}:
            better, worse = (str(row[key]).strip() for key in (name, other))
            if all(re.fullmatch(r"-?\d+(\.\d+)?", rating) for rating in (better, worse)) and float(
                better
            ) < float(worse):
                raise ValueError(
                    f"{name} is {better} and {other} is {worse}: the rejected answer is the"
                    " better one"
                )


class Told:
    """Looks for a key that is left out, and by which alone questions differ: the source of
    "Translate into German.".
    """

    _ROWS = 2000
    _FEWEST = 3

    def __init__(self) -> None:
        self._rows = 0
        self._asked: defaultdict[int, list[tuple[int, dict[str, str]]]] = defaultdict(list)

    def add(self, asked: Any, answer: str, row: dict[str, Any], unused: Iterable[str]) -> None:
        """One row; the first ones of a file are enough."""
        if self._rows < self._ROWS:
            self._rows += 1
            hidden = {
                key: str(row[key])
                for key in unused
                if key in row and _words(key)[-1:] and _words(key)[-1] in _CONTENT
            }
            self._asked[hash(asked)].append((hash(answer), hidden))

    def found(self) -> str:
        """The key, if most rows ask what others ask, answer otherwise, and this key tells them
        apart; else "".
        """
        groups = [rows for rows in self._asked.values() if len({answer for answer, _ in rows}) > 1]
        if sum(map(len, groups)) < max(self._FEWEST, self._rows / 2):
            return ""
        keys = sorted(set.intersection(*({*hidden} for rows in groups for _, hidden in rows)))
        return next((key for key in keys if all(_tells(rows, key) for rows in groups)), "")


def _tells(rows: list[tuple[int, dict[str, str]]], key: str) -> bool:
    """Whether equal values of a key have equal answers, and other values others."""
    pairs = {(hidden[key], answer) for answer, hidden in rows}
    return len(pairs) == len({value for value, _ in pairs}) > 1
