"""Items by their content, and whether a reply holds the answer to one."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable

from stages.common import extraction, numerals
from stages.common.files import sha256_text

SPLITS = ("val", "test")


def item_id(benchmark: str, question: str, answer: str) -> str:
    """The first 16 hex digits of the SHA-256 of an item's content."""
    return sha256_text(f"{benchmark}\0{question}\0{answer}")[:16]


def ids_sha256(ids: Iterable[str]) -> str:
    """Hash of a set of items: the same wherever the same questions were asked."""
    return sha256_text("\n".join(sorted(set(ids))))


def holds(gold: str, prediction: str) -> bool:
    """Whether a reply holds an answer in any form: much of a strict gain is format, so the lenient
    score is reported too.

    A number counts if the reply gives it as its answer, or as its last number; a letter, yes and no
    if it is the one that the reply gives (see extraction.py); any other answer if it occurs in the
    reply as whole words, case and punctuation ignored. What the model thought counts for nothing.
    """
    if numerals.absent(gold, prediction):
        return False
    kind = extraction.kind([gold.strip().upper() if len(gold.strip()) == 1 else gold])
    if kind == "number" and extraction.ends_with_number(gold, prediction):
        return True
    if kind:
        return extraction.right(kind, gold, prediction)
    words = _words(gold)
    return bool(words.strip()) and words in _words(extraction.visible(prediction))


def _words(text: str) -> str:
    """Case-folded words with one blank around each, so that `in` compares whole words."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())
    return f" {' '.join(words)} "


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927, JASA 22:209): stays within [0, 1] and holds
    at 0 and n successes.
    """
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)
