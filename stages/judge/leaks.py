"""Words that would carry a benchmark into the next experiment: what a language model says, checked
against the validation items.

Whoever proposes the next experiment reads the verdict. If it quoted items, their answers or the
model's replies to them, the next training data could be made to fit them, and the validation score
would say nothing any more. What is common in the language, in the trade or in the prompt's own
figures gives no item away: a sentence is cut for the words and numbers that are an item's own.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stages.judge import numbers

WORDS = 5
"""Consecutive words shared with any item or reply that count as a quotation; of a shorter text, all
of it.
"""
SHOWN, SHORT = 4, 3
"""The same of what the language model was shown: of running text, and of a text of `LISTED` words
or fewer, such as a list.
"""
LISTED = 8
COMMON = 0.1
"""An n-gram that this share of a benchmark's questions has in common (ten or more, or half of a
few) is an instruction.
"""
LABEL = 3
"""Items with the same short answer that make it a label of the task."""
_ENDS = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[A-Z0-9])")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b", re.IGNORECASE)


def words_of(text: str) -> list[str]:
    """Case-folded words, numbers as digits; full-width digits, invisible characters, grouped
    thousands, endings and spelling hide none.
    """
    text = "".join(
        c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf"
    )
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = _ORDINAL.sub("", re.sub(r"(?<=\d)[,'\u2019](?=\d{3}(?!\d))", "", text)).replace(
        "%", " percent "
    )
    found = re.findall(r"\d+\.\d+|[^\W_]+", text.casefold())
    return numbers.joined(
        [
            re.sub(r"\.0+$", "", re.sub(r"^0+(?=\d)", "", word)) if word[:1].isdigit() else word
            for word in found
        ]
    )


class Guard:
    """What may not be repeated: the texts of all items, and more strictly those that the language
    model was shown.
    """

    def __init__(
        self,
        items: Iterable[dict[str, str]],
        replies: Iterable[str],
        shown: Iterable[dict[str, Any]],
        public: str,
    ) -> None:
        """
        Args:
            items: all validation items (question, answer, benchmark).
            replies: all predictions of candidate and incumbent.
            shown: the samples in the prompt (question, expected, output).
            public: the rest of the prompt: figures, settings, names, whatever may be said again.
        """
        listed, shown, known = list(items), list(shown), words_of(public)
        self.public = set(known) | {"yes", "no", "true", "false", "none"}
        free = {gram for length in range(1, WORDS + 1) for gram in _runs(known, length)}
        questions = [(item.get("benchmark", ""), words_of(item["question"])) for item in listed]
        answers = [words_of(item["answer"]) for item in listed]
        texts = {tuple(text) for text in [*answers, *map(words_of, replies)] if len(text) >= SHORT}
        quotable = _rare(questions, WORDS) | {
            gram for text in texts for gram in _runs(text, min(WORDS, len(text)))
        }
        whole = {tuple(text) for _, text in questions if SHORT <= len(text) < WORDS}
        self.grams = {gram for gram in quotable - free if gram in whole or self._telling(gram) >= 2}
        self.listed = {
            text for text in map(tuple, answers) if SHORT <= len(text) < WORDS
        } - self.grams
        counts = Counter(
            tuple(answer) for answer in answers if not any(map(numbers.is_number, answer))
        )
        labels = {answer for answer, count in counts.items() if count >= LABEL}
        self._of_shown(shown, _boilerplate(questions), free, labels)
        self.lengths = sorted({len(gram) for gram in self.grams | self.listed})
        self.number_pairs = {
            pair for sample in shown for pair in numbers.pairs(sample["question"])
        } - set(numbers.pairs(public))

    def _of_shown(
        self,
        shown: list[dict[str, Any]],
        common: set[tuple[str, ...]],
        free: set[Any],
        labels: set[tuple[str, ...]],
    ) -> None:
        """What the samples add: shorter runs, the words of short texts in any order, whole replies
        of a word or two, and numbers.

        `listed` are runs of everyday words alone, which count where a sentence lists them too.
        """
        self.short = set[tuple[str, ...]]()
        self.bags, self.numbers, self.answers = list[set[str]](), set[str](), set[str]()
        for sample in shown:
            for name in ("question", "expected", "output"):
                text = words_of(sample[name])
                self.numbers |= {word for word in text if numbers.is_number(word)} - self.public
                for part in _own(text, common):
                    length = min(len(part), SHORT if len(part) <= LISTED else SHOWN)
                    runs = set(_runs(part, length)) - free if length >= SHORT else set()
                    whole = {tuple(part)} - free if SHOWN <= len(part) <= LISTED else set()
                    self.grams |= {gram for gram in runs if self._telling(gram, ()) >= 2} | whole
                    self.listed |= {gram for gram in runs if self._telling(gram, ()) < 2}
                    bag = {word for word in part if self._telling((word,))}
                    if len(part) <= LISTED and len(bag) >= SHORT:
                        self.bags.append(bag)
                if name != "question" and 0 < len(text) < 3 and tuple(text) not in labels:
                    if all(map(numbers.is_number, text)):
                        self.answers |= set(text)
                    elif self._telling(tuple(text)):
                        self.short.add(tuple(text))

    def _telling(self, gram: tuple[str, ...], public: Iterable[str] | None = None) -> int:
        """How many words of a run are neither everyday words nor (unless told otherwise) the
        prompt's own.
        """
        known = self.public if public is None else public
        return sum(
            word not in known and word not in everyday() and not _digit(word) for word in gram
        )

    def leaks(self, sentence: str) -> bool:
        """Whether a sentence repeats the content of an item."""
        words = words_of(sentence)
        if any(self._quoted(words, sentence)):
            return True
        told = {
            tuple(words[at : at + length])
            for length in (1, 2)
            for at in range(len(words) - length + 1)
        }
        if told & self.short or set(numbers.pairs(sentence)) & self.number_pairs:
            return True
        if any(len(bag & set(words)) >= SHORT for bag in self.bags):
            return True
        return any(
            self._number(words, at)
            for at, word in enumerate(words)
            if word in self.numbers | self.answers
        )

    def _quoted(self, words: list[str], text: str) -> Iterable[range]:
        """Where the words hold a run that they may not."""
        separated: set[tuple[str, ...]] | None = None
        for length in self.lengths:
            for at in range(len(words) - length + 1):
                gram = tuple(words[at : at + length])
                if gram in self.listed and separated is None:
                    separated = _separated(text)
                if gram in self.grams or (gram in self.listed and gram in (separated or ())):
                    yield range(at, at + length)

    def _number(self, words: list[str], at: int) -> bool:
        small = float(words[at]) <= numbers.COMMON
        if small or words[at] not in self.numbers:
            return words[at] in self.answers and numbers.told(words, at)
        return not numbers.measured(words, at)

    def found(self, text: str) -> list[str]:
        """The sentences of a text that leak."""
        return [sentence for sentence, leaks in self._marked(text) if leaks]

    def cut(self, text: str) -> str:
        """The text without them."""
        return " ".join(sentence for sentence, leaks in self._marked(text) if not leaks)

    def _marked(self, text: str) -> list[tuple[str, bool]]:
        """Each sentence and whether it leaks, by itself or as a part of a quotation that runs over
        its end.
        """
        parts = sentences(text)
        placed = [(index, word) for index, part in enumerate(parts) for word in words_of(part)]
        leaking = {index for index, part in enumerate(parts) if self.leaks(part)}
        for place in self._quoted([word for _, word in placed], text):
            leaking.update(placed[at][0] for at in place)
        return [(part, index in leaking) for index, part in enumerate(parts)]


def sentences(text: str) -> list[str]:
    return [part for part in _ENDS.split(" ".join(text.split())) if part]


@functools.cache
def everyday() -> frozenset[str]:
    """Words that give no item away: those of common_words.txt."""
    lines = Path(__file__).with_name("common_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines[1:] for word in re.split(r"[' ]", line))


def _digit(word: str) -> bool:
    return word.isdigit() and len(word) == 1


def _runs(words: Any, length: int) -> list[tuple[str, ...]]:
    return (
        [tuple(words[at : at + length]) for at in range(len(words) - length + 1)] if length else []
    )


def _rare(questions: list[tuple[str, list[str]]], length: int) -> set[tuple[str, ...]]:
    """The runs of that length that few questions of a benchmark share; of a shorter question of
    three words or more, all of it.
    """
    counts, sizes = _counted(questions, length)
    return {gram for (benchmark, gram), count in counts.items() if count < _often(sizes[benchmark])}


def _boilerplate(questions: list[tuple[str, list[str]]]) -> set[tuple[str, ...]]:
    """Runs of three words that many questions of a benchmark share: its instructions."""
    counts, sizes = _counted(questions, SHORT)
    return {
        gram for (benchmark, gram), count in counts.items() if count >= _often(sizes[benchmark])
    }


def _counted(
    questions: list[tuple[str, list[str]]], length: int
) -> tuple[Counter[Any], Counter[str]]:
    runs = (
        (name, gram)
        for name, text in questions
        if len(text) >= SHORT
        for gram in set(_runs(text, min(length, len(text))))
    )
    return Counter(runs), Counter(name for name, _ in questions)


def _often(items: int) -> float:
    return max(2, min(max(10, COMMON * items), items / 2))


def _own(words: list[str], common: set[tuple[str, ...]]) -> list[list[str]]:
    """The parts of a text that are its own: what no common run of three words covers."""
    covered = [False] * len(words)
    for at, gram in enumerate(_runs(words, SHORT)):
        if gram in common:
            covered[at : at + SHORT] = [True] * SHORT
    parts: list[list[str]] = [[]]
    for word, common_word in zip(words, covered, strict=True):
        if common_word:
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def _separated(text: str) -> set[tuple[str, ...]]:
    """Runs of three and four words of a text that stand between commas, quotation marks, slashes or
    arrows, as in a list.
    """
    units = [
        unit
        for part in re.split(r"[,;/|\"'`\u2018-\u201f\u2022\u2192>+_-]+|\.(?=\w)", text)
        if (unit := words_of(re.sub(r"^\s*(?:and|or)\s+(?=\w)", "", part)))
    ]
    chain, chains = list[str](), list[list[str]]()
    # the last word of what stands before a list is its first, and the first word of what follows is
    # its last
    for unit in units:
        if len(unit) == 1:
            chain.append(unit[0])
        else:
            chains.append([*chain, unit[0]])
            chain = [unit[-1]]
    return {
        gram
        for words in [*chains, chain]
        for length in (SHORT, SHOWN)
        for gram in _runs(words, length)
    }
