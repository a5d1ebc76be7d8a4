"""What a number of items can show is what the judge's own test would accept at the first look."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.common.detect import few, least_gain, told
from stages.common.looks import spend
from stages.judge.significance import at_least


@pytest.mark.parametrize("alpha", [0.5, 0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("items", [1, 4, 5, 6, 18, 100, 1000])
def test_the_least_gain_is_the_least_that_the_exact_test_accepts(items: int, alpha: float) -> None:
    accepted = [wins for wins in range(1, items + 1) if at_least(wins, wins) < spend(alpha, 1)]
    assert least_gain(items, alpha) == (accepted[0] / items if accepted else None)


def test_few_items_are_said_to_be_few(tmp_path: Path) -> None:
    judge = SimpleNamespace(alpha=0.05, min_effect=0.01, primary="")
    (tmp_path / "mine.jsonl").write_text("{}\n" * 18)
    assert few(tmp_path, judge) == [told(18, 0.05, 0.01)]  # type: ignore[arg-type]
    assert "gain of 33 points or more" in told(18, 0.05, 0.01) and "too few" in told(3, 0.05, 0.01)
    (tmp_path / "more.jsonl").write_text("{}\n" * 200)
    assert few(tmp_path, judge) == []  # type: ignore[arg-type]
    judge.primary = "mine"
    assert few(tmp_path, judge)  # type: ignore[arg-type]
    assert least_gain(1000, 0.05, 0.02) == 0.02
