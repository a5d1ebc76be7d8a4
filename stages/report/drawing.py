"""Coordinates of the page's drawings: plain numbers for inline SVG, so that the template holds no arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stages.common.items import wilson
from stages.common.losses import Loss

WIDTH = 640
LEFT, RIGHT = 150, 56
"""Room for the labels and for the numbers beside a bar, in SVG units."""
ROW = 26
CURVE_HEIGHT = 220
MARGIN = {"left": 48, "right": 12, "top": 10, "bottom": 34}


def x_of(share: float) -> float:
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)


def bar(label: str, kind: str, share: float, n: int) -> dict[str, Any]:
    """One accuracy with its 95 % Wilson interval; `kind` names its colour."""
    low, high = wilson(round(share * n), n)
    x, x_low, x_high = x_of(share), x_of(low), x_of(high)
    where = {"x": x, "width": round(x - LEFT, 2), "x_low": x_low, "x_high": x_high}
    return {"label": label, "kind": kind, "share": share, "low": low, "high": high, "n": n, **where}


def bars(sides: list[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    """Strict and lenient bars of one benchmark for each side, given as (label, kind, {n, accuracy, lenient})."""
    rows: list[dict[str, Any]] = []
    for label, kind, scores in sides:
        for measure, key in (("strict", "accuracy"), ("lenient", "lenient")):
            row = bar(f"{label}, {measure}", kind, scores[key], scores["n"])
            rows.append({**row, "measure": measure, "y": ROW * len(rows) + 4})
    ticks = [{"x": x_of(k / 4), "text": f"{25 * k} %"} for k in range(5)]
    height = ROW * len(rows)
    return {"rows": rows, "ticks": ticks, "height": height, "width": WIDTH, "left": LEFT, "thickness": ROW - 10}


def curve(losses: Sequence[Loss]) -> dict[str, Any] | None:
    """Polylines and ticks of the loss curve, without losses that are not finite; None where nothing can be drawn."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for step, split, loss in losses:
        if math.isfinite(loss):
            lines.setdefault(split, []).append((step, loss))
    points = [point for line in lines.values() for point in line]
    if not points:
        return None
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    top = _round_up(max(loss for _, loss in points))
    inner_width, inner_height = WIDTH - MARGIN["left"] - MARGIN["right"], CURVE_HEIGHT - MARGIN["top"] - MARGIN["bottom"]

    def x(step: float) -> float:
        return round(MARGIN["left"] + (step - first) / max(1, last - first) * inner_width, 1)

    def y(loss: float) -> float:
        return round(MARGIN["top"] + (1 - max(0.0, loss) / top) * inner_height, 1)

    return {
        "width": WIDTH,
        "height": CURVE_HEIGHT,
        "lines": [
            {"split": split, "points": " ".join(f"{x(step)},{y(loss)}" for step, loss in line), "first": line[0][1], "last": line[-1][1]}
            for split, line in sorted(lines.items(), reverse=True)
        ],
        "x_ticks": [{"x": x(step), "text": str(step)} for step in sorted({first + round(k * (last - first) / 4) for k in range(5)})],
        "y_ticks": [{"y": y(top * k / 4), "text": f"{top * k / 4:.3g}"} for k in range(5)],
        "right": WIDTH - MARGIN["right"],
        "left": MARGIN["left"],
        "bottom": CURVE_HEIGHT - MARGIN["bottom"],
    }


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten, so that four ticks have short names."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 8) if value <= step * power), 10 * power)
