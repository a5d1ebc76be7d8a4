"""The page's content, gathered from params and reports, and its rendering. Every text is escaped where it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import read_json
from stages.common.losses import read_losses
from stages.common.text import visible
from stages.report import drawing

LABELS = {"accept": "Accepted", "reject": "Rejected", "inconclusive": "Not accepted: inconclusive"}
BASELINE = "reports/baseline"


def gather(root: Path, params: Any) -> dict[str, Any]:
    """Everything the template shows.

    Raises:
        PawlError: a report is missing, broken, or without a figure that the page needs.
    """
    reports = root / "reports"
    verdict, benchmark = read_json(reports / "judge.json"), read_json(reports / "build_benchmark.json")
    train, data = read_json(reports / "train.json"), read_json(reports / "generate_data.json")
    val = {name: read_json(reports / name / "val.json") for name in ("baseline", "eval_val")}
    fingerprint = val["eval_val"].get("fingerprint", {})
    test = {name: read_json(reports / name / "test.json") for name in ("baseline", "eval_test")}
    try:
        return {
            "experiment": params.experiment,
            "params": params,
            "verdict": verdict,
            "label": LABELS[verdict["outcome"]],
            "vetoes": [guard for guard in verdict["guards"] if not guard["passed"]],
            "scores": _validation(verdict, val["eval_val"], val["baseline"]),
            "test_scores": _test(test["eval_test"], test["baseline"]),
            "curve": drawing.curve(read_losses(reports / "loss.csv")),
            "data": data,
            "contaminated": sum(source["contaminated"] for source in data["sources"].values()),
            "train": train,
            "benchmark": benchmark,
            "engine": " ".join(str(fingerprint[key]) for key in ("engine", "engine_version", "dtype") if fingerprint.get(key)),
            "timings": {
                "training": train["runtime_s"],
                "validation of the candidate": val["eval_val"]["runtime_s"],
                "validation of the baseline": val["baseline"]["runtime_s"],
            },
        }
    except KeyError as error:
        fix = "run 'dvc repro' to make the reports again"
        raise PawlError(f"a report lacks the figure {error}", where=str(reports), fix=fix) from None


def _validation(verdict: dict[str, Any], candidate: dict[str, Any], baseline: dict[str, Any]) -> list[dict[str, Any]]:
    """One drawing a benchmark, all of them together first; the baseline is drawn apart where it is not the incumbent."""
    evidence = verdict["evidence"]
    incumbent_is_base = verdict["experiment"]["incumbent"] == BASELINE
    parts = []
    for name, figures in [("", evidence["pooled"]), *sorted(evidence["benchmarks"].items())]:
        sides = [("candidate", "candidate", _of(candidate, name))]
        incumbent = figures["incumbent"]
        sides.append(("baseline" if incumbent_is_base else "incumbent", "incumbent", {"n": figures["n"], **incumbent}))
        if not incumbent_is_base and (base := _of(baseline, name, optional=True)):
            sides.append(("baseline", "baseline", base))
        parts.append({"name": name, "figures": figures, "bars": drawing.bars(sides)})
    return parts if len(parts) > 2 else parts[:1]


def _test(candidate: dict[str, Any], baseline: dict[str, Any]) -> list[dict[str, Any]]:
    names = ["", *sorted(candidate["benchmarks"])]
    sides = [("candidate", "candidate", candidate), ("baseline", "baseline", baseline)]
    return [{"name": name, "bars": drawing.bars([(label, kind, _of(summary, name)) for label, kind, summary in sides])} for name in names]


def _of(summary: dict[str, Any], name: str, *, optional: bool = False) -> Any:
    """The scores of one benchmark of a summary, of all together for the empty name."""
    if optional:
        return summary["benchmarks"].get(name) if name else summary["overall"]
    return summary["benchmarks"][name] if name else summary["overall"]


def render(content: dict[str, Any]) -> str:
    """The whole page as HTML: escaped throughout, control characters and reordering marks shown as U+FFFD.

    `finalize` sees what a macro has rendered as Markup, which is no plain str, and leaves it alone.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True, finalize=lambda value: visible(value, 20_000) if type(value) is str else value,
    )  # fmt: skip
    environment.filters |= {
        "percent": lambda share: Markup(f"{100 * share:.1f}&nbsp;%"),
        "signed": lambda share: f"{round(100 * share, 1) + 0.0:+.1f}",
        "p": lambda value: "p < 0.0001" if value < 1e-4 else f"p = {value:.4f}",
        "count": lambda number: f"{number:,}",
        "seconds": lambda value: f"{value:.0f} s",
        "figure": lambda value: "none" if value is None else f"{value:.4g}",
    }
    return environment.get_template("page.html.j2").render(content)
