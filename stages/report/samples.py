"""Wrong answers of the candidate to validation items, for a person who wants to see what it does. Never test items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.common.files import read_jsonl
from stages.common.text import visible

EACH, ALL = 6, 40
"""The most samples of one benchmark, and of all."""
QUESTION, REPLY = 800, 500
"""Characters shown."""


def error_samples(root: Path, incumbent: str) -> list[dict[str, Any]]:
    """For each benchmark how many answers are wrong, and some of them: first what the incumbent had right, then in order of item_id.

    item_id is a hash, so that its order is as good as a draw, and the same each time.
    """
    rows = [row for row in read_jsonl(root / "reports/eval_val/val.jsonl") if row.get("split") == "val" and not row.get("repeat")]
    before = {row.get("item_id"): row for row in read_jsonl(root / incumbent / "val.jsonl") if not row.get("repeat")}
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(str(row.get("benchmark")), []).append(row)
    chosen = {name: _chosen([row for row in part if not row.get("correct")], before) for name, part in sorted(by_name.items())}
    asked = _questions(root / "data/benchmark/val", {row.get("item_id") for part in chosen.values() for row in part})
    left, found = ALL, []
    for name, part in chosen.items():
        wrong = [row for row in by_name[name] if not row.get("correct")]
        lost = sum(bool(before.get(row.get("item_id"), {}).get("correct")) for row in wrong)
        shown = part[:left]
        left -= len(shown)
        items = [_shown(row, before.get(row.get("item_id"), {}), asked) for row in shown]
        found.append({"name": name, "n": len(by_name[name]), "wrong": len(wrong), "lost": lost, "items": items})
    return found


def _chosen(wrong: list[dict[str, Any]], before: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    def order(row: dict[str, Any]) -> tuple[bool, str]:
        return not before.get(row.get("item_id"), {}).get("correct"), str(row.get("item_id"))

    ordered = sorted(wrong, key=order)
    lost, rest = ([row for row in ordered if order(row)[0] is kind] for kind in (False, True))
    return (lost[: EACH // 2] + rest + lost[EACH // 2 :])[:EACH]


def _questions(folder: Path, wanted: set[Any]) -> dict[Any, str]:
    found = {}
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        for item in read_jsonl(path):
            if item.get("item_id") in wanted:
                found[item["item_id"]] = str(item.get("question", ""))
    return found


def _shown(row: dict[str, Any], earlier: dict[str, Any], asked: dict[Any, str]) -> dict[str, Any]:
    return {
        "id": visible(row.get("item_id", ""), 40),
        "question": visible(asked.get(row.get("item_id"), ""), QUESTION),
        "gold": visible(row.get("gold", ""), REPLY),
        "reply": visible(row.get("prediction", ""), REPLY),
        "truncated": bool(row.get("truncated")),
        "incumbent": visible(earlier.get("prediction", ""), REPLY) if earlier else "",
        "incumbent_right": bool(earlier.get("correct")),
    }
