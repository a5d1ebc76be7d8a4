"""Wrong answers of the candidate to validation items, for a person who wants to see what it does.
Never test items.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.common.files import read_jsonl
from stages.common.reports.evaluation import Row, read_rows
from stages.common.text import visible

EACH, ALL = 6, 40
"""The most samples of one benchmark, and of all."""
QUESTION, REPLY = 800, 500
"""Characters shown."""


def error_samples(root: Path, incumbent: str) -> list[dict[str, Any]]:
    """For each benchmark how many answers are wrong, and some of them: first what the incumbent had
    right, then in order of item_id.

    item_id is a hash, so that its order is as good as a draw, and the same each time.
    """
    before = {
        row.item_id: row for row in read_rows(root / incumbent / "val.jsonl", Row) if not row.repeat
    }
    by_name: dict[str, list[Row]] = {}
    for row in read_rows(root / "reports/eval_val/val.jsonl", Row):
        if not row.repeat:
            by_name.setdefault(row.benchmark, []).append(row)
    wrong = {
        name: [row for row in part if not row.correct] for name, part in sorted(by_name.items())
    }
    chosen = {name: _chosen(part, before) for name, part in wrong.items()}
    asked = _questions(
        root / "data/benchmark/val", {row.item_id for part in chosen.values() for row in part}
    )
    left, found = ALL, []
    for name, part in chosen.items():
        lost = sum(_right(before, row) for row in wrong[name])
        shown = part[:left]
        left -= len(shown)
        items = [_shown(row, before.get(row.item_id), asked) for row in shown]
        found.append(
            {
                "name": name,
                "n": len(by_name[name]),
                "wrong": len(wrong[name]),
                "lost": lost,
                "items": items,
            }
        )
    return found


def _right(before: dict[str, Row], row: Row) -> bool:
    """Whether the incumbent had this item right."""
    return row.item_id in before and before[row.item_id].correct


def _chosen(wrong: list[Row], before: dict[str, Row]) -> list[Row]:
    ordered = sorted(wrong, key=lambda row: row.item_id)
    lost = [row for row in ordered if _right(before, row)]
    rest = [row for row in ordered if not _right(before, row)]
    return (lost[: EACH // 2] + rest + lost[EACH // 2 :])[:EACH]


def _questions(folder: Path, wanted: set[str]) -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        for item in read_jsonl(path):
            if item.get("item_id") in wanted:
                found[item["item_id"]] = str(item.get("question", ""))
    return found


def _shown(row: Row, earlier: Row | None, asked: dict[str, str]) -> dict[str, Any]:
    return {
        "id": visible(row.item_id, 40),
        "question": visible(asked.get(row.item_id, ""), QUESTION),
        "gold": visible(row.gold, REPLY),
        "reply": visible(row.prediction, REPLY),
        "truncated": row.truncated,
        "incumbent": visible(earlier.prediction, REPLY) if earlier else "",
        "incumbent_right": earlier is not None and earlier.correct,
    }
