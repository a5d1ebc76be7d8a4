"""Which parts of what was read concern a question: paragraphs ranked by BM25 (SQLite's full-text
index, in memory).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

_PIECE = 600
"""Characters of a piece: a paragraph or two, so that a number keeps its surroundings."""
_EMPTY = {
    "a",
    "an",
    "and",
    "are",
    "as",
    "at",
    "be",
    "by",
    "do",
    "does",
    "for",
    "from",
    "how",
    "in",
    "is",
    "it",
    "its",
    "not",
    "of",
    "on",
    "or",
    "that",
    "the",
    "this",
    "to",
    "what",
    "which",
    "with",
}
_NUMBER_COUNTS = 1.25
"""A piece with a number counts a quarter more: a value can be taken over, a general remark
cannot.
"""


def match_any(query: str) -> str:
    """A full-text query for any word of a text; a dotted or underscored name counts as the words
    that it is made of. "" if none is left.
    """
    terms = [
        term
        for term in re.findall(r"[a-z0-9_]{2,40}", query.lower().replace(".", " "))
        if term not in _EMPTY
    ]
    return " OR ".join(f'"{term}"' for term in list(dict.fromkeys(terms))[:40])


def pieces(text: str) -> list[str]:
    """A text in paragraphs of at most `_PIECE` characters; short neighbours lie together, long ones
    are cut at a sentence or a gap.
    """
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=[#*|-] ?)", text):
        rest = paragraph.strip()
        while len(rest) > _PIECE:
            end = max(rest.rfind(mark, 0, _PIECE) for mark in (". ", "\n", "; ", " "))
            end = end + 1 if end > _PIECE // 4 else _PIECE
            found.append(rest[:end].strip())
            rest = rest[end:].strip()
        if found and rest and len(found[-1]) + len(rest) < _PIECE:
            found[-1] = f"{found[-1]}\n{rest}"
        elif rest:
            found.append(rest)
    return found


def scores(texts: Sequence[str], questions: Sequence[str]) -> list[float]:
    """For each text how well it fits the questions, 0 if not at all. Ranks are fused, so that no
    question outweighs the others.
    """
    found = [0.0] * len(texts)
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute("CREATE VIRTUAL TABLE pieces USING fts5(text, tokenize='porter')")
        base.executemany(
            "INSERT INTO pieces(rowid, text) VALUES (?, ?)",
            enumerate((text.replace("_", " ") for text in texts), 1),
        )
        for question in questions:
            asked = match_any(question.replace("_", " "))
            if not asked:
                continue
            ranked = base.execute(
                "SELECT rowid FROM pieces WHERE pieces MATCH ? ORDER BY bm25(pieces), rowid"
                " LIMIT 50",
                (asked,),
            )
            for rank, (row,) in enumerate(ranked):
                found[row - 1] += 1 / (5 + rank)
    return [
        score * _NUMBER_COUNTS if re.search(r"\d", text) else score
        for score, text in zip(found, texts, strict=True)
    ]


def excerpts(texts: Sequence[str], questions: Sequence[str], characters: int) -> list[str]:
    """For each text its pieces that fit the questions best, in their order, " ... " between them;
    all together within `characters`.

    Each text gives its best piece first (its beginning if nothing fits), as long as there is room;
    then the best pieces of all follow.
    """
    parts = [pieces(text) for text in texts]
    flat = [(number, place) for number, each in enumerate(parts) for place in range(len(each))]
    rated = dict(
        zip(flat, scores([parts[number][place] for number, place in flat], questions), strict=True)
    )
    best = [
        max(((number, place) for place in range(len(each))), key=lambda at: (rated[at], -at[1]))
        for number, each in enumerate(parts)
        if each
    ]
    rest = sorted((at for at in flat if rated[at] > 0), key=lambda at: (-rated[at], at))
    taken: set[tuple[int, int]] = set()
    left = characters
    for number, place in [*sorted(best, key=lambda at: (-rated[at], at)), *rest]:
        cost = len(parts[number][place]) + len(" ... ")
        if (number, place) not in taken and cost <= left:
            taken.add((number, place))
            left -= cost
    return [
        " ... ".join(part for place, part in enumerate(each) if (number, place) in taken)
        for number, each in enumerate(parts)
    ]
