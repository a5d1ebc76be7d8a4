"""A million training rows and twenty thousand benchmark items for measuring, seeded: words of a
natural frequency, some items planted.

python benchmarks/rows.py FOLDER --rows 1000000 --items 20000 --planted 1000
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np

WORDS_A_ROW = (60, 140)
WORDS_AN_ITEM = (30, 70)


def vocabulary(size: int = 30_000) -> list[str]:
    """Words of two to four syllables; the first ones are the frequent ones."""
    rng = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    found: dict[str, None] = {}
    while len(found) < size:
        found["".join(rng.choice(syllables) for _ in range(rng.randint(2, 4)))] = None
    return list(found)


def texts(count: int, lengths: tuple[int, int], seed: int) -> list[list[str]]:
    """Independent texts whose words follow Zipf's law."""
    known = np.array(vocabulary())
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(known) + 1)
    drawn = rng.integers(lengths[0], lengths[1] + 1, count)
    flat = known[np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(drawn.sum()))]
    return [part.tolist() for part in np.split(flat, np.cumsum(drawn)[:-1])]


def write(folder: Path, rows: int, items: int, planted: int) -> list[int]:
    """Write items.jsonl and rows.jsonl; returns the rows (counted from 0) that hold 13 words in a
    row of an item.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    given = texts(items, WORDS_AN_ITEM, 2)
    with open(folder / "items.jsonl", "w", encoding="utf-8") as file:
        for number, words in enumerate(given):
            words.insert(len(words) // 2, str(rng.randint(1, 10_000)))
            file.write(json.dumps({"question": " ".join(words), "answer": str(number)}) + "\n")
    places = sorted(rng.sample(range(rows), planted))
    wanted = set(places)
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as file:
        for start in range(0, rows, 50_000):
            for at, words in enumerate(
                texts(min(50_000, rows - start), WORDS_A_ROW, 100 + start), start
            ):
                cut = rng.randint(5, len(words) - 5)
                if at in wanted:
                    item = rng.choice(given)
                    begin = rng.randint(0, len(item) - 13)
                    where = rng.randint(0, len(words))
                    words[where:where] = item[begin : begin + 13]
                file.write(
                    json.dumps({"question": " ".join(words[:cut]), "answer": " ".join(words[cut:])})
                    + "\n"
                )
    return places


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--planted", type=int, default=1_000)
    args = parser.parse_args()
    (args.folder / "planted.json").parent.mkdir(parents=True, exist_ok=True)
    (args.folder / "planted.json").write_text(
        json.dumps(write(args.folder, args.rows, args.items, args.planted))
    )
