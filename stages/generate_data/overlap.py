"""Does a training row hold a benchmark item? Four ways to know, named in the hit:

exact   the question is one of the row's turns, with its instruction or without
ngram   `n` words in a row of the item, anywhere in the row
short   a question of fewer than `n` words, whole, inside a longer turn
fuzzy   the question with other numbers or a few other words (MinHash over three words in a row,
numbers as one word)

An item's words are those of its question and its answer; a row's are those of all its turns.

Most benchmarks put the same instruction around each item (in word_sequence_reversal 26 words of
34), and a row that shares only that has seen no item. So what repeats within a benchmark is no
evidence:
- what occurs in more items of a task than `boilerplate_limit` says is boilerplate, and so is
  every word that it covers;
- an n-gram counts only if at least a quarter of its words (3 of 13) are not boilerplate, since
  the last words of an instruction and the first word of an item stand in many rows that are not
  the item;
- the words that all questions of a task begin and end with are its frame, and the question
  without them is what the short rule looks for. The limit is low, because what is taken for
  boilerplate is not searched for. The exact rule does not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stages.common.questions import normalize
from stages.generate_data import grams, minhash
from stages.generate_data.grams import Array, Block, Lookup, words
from stages.generate_data.shorts import Shorts, Turned

__all__ = ["Hit", "Index", "Item", "Turns", "boilerplate_limit", "words"]

FEWEST_SHINGLES = 8  # of a question without boilerplate, below which a resemblance may be chance


@dataclass(frozen=True, order=True)
class Item:
    """A validation or test item."""

    benchmark: str
    split: str
    question: str
    answer: str


@dataclass(frozen=True, order=True)
class Hit:
    """What a row shares with a benchmark."""

    benchmark: str
    split: str
    match: str


@dataclass
class Turns:
    """A row as the search sees it: the user's turns and all else before the answer, and the answer
    (or two, of a pair).
    """

    prompts: list[str]
    answers: list[str]


def boilerplate_limit(items: int) -> int:
    """In how many items of a task something may occur and still count: 10, or 1 % of many items, or
    half of a few.

    A passage that several items ask about is evidence; an instruction stands in most items, or in
    one of a hundred where a benchmark has a hundred instructions.
    """
    return min(max(10, items // 100), max(1, items // 2))


class Index:
    """The benchmark's items, ready to be looked up. Memory: about 40 bytes for each word of the
    benchmark, and the questions.
    """

    def __init__(self, items: Sequence[Item], n: int, fuzzy: float = 0.6) -> None:
        self.n, self.fuzzy = n, fuzzy
        self.places = sorted({(item.benchmark, item.split) for item in items})
        self.distinctive: dict[str, Item] = {}
        """For each benchmark the first item that n-grams of its question alone can find."""
        self.resembling: dict[str, Item] = {}
        """For each benchmark the first item that the fuzzy search can find."""
        self.boilerplate: dict[str, str] = {}
        """For each benchmark its most frequent boilerplate n-gram."""
        self._place = {place: number for number, place in enumerate(self.places)}
        self._questions: dict[str, set[int]] = defaultdict(set)
        self._shorts = Shorts(n)
        by_task: dict[str, list[Item]] = defaultdict(list)
        for item in items:
            self._questions[normalize(item.question)].add(self._place[item.benchmark, item.split])
            by_task[item.benchmark].append(item)
        kept: list[tuple[Array, Array]] = []
        common: list[Array] = []
        shingles: list[Array] = []
        owners: list[int] = []
        for name, group in by_task.items():
            asked = [words(item.question) for item in group]
            kept.append(self._add_grams(name, group, asked))
            self._shorts.add(
                asked,
                [item.answer for item in group],
                [self._place[item.benchmark, item.split] for item in group],
            )
            common.append(self._add_shingles(name, group, asked, shingles, owners))
        self._grams = (
            Lookup(*(np.concatenate(part) for part in zip(*kept, strict=True)))
            if kept
            else Lookup(_none(), _none())
        )
        self._shorts.close()
        self._common = np.unique(np.concatenate(common)) if common else _none()
        self._boilerplate_shingles = Lookup(self._common, self._common)
        self._similar = minhash.Similar(shingles, owners, fuzzy)

    # --- building

    def _add_grams(
        self, name: str, items: list[Item], asked: list[list[str]]
    ) -> tuple[Array, Array]:
        """The n-grams of a task that count, and the place of each."""
        given = grams.block(
            [question + words(item.answer) for question, item in zip(asked, items, strict=True)]
        )
        starts, hashes = grams.runs_of(given.hashes, given.text, self.n)
        owner = given.text[starts]
        copies, different = _copies(items)
        frequent = _frequent(hashes, copies[owner], boilerplate_limit(different))
        is_common = np.isin(hashes, frequent[0])
        if len(frequent[0]):
            first = starts[hashes == frequent[0][np.argmax(frequent[1])]][0]
            self.boilerplate[name] = " ".join(given.words[first : first + self.n])
        # how many boilerplate n-grams lie over each word
        covered = np.zeros(len(given.words) + 1, np.int64)
        np.add.at(covered, starts[is_common], 1)
        ends = starts[is_common] + self.n
        np.add.at(covered, ends, -1)
        own = np.concatenate([[0], np.cumsum(np.cumsum(covered)[: len(given.words)] == 0)])
        counts = ~is_common & (own[starts + self.n] - own[starts] >= max(1, self.n // 4))
        length = np.array([len(question) for question in asked])
        in_question = counts & (starts + self.n - given.starts[owner] <= length[owner])
        if in_question.any():
            self.distinctive[name] = items[int(owner[in_question].min())]
        place = np.array([self._place[item.benchmark, item.split] for item in items], np.int32)
        pairs = np.unique(
            np.stack([hashes[counts], place[owner[counts]].astype(np.uint64)], 1), axis=0
        )
        return pairs[:, 0], pairs[:, 1].astype(np.int32)

    def _add_shingles(
        self,
        name: str,
        items: list[Item],
        asked: list[list[str]],
        shingles: list[Array],
        owners: list[int],
    ) -> Array:
        """Append each question's distinct shingles; returns the task's boilerplate."""
        given = grams.block(asked)
        starts, hashes = grams.runs_of(grams.without_numbers(given), given.text, minhash.WORDS)
        owner = given.text[starts]
        copies, different = _copies(items)
        common, _ = _frequent(hashes, copies[owner], boilerplate_limit(different))
        keep = ~np.isin(hashes, common)
        hashes, owner = hashes[keep], owner[keep]
        edges = np.searchsorted(owner, np.arange(len(items) + 1))
        for number, item in enumerate(items):
            own = np.unique(hashes[edges[number] : edges[number + 1]])
            if len(own) >= FEWEST_SHINGLES:
                shingles.append(own)
                owners.append(self._place[item.benchmark, item.split])
                self.resembling.setdefault(name, item)
        return common

    # --- searching

    def find(self, prompts: Sequence[str], answer: str) -> list[Hit]:
        """What one row shares with the benchmark, sorted; for each benchmark and split the first of
        exact, ngram, short and fuzzy.
        """
        return self.find_all([Turns(list(prompts), [answer])])[0]

    def find_all(self, rows: Sequence[Turns]) -> list[list[Hit]]:
        """`find` for many rows at once, which is much faster than one by one."""
        found: list[dict[int, str]] = [{} for _ in rows]
        texts: list[list[str]] = []
        row_of: list[int] = []
        asked: list[bool] = []
        for number, row in enumerate(rows):
            for text, is_prompt in [
                *((text, True) for text in row.prompts),
                *((text, False) for text in row.answers),
            ]:
                plain = normalize(text)
                if is_prompt:
                    for place in self._questions.get(plain, ()):
                        found[number].setdefault(place, "exact")
                texts.append(grams._WORD.findall(plain))
                row_of.append(number)
                asked.append(is_prompt)
        given = grams.block(texts)
        rows_of = np.array(row_of, np.int32)
        self._find_runs(given, rows_of, texts, asked, found)
        self._find_similar(given, rows_of, found)
        return [
            sorted(Hit(*self.places[place], match) for place, match in places.items())
            for places in found
        ]

    def _find_runs(
        self,
        given: Block,
        rows_of: Array,
        texts: list[list[str]],
        asked: list[bool],
        found: list[dict[int, str]],
    ) -> None:
        rows = rows_of[given.text]
        short: list[tuple[int, int, str]] = []
        turns = Turned(given, rows_of, texts, asked)
        for length, starts, hashes in grams.runs(given.hashes, rows, self.n):
            if length == self.n:
                for position in self._grams.known(hashes):
                    for place in self._grams.under(hashes[position]):
                        found[rows[starts[position]]].setdefault(int(place), "ngram")
            else:
                short += [
                    (int(rows[start]), place, how)
                    for start, place, how in self._shorts.find(length, starts, hashes, turns)
                ]
        # after the n-grams, which are the stronger evidence for a part of a turn
        for match in ("exact", "short"):
            for row, place, how in short:
                if how == match == "exact":
                    found[row][place] = "exact"
                elif how == match:
                    found[row].setdefault(place, match)

    def _find_similar(self, given: Block, rows_of: Array, found: list[dict[int, str]]) -> None:
        starts, hashes = grams.runs_of(grams.without_numbers(given), given.text, minhash.WORDS)
        keep = np.ones(len(hashes), bool)
        keep[self._boilerplate_shingles.known(hashes)] = False
        owner, hashes = given.text[starts][keep], hashes[keep]
        texts, counts = np.unique(owner, return_counts=True)
        enough = counts >= FEWEST_SHINGLES // 2
        chosen = np.repeat(enough, counts)
        for text, place in self._similar.find(hashes[chosen], counts[enough]):
            found[rows_of[texts[enough][text]]].setdefault(place, "fuzzy")


def _none() -> Array:
    return np.zeros(0, np.uint64)


def _copies(items: Sequence[Item]) -> tuple[Array, int]:
    """For each item the number of its question, and how many different ones there are: a question
    that comes twice is no boilerplate.
    """
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(normalize(item.question), len(numbers)) for item in items]
    ), len(numbers)


def _frequent(hashes: Array, owner: Array, limit: int) -> tuple[Array, Array]:
    """The hashes that occur in more than `limit` owners, and in how many."""
    pairs = np.unique(np.stack([hashes, owner.astype(np.uint64)], 1), axis=0)
    values, counts = np.unique(pairs[:, 0], return_counts=True)
    return values[counts > limit], counts[counts > limit]
