"""Does a training row hold a benchmark item? Exact match of the question, and shared n-grams of words.

A word is a run of letters and digits, or one sign of arithmetic ("4 - 1" is not "4 + 1"); other punctuation does not count.
An item's words are those of its question and its answer; a row's are those of all its turns.

Most benchmarks put the same instruction around each item (in word_sequence_reversal 26 words of 34), and a row that shares only that
has seen no item. So what repeats within a benchmark is no evidence:
- an n-gram that occurs in more than max(1, min(10, 5 %)) items of one task is boilerplate, and so is every word that it covers;
- an n-gram counts only if at least a quarter of its words (3 of 13) are not boilerplate, since the last words of an instruction
  and the first word of an item stand in many rows that are not the item.
The limit is low, and at most 10, because what is taken for boilerplate is not searched for: in a task of 200 items a passage that
ten of them ask about is still evidence, one that eleven ask about is not. The exact rule does not depend on it. An item without an
n-gram that counts (too short, or boilerplate throughout) is found by its question alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stages.common.questions import normalize

_CJK = "\u3040-\u30ff\u3400-\u9fff"  # written without blanks, so each character is a word
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[-+*/=<>^%\u00d7\u00f7\u2212\u00b1\u221a]")


@dataclass(frozen=True, order=True)
class Item:
    """A validation or test item."""

    benchmark: str
    split: str
    question: str
    answer: str


@dataclass(frozen=True, order=True)
class Hit:
    """What a row shares with a benchmark: `match` is "exact" (the question) or "ngram"."""

    benchmark: str
    split: str
    match: str


def words(text: str) -> list[str]:
    return _WORD.findall(normalize(text))


def boilerplate_limit(items: int) -> int:
    """In how many items of a task an n-gram may occur and still count."""
    return max(1, min(10, items // 20))


class Index:
    """The benchmark's items, ready to be looked up. Memory: about 100 bytes for each word of the benchmark."""

    def __init__(self, items: Sequence[Item], n: int) -> None:
        self.n = n
        self._questions: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._grams: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
        self.distinctive: dict[str, Item] = {}
        """For each benchmark the first item that n-grams of its question alone can find."""
        self.boilerplate: dict[str, tuple[str, ...]] = {}
        """For each benchmark its most frequent boilerplate n-gram."""
        by_task: dict[str, list[Item]] = defaultdict(list)
        for item in items:
            self._questions[normalize(item.question)].add((item.benchmark, item.split))
            by_task[item.benchmark].append(item)
        for name, group in by_task.items():
            self._add(name, group)

    def _add(self, name: str, items: list[Item]) -> None:
        texts = [words(f"{item.question} {item.answer}") for item in items]
        counts = Counter(gram for text in texts for gram in set(_grams(text, self.n)))
        limit = boilerplate_limit(len(items))
        common = {gram: count for gram, count in counts.items() if count > limit}
        if common:
            self.boilerplate[name] = max(common, key=lambda gram: (common[gram], gram))
        for item, text in zip(items, texts, strict=True):
            covered = [False] * len(text)
            for start, gram in enumerate(_grams(text, self.n)):
                if gram in common:
                    covered[start : start + self.n] = [True] * self.n
            asked = len(words(item.question))
            for start, gram in enumerate(_grams(text, self.n)):
                if gram not in common and self.n - sum(covered[start : start + self.n]) >= max(1, self.n // 4):
                    self._grams[gram].add((name, item.split))
                    if start + self.n <= asked:
                        self.distinctive.setdefault(name, item)

    def find(self, prompts: Sequence[str], answer: str) -> list[Hit]:
        """What a row with these user turns (and other text before the answer) and this answer shares with the benchmark.

        An exact match is named alone where there is one for that benchmark and split.
        """
        found = {place: "exact" for prompt in prompts for place in self._questions.get(normalize(prompt), ())}
        for gram in _grams(words(" ".join([*prompts, answer])), self.n):
            for place in self._grams.get(gram, ()):
                found.setdefault(place, "ngram")
        return sorted(Hit(*place, match) for place, match in found.items())


def _grams(text: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(text[start:] for start in range(n)), strict=False)


def positive_control(index: Index, items: Sequence[Item]) -> dict[str, dict[str, bool | None]]:
    """Plant items in rows and look whether they are found: {benchmark: {exact, embedded, wrapped, boilerplate}}, True where all is well.

    exact: a row with the item's question. embedded: the question inside a longer row. wrapped: the same between two runs of the
    benchmark's own boilerplate. boilerplate: a row of that boilerplate alone, which must not be found.
    None: it cannot be tried, because the items are too short for n-grams, or there is no boilerplate.
    """
    results: dict[str, dict[str, bool | None]] = {}
    for name in sorted({item.benchmark for item in items}):
        first, long = next(item for item in items if item.benchmark == name), index.distinctive.get(name)
        frame = " ".join(index.boilerplate.get(name, ()))

        def found(prompt: str, answer: str, name: str = name) -> bool:
            return any(hit.benchmark == name for hit in index.find([prompt], answer))

        planted = long.question if long else ""
        results[name] = {
            "exact": found(f"\t {first.question} \n", "an answer"),
            "embedded": found(f"Somebody once asked me this on a train: {planted} I had to think about it.", "So did I.") if long else None,
            "wrapped": found(f"{frame} {planted} {frame}", "an answer") if long and frame else None,
            "boilerplate": not found(frame, "") if frame else None,
        }
    return results
