"""Words and runs of words of many texts at once, as arrays of 64-bit hashes.

A word is a run of letters and digits, or one sign of arithmetic ("4 - 1" is not "4 + 1"); other
punctuation does not count, nor do the stars and underscores of Markdown around a word, and a
Chinese or Japanese character, written without blanks, is a word. Two different runs of words share
a hash with probability 2^-64.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.common.questions import normalize

Array = Any
_CJK = "\u3040-\u30ff\u3400-\u9fff"
_SIGNS = "-+/=<>^%\u00d7\u00f7\u00b1\u221a"
_TIMES = r"(?<=\w)\*(?=\w)|(?<= )\*(?= )"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+|[{_SIGNS}]|{_TIMES}")
SIGNS = frozenset([*_SIGNS, "*"])
_LONGEST = 64
# odd, so that no place of a run loses bits; drawn once and for all, since hashes decide which rows
# are near duplicates
PLACES = np.random.Generator(np.random.PCG64(20160212)).integers(
    0, 2**63, _LONGEST, dtype=np.uint64
) * np.uint64(2) + np.uint64(1)


class _Hashes(dict[str, int]):
    """BLAKE2b of a word, remembered: the same in every process, which Python's own hash is not."""

    def __missing__(self, word: str) -> int:
        if len(self) > 200_000:  # about 30 MB
            self.clear()
        value = int.from_bytes(
            hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
        )
        self[word] = value
        return value


_hashes = _Hashes()
_NUMBER = _hashes["#"]


def words(text: str) -> list[str]:
    return _WORD.findall(normalize(text))


@dataclass
class Block:
    """The words of many texts, one after the other.

    Attributes:
        words: all of them.
        hashes: uint64, one a word.
        text: int32, the number of the text that a word belongs to.
        starts: int64, where each text begins; one more than there are texts.
    """

    words: list[str]
    hashes: Array
    text: Array
    starts: Array


def block(texts: Sequence[Sequence[str]]) -> Block:
    """Lay out texts that are words already."""
    flat = [word for text in texts for word in text]
    lengths = np.fromiter((len(text) for text in texts), np.int64, len(texts))
    return Block(
        words=flat,
        hashes=np.fromiter((_hashes[word] for word in flat), np.uint64, len(flat)),
        text=np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
    )


def without_numbers(given: Block) -> Array:
    """The hashes of a block with one hash for whatever holds a digit."""
    digits = np.fromiter(
        (not word.isalpha() and word not in SIGNS for word in given.words), bool, len(given.words)
    )
    return np.where(digits, np.uint64(_NUMBER), given.hashes)


def runs(hashes: Array, group: Array, longest: int) -> Iterator[tuple[int, Array, Array]]:
    """(length, start of each run, its hash) of every run of 1 to `longest` words within one
    group.
    """
    total = np.zeros(len(hashes), np.uint64)
    for length in range(1, longest + 1):
        if len(hashes) < length:
            return
        total = total[: len(hashes) - length + 1] + hashes[length - 1 :] * PLACES[length - 1]
        inside = group[: len(total)] == group[length - 1 :]
        yield length, np.nonzero(inside)[0], total[inside]


def runs_of(hashes: Array, group: Array, length: int) -> tuple[Array, Array]:
    """The runs of one length alone: starts and hashes."""
    if len(hashes) < length:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    total = np.zeros(len(hashes) - length + 1, np.uint64)
    for place in range(length):
        total += hashes[place : len(total) + place] * PLACES[place]
    inside = group[: len(total)] == group[length - 1 :]
    return np.nonzero(inside)[0], total[inside]


class Lookup:
    """Which of many hashes are known, and what is kept under them. Memory: 20 to 30 bytes an
    entry.
    """

    def __init__(self, keys: Array, values: Array) -> None:
        order = np.argsort(keys, kind="stable")
        self._keys, self._values = keys[order], values[order]
        bits = max(10, int(len(keys) * 8).bit_length())
        self._mask = np.uint64(2**bits - 1)
        # most hashes are unknown: one look here settles nearly all of them
        self._flags = np.zeros(2**bits, bool)
        self._flags[self._keys & self._mask] = True

    def __len__(self) -> int:
        return len(self._keys)

    def known(self, hashes: Array) -> Array:
        """Positions in `hashes` of those that are known."""
        if not len(self._keys):
            return np.zeros(0, np.int64)
        maybe = np.nonzero(self._flags[hashes & self._mask])[0]
        at = np.minimum(np.searchsorted(self._keys, hashes[maybe]), len(self._keys) - 1)
        return maybe[self._keys[at] == hashes[maybe]]

    def under(self, value: Any) -> Array:
        """Everything that is kept under one hash."""
        return self._values[
            np.searchsorted(self._keys, value, "left") : np.searchsorted(self._keys, value, "right")
        ]
