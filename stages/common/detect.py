"""What gain a number of validation items can show, by the exact test that decides: said before
anything is trained.
"""

from __future__ import annotations

import math
from pathlib import Path

from stages.common.schema.judge import Judge


def least_gain(items: int, alpha: float, min_effect: float = 0.0) -> float | None:
    """The least gain in accuracy that a first look can accept, where no item gets worse; None where
    even all items right cannot.

    k items that turn right and none that turns wrong have p = 0.5^k by McNemar's exact test,
    one-sided; the first look is tested at alpha * 6 / pi^2 (stages/common/looks.py). With items
    that turn wrong, and at later looks, it takes more.
    """
    level = alpha * 6 / math.pi**2
    wins = math.floor(math.log2(1 / level)) + 1
    wins += 0.5**wins >= level
    wins = max(wins, math.ceil(min_effect * items - 1e-9))
    return wins / items if items > 0 and wins <= items else None


def told(items: int, alpha: float, min_effect: float) -> str:
    """The same in words."""
    gain = least_gain(items, alpha, min_effect)
    if gain is None:
        return (
            f"{items} validation items are too few: even if all of them turned right, no gain could"
            " be shown"
        )
    what = f"{items} validation items can show a gain of {100 * gain:.0f} points or more"
    return f"{what} (at the first look, where none gets worse); a smaller one is not accepted"


def few(folder: Path, judge: Judge) -> list[str]:
    """A warning where the validation items that lie in a folder cannot show what an experiment
    usually gains.
    """
    files = [path for path in folder.glob("*.jsonl") if judge.primary in ("", path.stem)]
    items = sum(path.read_bytes().count(b"\n") for path in files)
    return (
        [told(items, judge.alpha, judge.min_effect)]
        if items and is_coarse(items, judge.alpha, judge.min_effect)
        else []
    )


def is_coarse(items: int, alpha: float, min_effect: float) -> bool:
    """Whether gains of ten points go unseen, which is most of what an experiment gains."""
    gain = least_gain(items, alpha, min_effect)
    return gain is None or gain > 0.1
