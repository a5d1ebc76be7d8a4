"""Numbers in a sentence: as digits, ordinals or words, and whether a sentence speaks of a
measurement or of an item.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise


def _words(text: str) -> list[str]:
    return text.split()


_ONES = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = {
    "first": 1,
    "second": 2,
    "third": 3,
    "fifth": 5,
    "eighth": 8,
    "ninth": 9,
    "twelfth": 12,
    **{
        f"{name}th": value
        for value, name in enumerate(_ONES)
        if value in (4, 6, 7) or 9 < value != 12
    },
    **{f"{name[:-1]}ieth": 20 + 10 * index for index, name in enumerate(_TENS)},
}
_SMALL = (
    {name: value for value, name in enumerate(_ONES)}
    | {name: 20 + 10 * index for index, name in enumerate(_TENS)}
    | _ORDINALS
)
_SCALES = {
    name + end: size
    for name, size in (("hundred", 100), ("thousand", 1000), ("million", 10**6))
    for end in ("", "th")
}

COMMON = 12
"""Numbers up to this one are everyday words: they give an item away only where they are called its
answer.
"""
_UNITS = set(
    _words(
        "points point percent pp items item questions question answers steps step epochs epoch"
        " losses tokens token characters rows row examples samples times seconds s minutes min"
        " hours h repeats looks look runs run layers layer parameters gib mib gb tasks task"
        " benchmarks words prompts batches gpus cores percentage digit digits term terms letter"
        " letters line lines operands"
    )
)
_MEASURES = (_UNITS - {"answers", "runs", "looks"}) | set(
    _words(
        "accuracy score scores loss rate learning rank alpha batch size warmup warm dropout length"
        " limit cutoff len max seed p level interval n margin effect gain difference rose rise fell"
        " fall went grew grow dropped drop improved improves improve increased increase decreased"
        " decrease gained lost raise raised lower lowered reduced reduce reached reach cut strict"
        " lenient mean standard error decay ratio"
    )
)
_LINKS = set(
    _words(
        "to from of by at is was are were be about around above below under over than and or"
        " between near only roughly nearly almost its the a an up down back still set least most"
        " some per in total out"
    )
)
_TOLD = set(
    _words(
        "answer answers answered answering say says said give gives gave output outputs predict"
        " predicts predicted find finds found write writes wrote return returns returned expected"
        " gold result solution reply replies replied equals guess guesses get gets got"
    )
)
_LINKS_OF_ANSWERS = _LINKS | set(
    _words("should with as just it always often instead correctly wrongly not have been")
)


def joined(words: Sequence[str]) -> list[str]:
    """The words with each spelled number as digits: 'one hundred and eighty ninth' is '189'."""
    found, at = list[str](), 0
    while at < len(words):
        end, value = _spelled(words, at)
        found.append(str(value) if end > at else words[at])
        at = max(end, at + 1)
    return found


def _spelled(words: Sequence[str], at: int) -> tuple[int, int]:
    """Where the number that begins at this word ends, and its value; the same place where none
    begins.
    """
    total, part, last, end = 0, 0, 0, at
    for place in range(at, len(words)):
        word = words[place]
        if word in _SMALL:
            value = _SMALL[word]
            if part and not (value < last and (last >= 100 or (last >= 20 and value < 10))):
                break  # "two three" are two numbers
            part, last, end = part + value, value, place + 1
            if word in _ORDINALS:
                break
        elif word in _SCALES and part:
            part *= _SCALES[word]
            if _SCALES[word] > 100:
                total, part = total + part, 0
            last, end = _SCALES[word], place + 1
        elif word != "and" or place == at or words[place - 1] not in _SCALES:
            break
    return end, total + part


def measured(words: Sequence[str], at: int) -> bool:
    """Whether the number at this place is a figure of the measurement: '24 points', 'rose by 24',
    'rank from 8 to 16', '24 of 60 items'.
    """
    after = [
        word
        for word in words[at + 1 : at + 5]
        if word not in ("of", "out", "the") and not is_number(word)
    ]
    if set(after[:1]) & _UNITS or (
        after[:1] and set(after[1:2]) & _UNITS and after[0] not in _TOLD | _LINKS
    ):
        return True
    return _leads_back(words, at, _MEASURES, _LINKS)


def told(words: Sequence[str], at: int) -> bool:
    """Whether the number at this place is called an answer: 'the answer is 9', 'it says nine'."""
    return _leads_back(words, at, _TOLD, _LINKS_OF_ANSWERS) and not measured(words, at)


def _leads_back(words: Sequence[str], at: int, wanted: set[str], links: set[str]) -> bool:
    for word in reversed(words[max(0, at - 8) : at]):
        if word in wanted:
            return True
        if word not in links and not is_number(word):
            return False
    return False


def is_number(word: str) -> bool:
    return word[:1].isdigit() and re.fullmatch(r"\d+(?:\.\d+)?", word) is not None


def pairs(text: str) -> list[tuple[str, str]]:
    """Numbers that follow each other with nothing but signs between them, such as the terms of a
    sum.
    """
    found = list(re.finditer(r"\d+", text))
    signs = r"[\s+\-*/x\u00d7\u00f7=,^]{1,5}|\s*(?:plus|minus|times|and)\s+"
    return [
        (a.group(), b.group())
        for a, b in pairwise(found)
        if re.fullmatch(signs, text[a.end() : b.start()])
    ]
