"""Texts that are nearly the same, by MinHash over runs of three words (Broder 1997): among the
rows, and between rows and items.

rensa computes the signatures. What is kept of a row is small: 8 bands of 12 bytes in memory, its
signature on disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stages.generate_data.grams import PLACES, Array, Lookup

WORDS = 3
PERMUTATIONS = 64
_SEED = 42


def signatures(shingles: Array, counts: Array) -> Array:
    """uint32 array (texts, PERMUTATIONS): the MinHash of each text's shingles, which lie one text
    after the other.

    The share of equal places in two of them estimates the Jaccard similarity J of their sets, with
    a standard error of sqrt(J (1 - J) / 64), 0.06 at most.
    """
    from rensa import RMinHash

    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        np.ascontiguousarray(shingles), offsets, PERMUTATIONS, _SEED
    )
    return np.array(matrix.to_rows(), dtype=np.uint32).reshape(len(counts), PERMUTATIONS)


def bands(signature: Array, rows: int) -> Array:
    """uint64 array (texts, PERMUTATIONS / rows): a hash of each band of so many places.

    Two texts of similarity J share a band with probability 1 - (1 - J^rows)^(64 / rows).
    """
    parts = signature.astype(np.uint64).reshape(len(signature), -1, rows)
    mixed = (parts * PLACES[:rows]).sum(axis=2, dtype=np.uint64)
    return (mixed ^ (mixed >> np.uint64(29))) * PLACES[rows] + np.arange(
        parts.shape[1], dtype=np.uint64
    ) * PLACES[rows + 1]


class Similar:
    """Questions of the benchmark, to be found again with other numbers and a few other words.

    Candidates come from 16 bands of 4 (a pair of similarity 0.6 is one with probability 0.89, of
    0.8 with 0.9998) and are then compared shingle by shingle, so that nothing is found by chance.
    """

    ROWS = 4

    def __init__(self, shingles: list[Array], values: list[int], threshold: float) -> None:
        """Args: distinct shingles of each question, and what `find` is to give for it."""
        self._shingles, self._values, self.threshold = shingles, values, threshold
        counts = np.array([len(part) for part in shingles], np.int64)
        flat = np.concatenate(shingles) if shingles else np.zeros(0, np.uint64)
        hashes = (
            bands(signatures(flat, counts), self.ROWS) if shingles else np.zeros((0, 1), np.uint64)
        )
        self._lookup = Lookup(hashes.ravel(), np.repeat(np.arange(len(shingles)), hashes.shape[1]))

    def find(self, shingles: Array, counts: Array) -> list[tuple[int, int]]:
        """(text, value) of every text that is similar to a question."""
        if not len(self._lookup) or not len(counts):
            return []
        hashes = bands(signatures(shingles, counts), self.ROWS)
        ends = np.cumsum(counts)
        found, seen = [], set()
        for place in self._lookup.known(hashes.ravel()):
            text = int(place) // hashes.shape[1]
            for question in self._lookup.under(hashes.ravel()[place]):
                if (text, question) not in seen:
                    seen.add((text, question))
                    own = np.unique(shingles[ends[text] - counts[text] : ends[text]])
                    shared = len(np.intersect1d(own, self._shingles[question], assume_unique=True))
                    if shared >= self.threshold * (
                        len(own) + len(self._shingles[question]) - shared
                    ):
                        found.append((text, self._values[question]))
        return found


class NearDuplicates:
    """The rows kept so far. A row is a near duplicate of an earlier one from a similarity of
    `threshold` on, as MinHash estimates it.

    Candidates come from 8 bands of 8: a pair of similarity 0.9 is one with probability 0.99, of 0.8
    with 0.77, of 0.5 with 0.03.
    """

    ROWS = 8

    def __init__(self, threshold: float, path: Path) -> None:
        """Args: `path`: a scratch file for the signatures, 256 bytes a row."""
        self.threshold = threshold
        self._file = open(path, "wb+")  # noqa: SIM115 - held as long as this object
        self._rows = 0
        # runs of (band hash, row), each sorted; merged like the digits of a counter
        self._sorted: list[tuple[Array, Array]] = []

    def close(self) -> None:
        self._file.close()

    def add(self, signature: Array) -> list[bool]:
        """Which of these texts, in their order, are near duplicates of an earlier one. The others
        are remembered.
        """
        hashes = bands(signature, self.ROWS)
        before: list[set[int]] = [set() for _ in signature]
        for keys, rows in self._sorted:
            left: Array = np.searchsorted(keys, hashes, "left")
            right: Array = np.searchsorted(keys, hashes, "right")
            for text, band in zip(*np.nonzero(right > left), strict=True):
                before[text].update(rows[left[text, band] : right[text, band]].tolist())
        new: dict[int, list[int]] = {}
        kept: list[int] = []
        flags = []
        for text in range(len(signature)):
            own = hashes[text].tolist()
            among = {other for value in own for other in new.get(value, ())}
            duplicate = any(
                self._alike(signature[text], signature[other]) for other in among
            ) or any(self._alike(signature[text], self._stored(row)) for row in before[text])
            flags.append(duplicate)
            if not duplicate:
                kept.append(text)
                for value in own:
                    new.setdefault(value, []).append(text)
        self._remember(signature[kept], hashes[kept])
        return flags

    def _alike(self, one: Array, other: Array) -> bool:
        return bool((one == other).mean() >= self.threshold)

    def _stored(self, row: int) -> Array:
        self._file.seek(row * PERMUTATIONS * 4)
        return np.frombuffer(self._file.read(PERMUTATIONS * 4), np.uint32)

    def _remember(self, signature: Array, hashes: Array) -> None:
        self._file.seek(self._rows * PERMUTATIONS * 4)
        self._file.write(signature.tobytes())
        self._file.flush()
        rows = np.repeat(
            np.arange(self._rows, self._rows + len(signature), dtype=np.uint32), hashes.shape[1]
        )
        self._rows += len(signature)
        run: tuple[Any, Any] = _in_order(hashes.ravel(), rows)
        while self._sorted and len(self._sorted[-1][0]) <= 2 * len(run[0]):
            keys, older = self._sorted.pop()
            run = _in_order(np.concatenate([keys, run[0]]), np.concatenate([older, run[1]]))
        if len(run[0]):
            self._sorted.append(run)


def _in_order(keys: Array, rows: Array) -> tuple[Array, Array]:
    order = np.argsort(keys, kind="stable")
    return keys[order], rows[order]
