"""Words that would carry a benchmark into the next experiment: what a language model says, checked against the validation items.

Whoever proposes the next experiment reads the verdict. If it quoted items, their answers or the model's replies to them, the next training
data could be made to fit them, and the validation score would say nothing any more.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

WORDS = 5
"""Consecutive words shared with a question that count as a quotation; of a shorter text, all of it."""
COMMON = 0.1
"""An n-gram that this share of the questions has in common (at least ten of them) is an instruction and no item's content."""
_ENDS = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[A-Z0-9])")


def words_of(text: str) -> list[str]:
    """Case-folded words; full-width digits, invisible characters and grouped thousands hide none."""
    text = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf")
    return re.findall(r"[^\W_]+", re.sub(r"(?<=\d)[,'\u2019](?=\d{3}(?!\d))", "", text).casefold())


class Guard:
    """What may not be repeated: the texts of all items, and more strictly those that the language model was shown."""

    def __init__(self, items: Iterable[dict[str, str]], replies: Iterable[str], shown: Iterable[dict[str, Any]], public: str) -> None:
        """
        Args:
            items: all validation items (question, answer).
            replies: all predictions of candidate and incumbent.
            shown: the samples in the prompt (question, expected, output).
            public: the rest of the prompt: figures, settings, names, whatever may be said again.
        """
        listed, shown = list(items), list(shown)
        known = words_of(public)
        self.public = set(known) | {"yes", "no", "true", "false", "none"}
        free = {tuple(known[at : at + WORDS]) for at in range(len(known))}
        counts = Counter(gram for item in listed for gram in set(_grams(words_of(item["question"]))))
        often = max(10, COMMON * len(listed))
        self.grams = {gram for gram, count in counts.items() if count < often} - free
        texts = {tuple(words_of(text)) for text in (*(item["answer"] for item in listed), *replies)}
        self.grams |= {gram for text in texts if len(text) >= 3 for gram in _grams(list(text))} - free
        self.lengths = sorted({len(gram) for gram in self.grams})
        told = [sample[name] for sample in shown for name in ("expected", "output")]
        self.short = {text for text in map(tuple, map(words_of, told)) if 0 < len(text) < 3} - {(word,) for word in self.public}
        every = [word for sample in shown for name in ("question", "expected", "output") for word in words_of(sample[name])]
        self.numbers = {word for word in every if word.isdigit()} - self.public
        self.number_pairs = {pair for sample in shown for pair in _number_pairs(sample["question"])} - set(_number_pairs(public))

    def leaks(self, sentence: str) -> bool:
        """Whether a sentence repeats the content of an item."""
        words = words_of(sentence)
        for length in self.lengths:
            if any(tuple(words[at : at + length]) in self.grams for at in range(len(words) - length + 1)):
                return True
        parts = {tuple(words[at : at + length]) for length in (1, 2) for at in range(len(words) - length + 1)}
        return bool(parts & self.short or set(words) & self.numbers or set(_number_pairs(sentence)) & self.number_pairs)

    def found(self, text: str) -> list[str]:
        """The sentences of a text that leak."""
        return [sentence for sentence, leaks in self._marked(text) if leaks]

    def cut(self, text: str) -> str:
        """The text without them."""
        return " ".join(sentence for sentence, leaks in self._marked(text) if not leaks)

    def _marked(self, text: str) -> list[tuple[str, bool]]:
        """Each sentence and whether it leaks, by itself or as a part of a quotation that runs over its end."""
        parts = sentences(text)
        placed = [(index, word) for index, part in enumerate(parts) for word in words_of(part)]
        owner, words = [index for index, _ in placed], [word for _, word in placed]
        leaking = {index for index, part in enumerate(parts) if self.leaks(part)}
        for length in self.lengths:
            for at in range(len(words) - length + 1):
                if tuple(words[at : at + length]) in self.grams:
                    leaking.update(owner[at : at + length])
        return [(part, index in leaking) for index, part in enumerate(parts)]


def sentences(text: str) -> list[str]:
    return [part for part in _ENDS.split(" ".join(text.split())) if part]


def _grams(words: list[str]) -> list[tuple[str, ...]]:
    """All runs of `WORDS` words, or the whole text where it is shorter and has three words at least."""
    if len(words) < WORDS:
        return [tuple(words)] if len(words) >= 3 else []
    return [tuple(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)]


def _number_pairs(text: str) -> list[tuple[str, str]]:
    """Numbers that follow each other with nothing but signs between them, such as the terms of a sum."""
    numbers = list(re.finditer(r"\d+", text))
    pairs = pairwise(numbers)
    return [(a.group(), b.group()) for a, b in pairs if re.fullmatch(r"[\s+\-*/x\u00d7\u00f7=,^]{1,5}", text[a.end() : b.start()])]
