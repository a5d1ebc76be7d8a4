"""Benchmark questions too short for an n-gram: found whole, inside a longer turn, or as a turn
without the instruction around it.

A short question alone is weak evidence ("How are you?"), so it must be four words or more, two of
them with content, or the row must give the item's answer too. One of numbers alone counts in a
prompt, not in an answer, where any reasoning may pass through "5 + 3"; and a question that begins
or ends in a number does not count where the number, or the sum, goes on: "8 - 0" is not in "8 - 0 -
3".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stages.generate_data import grams
from stages.generate_data.grams import SIGNS, Array, Block, Lookup, words

_COMMON = frozenset(
    """about after again also been before being both could does doing down each from have having
    here into just like make many more most much must only other over please same should
    some such than that their them then there these they this those through under until
    very want were what when where which while will with would your yours""".split()  # noqa: SIM905 - a list of ninety words would fill the screen
)


@dataclass
class Turned:
    """Texts that are searched: their words, the row of each, and whether it stands before the
    answer.
    """

    block: Block
    row: Array
    words: list[list[str]]
    asked: list[bool]


@dataclass
class _Short:
    core: list[str]
    answer: list[str]
    place: int
    numeric: bool
    telling: bool


class Shorts:
    """The short questions of all tasks, whole and without their task's frame: the words that all
    its questions begin and end with.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._items: list[_Short] = []
        self._by_length: dict[int, Lookup] = {}

    def add(self, asked: list[list[str]], answers: list[str], places: list[int]) -> None:
        """The questions of one task, as words."""
        first, last = _frame(asked)
        for question, answer, place in zip(asked, answers, places, strict=True):
            bare = question[first : len(question) - last]
            for core in [bare] if bare == question else [bare, question]:
                if not 0 < len(core) < self.n:
                    continue
                content = sum(len(word) > 3 and word not in _COMMON for word in core)
                # a Chinese word has about two characters
                content += sum(len(word) == 1 and word > "\u3000" for word in core) // 3
                numeric = all(not word.isalpha() for word in core)
                self._items.append(
                    _Short(core, words(answer), place, numeric, len(core) >= 4 and content >= 2)
                )

    def close(self) -> None:
        """All questions are there: make them ready to be looked up."""
        for length in {len(short.core) for short in self._items}:
            numbers = [
                number for number, short in enumerate(self._items) if len(short.core) == length
            ]
            given = grams.block([self._items[number].core for number in numbers])
            self._by_length[length] = Lookup(
                grams.runs_of(given.hashes, given.text, length)[1], np.array(numbers)
            )

    def find(
        self, length: int, starts: Array, hashes: Array, turned: Turned
    ) -> Iterator[tuple[int, int, str]]:
        """(start, place, "exact" or "short") of every run of `length` words that is a question."""
        if lookup := self._by_length.get(length):
            for position in lookup.known(hashes):
                for number in lookup.under(hashes[position]):
                    if match := _match(self._items[number], int(starts[position]), turned):
                        yield int(starts[position]), self._items[number].place, match


def _match(short: _Short, start: int, turned: Turned) -> str:
    """How a run of words with the hash of a short question is that question: "exact", "short", or
    "" where it is not.
    """
    text = int(turned.block.text[start])
    turn, at = turned.words[text], start - int(turned.block.starts[text])
    end = at + len(short.core)
    if turn[at:end] != short.core:
        return ""  # it runs over the end of a turn
    if turned.asked[text] and len(turn) == len(short.core):
        return "exact"
    edge_before, edge_after = turn[at - 1 : at] if at else [], turn[end : end + 1]
    if short.core[-1] == "=":
        edge_after = []
    if _calculates(short.core[0]) and any(map(_calculates, edge_before)):
        return ""
    if _calculates(short.core[-1]) and any(
        _calculates(word) and word != "=" for word in edge_after
    ):
        return ""
    if short.numeric:
        return "short" if turned.asked[text] and len(short.core) >= 3 else ""
    if short.telling:
        return "short"
    if not turned.asked[text] or len(short.core) < 2 or not short.answer:
        return ""
    row = turned.row[text]
    answers = (
        turned.words[other]
        for other in range(text + 1, len(turned.words))
        if turned.row[other] == row and not turned.asked[other]
    )
    return "short" if any(_holds(answer, short.answer) for answer in answers) else ""


def _frame(asked: list[list[str]]) -> tuple[int, int]:
    """How many words all questions of a task begin and end with; none where there are too few
    questions to tell.
    """
    if len(asked) < 3:
        return 0, 0
    shortest = min(map(len, asked))
    first = next(
        (place for place in range(shortest) if len({question[place] for question in asked}) > 1),
        shortest,
    )
    rest = shortest - first
    last = next(
        (place for place in range(rest) if len({question[-1 - place] for question in asked}) > 1),
        rest,
    )
    return first, last


def _calculates(word: str) -> bool:
    return word in SIGNS or word.isdigit()


def _holds(text: list[str], part: list[str]) -> bool:
    return any(
        text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1)
    )
