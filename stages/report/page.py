"""The page's content, gathered from params and reports, and its rendering. Every text is escaped
where it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from stages.common import noise
from stages.common.errors import PawlError
from stages.common.files import flatten, sha256_file
from stages.common.items import wilson
from stages.common.losses import read_losses
from stages.common.reports.base import Report
from stages.common.reports.benchmark import BenchmarkReport
from stages.common.reports.data import DataReport
from stages.common.reports.evaluation import EvalSummary, Scores, Summary
from stages.common.reports.test_results import TestSummary
from stages.common.reports.training import TrainReport
from stages.common.reports.verdict import Evidence, Figures, Verdict
from stages.common.text import visible
from stages.report import charts, lineage
from stages.report.samples import error_samples

LABELS = {"accept": "Accepted", "reject": "Rejected", "inconclusive": "Not accepted: inconclusive"}
BASELINE = "reports/baseline"
ALL = "All items"
NONE = "\N{EN DASH}"
MOST_DRAWN = 40
"""Benchmarks in a chart, and rows of a sweep; the tables have all of them."""
CARD_LIMIT = 40_000
"""Characters of the data card."""
_TOLD = (
    "experiment",
    "evidence",
    "guards",
    "outcome",
    "accepted",
    "words",
    "versions",
    "curve",
    "truncated",
)
"""What the page shows of judge.json in its own form; other figures go into a table as they are."""

_SEEN = ("sources", "contamination", "rows", "seed")
"""The same of generate_data.json."""


def gather(root: Path, params: Any) -> dict[str, Any]:
    """Everything the template shows.

    Raises:
        PawlError: a report is missing or broken.
    """
    reports = root / "reports"
    verdict, benchmark = (
        Verdict.read(reports / "judge.json"),
        BenchmarkReport.read(reports / "build_benchmark.json"),
    )
    train, data = (
        TrainReport.read(reports / "train.json"),
        DataReport.read(reports / "generate_data.json"),
    )
    val = {name: EvalSummary.read(reports / name / "val.json") for name in ("baseline", "eval_val")}
    fingerprint = val["eval_val"].fingerprint
    test = {
        name: TestSummary.read(reports / name / "test.json") for name in ("baseline", "eval_test")
    }
    card = reports / "data_card.md"
    sources = {name: source.plain() for name, source in data.sources.items()}
    evidence = verdict.evidence
    scores = _validation(verdict, val["eval_val"], val["baseline"])
    differences = _differences(evidence)
    return {
        "experiment": params.experiment,
        "params": params,
        "verdict": verdict,
        "words": verdict.words.plain(),
        # so that track knows whose page it is
        "verdict_sha256": sha256_file(reports / "judge.json"),
        "label": LABELS[verdict.outcome],
        "deciding": evidence.deciding,
        "noise": noise.sentence(root, val["eval_val"]),
        "vetoes": [guard for guard in verdict.guards if not guard.passed],
        "figures": _figures(
            {key: value for key, value in verdict.plain().items() if key not in _TOLD}
        ),
        "scores": scores,
        "scores_chart": _forest(scores, "Validation accuracy with 95 % intervals"),
        "differences": differences,
        "differences_chart": charts.draw(
            partial(charts.differences, differences[:MOST_DRAWN], evidence.min_effect),
            "Paired differences with 95 % intervals: "
            + "; ".join(row["label"] for row in differences[:MOST_DRAWN]),
        ),
        "test_scores": (test_scores := _test(test["eval_test"], test["baseline"])),
        "test_chart": _forest(test_scores, "Test accuracy with 95 % intervals"),
        **_losses(reports / "loss.csv"),
        "samples": error_samples(root, verdict.experiment.incumbent),
        "data": data,
        "data_figures": _figures(
            {key: value for key, value in data.plain().items() if key not in _SEEN}
        ),
        "data_columns": _columns(sources),
        "sources": sources,
        "data_card": (
            card.read_text(encoding="utf-8", errors="replace")[:CARD_LIMIT]
            if card.is_file()
            else ""
        ),
        "train": train,
        "train_rows": _rows(train.plain()),
        "engine": " ".join(
            str(fingerprint[key])
            for key in ("engine_version", "dtype", "device")
            if fingerprint.get(key)
        ),
        "timings": _timings(
            {
                "generate_data": data,
                "train": train,
                "baseline": val["baseline"],
                "eval_val": val["eval_val"],
                "baseline, test": test["baseline"],
                "eval_test": test["eval_test"],
                "build_benchmark": benchmark,
            }
        ),
        **_history(root),
    }


def _side(benchmark: str, side: str, share: float, n: int, lenient: float | None) -> dict[str, Any]:
    """One mark of a forest plot, and one row of its table."""
    low, high = wilson(round(share * n), n)
    label = (
        f"{benchmark}, {side}: {100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f}), n = {n}"
    )
    return {
        "benchmark": benchmark,
        "side": side,
        "share": share,
        "low": low,
        "high": high,
        "lenient": lenient,
        "n": n,
        "label": label,
    }


def _evaluated(benchmark: str, side: str, summary: Summary) -> dict[str, Any]:
    """The same from an evaluation; repeats of an item are no further items. `benchmark` is empty
    for all items.
    """
    scores = _of(summary, benchmark)
    return _side(benchmark or ALL, side, scores.accuracy, scores.items or scores.n, scores.lenient)


def _validation(
    verdict: Verdict, candidate: EvalSummary, baseline: EvalSummary
) -> list[dict[str, Any]]:
    """Candidate, incumbent and, if it is another, baseline, for each benchmark, all items first."""
    incumbent_is_base = verdict.experiment.incumbent == BASELINE
    rows = []
    for name, figures in _groups(verdict.evidence):
        before = figures.incumbent
        rows.append(_evaluated(name, "candidate", candidate))
        side = "baseline" if incumbent_is_base else "incumbent"
        rows.append(_side(name or ALL, side, before.accuracy, figures.n, before.lenient))
        if not incumbent_is_base and (not name or name in baseline.benchmarks):
            rows.append(_evaluated(name, "baseline", baseline))
    return rows


def _differences(evidence: Evidence) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": name or ALL,
            "lenient": figures.lenient_difference,
            "label": (
                f"{name or ALL}: {_points(figures.difference)} points ({_points(figures.low)} to"
                f" {_points(figures.high)})"
            ),
            **{
                key: getattr(figures, key)
                for key in (
                    "difference",
                    "low",
                    "high",
                    "p_better",
                    "n",
                    "candidate_only",
                    "incumbent_only",
                )
            },
        }
        for name, figures in _groups(evidence)
    ]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _test(candidate: TestSummary, baseline: TestSummary) -> list[dict[str, Any]]:
    sides = (("candidate", candidate), ("baseline", baseline))
    return [
        _evaluated(name, side, summary)
        for name in _names(candidate.benchmarks)
        for side, summary in sides
    ]


def _groups(evidence: Evidence) -> list[tuple[str, Figures]]:
    """All items under the empty name, then each benchmark."""
    return [
        (name, evidence.benchmarks[name] if name else evidence.pooled)
        for name in _names(evidence.benchmarks)
    ]


def _names(benchmarks: Collection[str]) -> list[str]:
    """The empty name, for all items, then those of the benchmarks; a single benchmark is all
    items.
    """
    return ["", *(sorted(benchmarks) if len(benchmarks) > 1 else [])]


def _of(summary: Summary, name: str) -> Scores:
    return summary.benchmarks[name] if name else summary.overall


def _forest(rows: list[dict[str, Any]], title: str) -> dict[str, str]:
    shown = set(list(dict.fromkeys(row["benchmark"] for row in rows))[:MOST_DRAWN])
    drawn = [
        {**row, "benchmark": visible(row["benchmark"], 60)}
        for row in rows
        if row["benchmark"] in shown
    ]
    return charts.draw(
        partial(charts.scores, drawn), f"{title}: " + "; ".join(row["label"] for row in drawn)
    )


def _losses(path: Path) -> dict[str, Any]:
    rows = read_losses(path)
    points = [{"step": row.step, "split": row.split, "loss": row.loss} for row in rows]
    finite = [row for row in rows if math.isfinite(row.loss)]
    ends = {
        split: [row.loss for row in finite if row.split == split] for split in ("train", "eval")
    }
    told = "; ".join(
        f"{split} from {found[0]:.3g} to {found[-1]:.3g}" for split, found in ends.items() if found
    )
    return {
        "curve": charts.draw(partial(charts.losses, points), f"Loss by step: {told}"),
        "curve_told": told,
    }


def _columns(sources: dict[str, Any]) -> list[str]:
    """The counts that sources have: the known ones in their order of filtering, then those of the
    others that are not all zero.
    """
    known = ("read", "bad", "duplicates", "contaminated", "too_long", "unused")
    found = {
        key: value
        for source in sources.values()
        for key, value in source.items()
        if lineage.number(value) is not None
    }
    other = {
        key for source in sources.values() for key, value in source.items() if lineage.number(value)
    } - {*known, "kept"}
    return [*(key for key in known if key in found), *sorted(other), "kept"]


def _rows(train: dict[str, Any]) -> list[tuple[str, Any]]:
    """Figures of train.json that the page does not show elsewhere."""
    told = {
        "runtime_s",
        "tokens_per_s",
        "peak_memory_gib",
        "initial_loss",
        "final_loss",
        "steps",
        "epochs",
        "trainable_parameters",
    }
    return [pair for pair in _figures(train) if pair[0] not in {*told, "total_parameters"}]


def _figures(report: dict[str, Any], most: int = 60) -> list[tuple[str, float]]:
    """The numbers of a report by dotted key. Numbers only: a text in there may be anything, also a
    question of the test split.
    """
    found = [
        (name, value)
        for name, value in flatten(report).items()
        if lineage.number(value) is not None
    ]
    return found[:most]


def _timings(reports: dict[str, Report]) -> list[dict[str, Any]]:
    keys = ("runtime_s", "tokens_per_s", "peak_memory_gib")
    rows = [
        {"stage": stage, **{key: lineage.number(getattr(report, key, None)) for key in keys}}
        for stage, report in reports.items()
    ]
    return [row for row in rows if row["runtime_s"] is not None]


def _history(root: Path) -> dict[str, Any]:
    cards, broken = lineage.read_experiments(root / "experiments")
    shown = lineage.comparable(cards)
    nodes, edges = lineage.drawn(shown)
    sweeps = lineage.read_sweeps(root)
    for sweep in sweeps:
        sweep["chart"] = charts.draw(
            partial(charts.sweep, sweep["rows"][:MOST_DRAWN]),
            f"Accuracies of the sweep from {sweep['base']}",
        )
    champion = next((card for card in cards if card["champion"]), None)
    path = [card for card in cards if card["on_path"]]
    chart = (
        charts.draw(
            partial(charts.search, nodes, edges), f"{len(shown)} experiments by validation accuracy"
        )
        if nodes
        else {}
    )
    return {
        "cards": cards,
        "broken": broken,
        "champion": champion,
        "path": path,
        "search_chart": chart,
        "sweeps": sweeps,
        "drawn": len(shown),
    }


def _p_value(value: float | None) -> str:
    if value is None:
        return "p unknown"
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.4f}"


def _count(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def render(content: dict[str, Any]) -> str:
    """The whole page as HTML: escaped throughout, control characters and reordering marks shown as
    U+FFFD.

    `finalize` sees what a macro has rendered as Markup, which is no plain str, and leaves it alone.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value, 20_000) if type(value) is str else value,
    )
    environment.filters |= {
        "percent": lambda share: NONE if share is None else Markup(f"{100 * share:.1f}&nbsp;%"),
        "signed": lambda share: NONE if share is None else f"{round(100 * share, 1) + 0.0:+.1f}",
        "p": _p_value,
        "count": _count,
        "duration": _duration,
        "figure": lambda value: "none" if value is None else f"{value:.4g}",
        "lines": (
            lambda text: Markup("\n").join(visible(line, 2000) for line in str(text).splitlines())
        ),
        "drawing": lambda svg: Markup(svg),  # made by vl-convert, which escapes its texts
    }
    try:
        return environment.get_template("page.html.j2").render(content)
    except jinja2.UndefinedError as error:
        raise PawlError(
            f"a report lacks a figure: {error}",
            where="reports/",
            fix="run 'dvc repro' to make the reports again",
        ) from None
