"""The page's charts: Vega-Lite through altair, drawn to static SVG by vl-convert.

Static on purpose: the page then needs no script at all, so its Content-Security-Policy forbids
every one (a hostile prediction has nothing to run in), it prints, it opens at once with hundreds of
experiments, and it weighs kilobytes where Vega's own scripts weigh a megabyte. Hovering shows a
mark's description, and a point of the search leads to its card. Each chart is drawn twice, for a
desk and for a phone. Colours are CSS variables, so that one drawing serves light, dark and print;
sides and statuses differ in shape too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import altair as alt
import vl_convert

from stages.common.text import visible

WIDTHS = {"wide": 560, "narrow": 250}
"""Inner width in pixels; labels and numbers come on top."""
SIDES = ("candidate", "incumbent", "baseline")
STATUSES = ("KEPT", "DISCARDED", "INCONCLUSIVE", "CRASHED")
MOST_POINTS = 400
"""Of a loss curve: more cannot be seen."""
_PERCENT = alt.Axis(format=".0%", grid=True)
_INTERVAL = {"low": "low:Q", "high": "high:Q"}
_clips = count()


def draw(chart: Callable[[int], alt.TopLevelMixin | None], label: str) -> dict[str, str]:
    """A chart in both widths as inline SVG, {} where there is nothing to draw; `label` is what a
    screen reader says.
    """
    made = {name: chart(width) for name, width in WIDTHS.items()}
    return {name: _svg(each, label) for name, each in made.items() if each is not None}


def _svg(chart: Any, label: str) -> str:
    quiet, text, rule = "var(--quiet)", "var(--text)", "var(--rule)"
    styled = (
        chart.configure(font="Liberation Sans")
        .configure_axis(
            labelColor=quiet,
            titleColor=quiet,
            gridColor=rule,
            domainColor=rule,
            tickColor=rule,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=170,
        )
        .configure_legend(
            labelColor=text,
            titleColor=quiet,
            labelFontSize=12,
            orient="top",
            title=None,
            symbolStrokeWidth=2,
            columns=2,
        )
        .configure_header(
            labelColor=text,
            labelFontSize=13,
            labelFontWeight="bold",
            labelAnchor="start",
            titleColor=text,
        )
        .configure_view(stroke=None)
        .properties(background="transparent")
    )
    svg = vl_convert.vegalite_to_svg(_visible(styled.to_dict(validate=False)))
    # page.css names fonts of the same metrics as the one that it was laid out with
    svg = re.sub(r' font-family="[^"]*"', "", svg)
    for old in set(re.findall(r'id="(clip\d+)"', svg)):  # several drawings share one page
        svg = re.sub(rf"(?<=[\"#]){old}(?=[\")])", f"c{next(_clips)}", svg)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| role="[^"]*"| aria-roledescription="[^"]*"', "", svg)
    # vl-convert resolves a link against a base address of its own
    svg = re.sub(r' xlink:href="[^"#]*#', ' href="#', svg)
    svg = re.sub(r' target="[^"]*"', "", svg)
    svg = re.sub(
        r'<(path|line)([^>]*) aria-label="([^"]*)"([^>]*)/>', r"<\1\2\4><title>\3</title></\1>", svg
    )
    return svg.replace("<svg ", f'<svg role="img" aria-label="{_attribute(label)}" ', 1)


def _visible(value: Any) -> Any:
    """A specification without unseen characters: vl-convert aborts the whole process on a NUL."""
    if isinstance(value, str):
        return visible(value, 300)
    if isinstance(value, dict):
        return {key: _visible(part) for key, part in value.items()}
    return [_visible(part) for part in value] if isinstance(value, list) else value


def _attribute(text: str) -> str:
    return (
        visible(text, 2000)
        .replace("&", "&amp;")
        .replace('"', "&quot;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


def _data(rows: Sequence[dict[str, Any]]) -> alt.Data:
    return alt.Data(values=list(rows))  # type: ignore[no-untyped-call]


def _sides(names: Sequence[str]) -> dict[str, Any]:
    """Colour and shape of candidate, incumbent and baseline."""
    shapes = dict(zip(SIDES, ("circle", "diamond", "square"), strict=True))
    return {
        "color": alt.Color(
            "side:N",
            scale=alt.Scale(domain=list(names), range=[f"var(--{name})" for name in names]),
            legend=None,
        ),
        "shape": alt.Shape(
            "side:N",
            scale=alt.Scale(domain=list(names), range=[shapes[name] for name in names]),
            legend=None,
        ),
    }


def scores(rows: Sequence[dict[str, Any]], width: int) -> Any:
    """Forest plot of accuracies. Rows: benchmark, side, share, low, high (strict, 95 %), lenient,
    label.

    A filled mark is the strict accuracy with its interval, a hollow one the lenient accuracy.
    """
    names = [name for name in SIDES if any(row["side"] == name for row in rows)]
    y = alt.Y("side:N", sort=names, title=None, axis=alt.Axis(domain=False, ticks=False))
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("share:Q", scale=scale, axis=_PERCENT, title=None)
    base = (
        alt.Chart()
        .encode(y=y, description="label:N", color=_sides(names)["color"])
        .properties(width=width, height=26 * len(names))
    )
    marks = [
        base.mark_rule(strokeWidth=2).encode(
            x=alt.X("low:Q", scale=scale, axis=_PERCENT, title=None), x2="high:Q"
        ),
        base.mark_point(filled=False, size=55, opacity=0.8).encode(
            x=alt.X("lenient:Q", scale=scale), shape=_sides(names)["shape"]
        ),
        base.mark_point(filled=True, size=90, opacity=1).encode(x=x, shape=_sides(names)["shape"]),
    ]
    order = list(dict.fromkeys(row["benchmark"] for row in rows))
    return alt.layer(*marks, data=_data(rows)).facet(
        facet=alt.Facet("benchmark:N", sort=order, title=None), columns=1, spacing=8
    )


def differences(rows: Sequence[dict[str, Any]], min_effect: float, width: int) -> Any:
    """Forest plot of paired differences. Rows: benchmark, difference, low, high, label."""
    low, high = (
        min(0.0, *(row["low"] for row in rows)),
        max(min_effect, *(row["high"] for row in rows)),
    )
    margin = max(0.01, 0.05 * (high - low))
    scale = alt.Scale(domain=[low - margin, high + margin], nice=False)
    title = "candidate minus incumbent; dashed: smallest gain worth having"
    axis = alt.Axis(
        format="+.0%" if high - low > 0.08 else "+.1%", grid=True, tickCount=8 if width > 400 else 4
    )
    y = alt.Y(
        "benchmark:N",
        sort=[row["benchmark"] for row in rows],
        title=None,
        axis=alt.Axis(labelLimit=int(width * 0.5)),
    )
    base = alt.Chart(_data(rows)).encode(y=y, description="label:N")
    x = alt.X(
        "low:Q", scale=scale, axis=axis, title=title if width > 400 else "candidate minus incumbent"
    )
    lines = alt.Chart(
        _data([{"at": 0.0, "kind": "0"}, {"at": min_effect, "kind": "least"}])
    ).mark_rule(color="var(--text)")
    return alt.layer(
        lines.encode(
            x=alt.X("at:Q", scale=scale),
            strokeDash=alt.StrokeDash(
                "kind:N",
                scale=alt.Scale(domain=["0", "least"], range=[[1, 0], [4, 3]]),
                legend=None,
            ),
        ),
        base.mark_rule(strokeWidth=2, color="var(--candidate)").encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=90, opacity=1, color="var(--candidate)").encode(
            x=alt.X("difference:Q", scale=scale)
        ),
    ).properties(width=width - (60 if width > 400 else 30), height=30 * len(rows))


def losses(points: Sequence[dict[str, Any]], width: int) -> Any:
    """Loss by step. Points: step, loss, split; losses that are not finite are left out."""
    finite = [point for point in points if math.isfinite(point["loss"])]
    kept = [
        point
        for split in ("train", "eval")
        for point in thinned([each for each in finite if each["split"] == split])
    ]
    if not kept:
        return None
    splits = [
        split for split in ("train", "eval") if any(point["split"] == split for point in kept)
    ]
    names = {"train": "training rows", "eval": "held-out rows"}
    colours = {"train": "var(--candidate)", "eval": "var(--incumbent)"}
    rows = [{**point, "split": names[point["split"]]} for point in kept]
    shared: dict[str, Any] = {"domain": [names[split] for split in splits]}
    dashes = {"train": [1, 0], "eval": [6, 3]}
    return (
        alt.Chart(_data(rows))
        .mark_line(point=len(rows) < 60, strokeWidth=2)
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickMinStep=1)),
            y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=True)),
            color=alt.Color(
                "split:N", scale=alt.Scale(**shared, range=[colours[split] for split in splits])
            ),
            strokeDash=alt.StrokeDash(
                "split:N", scale=alt.Scale(**shared, range=[dashes[split] for split in splits])
            ),
        )
        .properties(width=width, height=200)
    )


def thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MOST_POINTS of them, evenly, with the first and the last."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(k * (len(points) - 1) / (MOST_POINTS - 1))] for k in range(MOST_POINTS)]


def search(nodes: Sequence[dict[str, Any]], edges: Sequence[dict[str, Any]], width: int) -> Any:
    """The lineage: every experiment at its number and accuracy, a line from the one that it started
    from, the champion's path bold.

    Nodes: number, accuracy, status, label, href. Edges: number, accuracy, number2, accuracy2, path
    (of the champion).
    """
    if not nodes:
        return None
    present = [status for status in STATUSES if any(node["status"] == status for node in nodes)]
    colours = {
        "KEPT": "var(--good)",
        "DISCARDED": "var(--bad)",
        "INCONCLUSIVE": "var(--open)",
        "CRASHED": "var(--quiet)",
    }
    shapes = {
        "KEPT": "triangle-up",
        "DISCARDED": "circle",
        "INCONCLUSIVE": "diamond",
        "CRASHED": "cross",
    }
    first, last = min(node["number"] for node in nodes), max(node["number"] for node in nodes)
    step = max(1, math.ceil((last - first) / (width / 50)))
    x = alt.X(
        "number:Q",
        title="experiment",
        scale=alt.Scale(domain=[first - 0.5, last + 0.5], nice=False),
        axis=alt.Axis(format="d", values=list(range(first, last + 1, step)), grid=False),
    )
    y = alt.Y(
        "accuracy:Q",
        title="validation accuracy",
        axis=_PERCENT,
        scale=alt.Scale(zero=False, padding=12),
    )
    domain: dict[str, Any] = {"domain": present}
    lines = [
        alt.Chart(_data(part))
        .mark_rule(color=colour, strokeWidth=thick)
        .encode(x=x, y=y, x2="number2:Q", y2="accuracy2:Q")
        for path, colour, thick in ((False, "var(--rule)", 1), (True, "var(--good)", 3))
        if (part := [edge for edge in edges if edge["path"] is path])
    ]
    points = (
        alt.Chart(_data(nodes))
        .mark_point(filled=True, size=80 if len(nodes) < 60 else 40, opacity=1)
        .encode(
            x=x,
            y=y,
            description="label:N",
            href="href:N",
            color=alt.Color(
                "status:N", scale=alt.Scale(**domain, range=[colours[status] for status in present])
            ),
            shape=alt.Shape(
                "status:N", scale=alt.Scale(**domain, range=[shapes[status] for status in present])
            ),
        )
    )
    return alt.layer(*lines, points).properties(width=width, height=240)


def sweep(rows: Sequence[dict[str, Any]], width: int) -> Any:
    """The experiments of one sweep, best first. Rows: name, accuracy, low, high, label."""
    scale = alt.Scale(zero=False, padding=8)
    y = alt.Y(
        "name:N",
        sort=[row["name"] for row in rows],
        title=None,
        axis=alt.Axis(labelLimit=int(width * 0.5)),
    )
    base = alt.Chart(_data(rows)).encode(
        y=y, description="label:N", color=alt.value("var(--candidate)")
    )
    x = alt.X("low:Q", scale=scale, axis=_PERCENT, title="validation accuracy, 95 % interval")
    return alt.layer(
        base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(x=alt.X("accuracy:Q", scale=scale)),
    ).properties(width=width - (90 if width > 400 else 60), height=24 * len(rows))
