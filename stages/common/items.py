"""Per-item results: the rows from which every score, interval and verdict is computed."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from stages.common import extraction, numerals
from stages.common.errors import PawlError
from stages.common.files import read_jsonl, sha256_text, write_jsonl

SPLITS = ("val", "test")
LARGEST_COUNT = 2**53  # beyond it, JSON's readers disagree on a whole number


@dataclass(frozen=True)
class Row:
    """What one model answered to one item.

    Attributes:
        item_id: hash of the item's content (see `item_id`), the same for base, incumbent and candidate.
        correct: the benchmark's own strict verdict; it decides.
        score: credit in [0, 1]; equals `correct` where the benchmark gives no partial credit.
        prediction: the reply as generated, before any post-processing.
        prompt_tokens, output_tokens: as counted by the server.
        truncated: the reply hit the output limit before it ended.
        repeat: 0 for the first run over the items, 1 for the second, ...
        fingerprint: hash of what the answers depend on (model, template, engine, sampling), as the summary's spells it out.
    """

    item_id: str
    benchmark: str
    split: str
    correct: bool
    score: float
    prediction: str
    gold: str
    prompt_tokens: int
    output_tokens: int
    truncated: bool
    repeat: int = 0
    fingerprint: str = ""


_OPTIONAL = {"repeat": 0, "fingerprint": ""}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "item_id": str, "benchmark": str, "split": str, "correct": bool, "score": (int, float), "prediction": str,
    "gold": str, "prompt_tokens": int, "output_tokens": int, "truncated": bool, "repeat": int, "fingerprint": str,
}  # fmt: skip


def item_id(benchmark: str, question: str, answer: str) -> str:
    """The first 16 hex digits of the SHA-256 of an item's content."""
    return sha256_text(f"{benchmark}\0{question}\0{answer}")[:16]


def ids_sha256(ids: Iterable[str]) -> str:
    """Hash of a set of items: the same wherever the same questions were asked."""
    return sha256_text("\n".join(sorted(set(ids))))


def write_rows(path: Path | str, rows: Iterable[Row]) -> None:
    write_jsonl(path, (asdict(row) for row in rows))


def read_rows(path: Path | str) -> list[Row]:
    """Read and check per-item results.

    Raises:
        PawlError: missing or broken file, a missing or unknown column, a value of the wrong type, a score outside [0, 1], a count that
            is none.
    """
    names = [field.name for field in fields(Row)]
    rows = []
    for number, value in enumerate(read_jsonl(path), 1):
        where = f"{path}, row {number}"
        if missing := [name for name in names if name not in value and name not in _OPTIONAL]:
            raise PawlError(f"column missing: {', '.join(missing)}", where=where, fix=f"a row has {', '.join(names)}")
        if unknown := [name for name in value if name not in names]:
            raise PawlError(f"unknown column: {', '.join(unknown)}", where=where, fix=f"a row has {', '.join(names)}")
        for name, kind in _TYPES.items():
            given = value.get(name, _OPTIONAL.get(name))
            if not isinstance(given, kind) or (kind is not bool and isinstance(given, bool)):
                raise PawlError(f"{name} is {given!r:.80}, of the wrong type", where=where)
        if not math.isfinite(value["score"]) or not 0 <= value["score"] <= 1:
            raise PawlError(f"score is {value['score']}, outside 0 to 1", where=where)
        for name in ("prompt_tokens", "output_tokens", "repeat"):
            if not 0 <= value.get(name, 0) <= LARGEST_COUNT:
                raise PawlError(f"{name} is {value[name]!r:.40}, which is no count", where=where)
        rows.append(Row(**value))
    return rows


def lenient(row: Row) -> bool:
    """Whether the reply holds the right answer whatever its form: much of a strict gain is format, so both are reported.

    A number counts if the reply gives it as its answer, or as its last number; a letter, yes and no if it is the one that the reply
    gives (see extraction.py); any other answer if it occurs in the reply as whole words, case and punctuation ignored. What the
    model thought counts for nothing.
    """
    if row.correct:
        return True
    if numerals.absent(row.gold, row.prediction):
        return False
    kind = extraction.kind([row.gold.strip().upper() if len(row.gold.strip()) == 1 else row.gold])
    if kind == "number" and extraction.ends_with_number(row.gold, row.prediction):
        return True
    if kind:
        return extraction.right(kind, row.gold, row.prediction)
    gold = _words(row.gold)
    return bool(gold.strip()) and gold in _words(extraction.visible(row.prediction))


def _words(text: str) -> str:
    """Case-folded words with one blank around each, so that `in` compares whole words."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())
    return f" {' '.join(words)} "


def summarize(rows: list[Row]) -> dict[str, Any]:
    """Scores of one evaluation, pooled and for each benchmark, computed from its rows."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.benchmark, []).append(row)
    return {"overall": _scores(rows), "benchmarks": {name: _scores(part) for name, part in sorted(by_name.items())}}


def _scores(rows: list[Row]) -> dict[str, Any]:
    n = len(rows)
    if not n:
        return {"n": 0}
    correct = sum(row.correct for row in rows)
    low, high = wilson(correct, n)
    return _repeated(rows) | {
        "n": n,
        "accuracy": correct / n,
        "accuracy_low": low,
        "accuracy_high": high,
        "lenient": sum(lenient(row) for row in rows) / n,
        "score": sum(row.score for row in rows) / n,
        "truncated": sum(row.truncated for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "prompt_tokens": sum(row.prompt_tokens for row in rows),
    }


def _repeated(rows: list[Row]) -> dict[str, Any]:
    """pass@k where items were asked several times: the chance that one of k answers to an item is right, averaged over items.

    Unbiased estimate 1 - C(n-c, k) / C(n, k) from n answers of which c are right (Chen et al. 2021, arXiv 2107.03374, equation 1).
    The interval around the accuracy takes all answers for independent, which repeats of one item are not: it is then too narrow.
    """
    runs = 1 + max(row.repeat for row in rows)
    if runs == 1:
        return {}
    right: dict[str, int] = {}
    for row in rows:
        right[row.item_id] = right.get(row.item_id, 0) + row.correct
    shares = {
        str(k): sum(1 - math.comb(runs - c, k) / math.comb(runs, k) for c in right.values()) / len(right) for k in range(1, runs + 1)
    }  # fmt: skip
    return {"items": len(right), "pass_at_k": shares}


def error_samples(
    rows: list[Row], questions: dict[str, str], *, count: int, seed: int, question_characters: int = 600, output_characters: int = 400
) -> list[dict[str, Any]]:
    """A few rows that are really wrong, for eyes and for prompts: the same for the same seed, as even over the benchmarks as can be.

    Args:
        questions: item_id to question; a row without one is left out.
        count: how many in all.

    Returns:
        {benchmark, question, gold, output, truncated}; what was cut ends with a mark that says how much is missing.
    """
    wrong: dict[str, list[Row]] = {}
    for row in rows:
        if not row.correct and row.score < 1 and row.item_id in questions and row.repeat == 0:
            wrong.setdefault(row.benchmark, []).append(row)
    queues = [sorted(part, key=lambda row: sha256_text(f"{seed}\0{row.item_id}")) for _, part in sorted(wrong.items())]
    chosen = [queue[place] for place in range(max(map(len, queues), default=0)) for queue in queues if place < len(queue)][:count]
    return [
        {
            "benchmark": row.benchmark, "question": _cut(questions[row.item_id], question_characters), "gold": _cut(row.gold, 200),
            "output": _cut(row.prediction, output_characters), "truncated": row.truncated,
        }
        for row in chosen
    ]  # fmt: skip


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]} [... {len(text) - characters} characters cut]"


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927, JASA 22:209): stays within [0, 1] and holds at 0 and n successes."""
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)
