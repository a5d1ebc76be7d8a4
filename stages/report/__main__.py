"""The page to open: reports/index.html, one file that needs no network and no script.

python -m stages.report
    build it from reports/, experiments/ and DVC's sweeps as they are now
python -m stages.report --show
    say what came out and where to look; builds the page only where it is missing

The page has the verdict, the validation scores with intervals, the loss curve, every experiment
with the champion's path, sweeps, wrong answers, the data and, folded away, the test scores.
Identical inputs give an identical page, but for its table of timings.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stages.common import noise
from stages.common.config import load_params
from stages.common.errors import run_main
from stages.common.files import ROOT, write_text
from stages.common.keys import tracked
from stages.common.process import stage_lock
from stages.common.reports.evaluation import EvalSummary
from stages.common.reports.verdict import Verdict
from stages.common.text import visible
from stages.report.page import gather, render

PAGE = "reports/index.html"


def build() -> None:
    """Write the page. DVC runs this for the results; experiments and sweeps it does not know as
    inputs (see AGENTS.md).
    """
    with (
        stage_lock("report"),
        load_params(*tracked("report")) as params,
    ):
        write_text(ROOT / PAGE, render(gather(ROOT, params)))
        print(f"report: {ROOT / PAGE}")


def show(reports: Path) -> None:
    """The end of `make run`: what came out, in a few lines."""
    verdict = Verdict.read(reports / "judge.json")
    decided = verdict.evidence.deciding
    figures = decided.figures
    sides = f"{decided.measure} {decided.before:.3f} -> {decided.after:.3f}"
    interval = f"{figures.difference:+.3f} (95 % {figures.low:+.3f} to {figures.high:+.3f})"
    benchmark = f" of {visible(decided.benchmark, 60)}" if decided.benchmark else ""
    print(
        f"\n{verdict.outcome.upper()}: {visible(verdict.experiment.name)} against"
        f" {verdict.experiment.incumbent}"
    )
    print(
        f"  {sides}, {interval}, p = {figures.p_better:.2g}, {figures.n} validation"
        f" items{benchmark}"
    )
    if told := noise.sentence(reports.parent, EvalSummary.read(reports / "eval_val/val.json")):
        print(f"  {told}")
    print(f"  the page:  {reports / 'index.html'}")
    print("  MLflow:    make ui, then http://127.0.0.1:5000")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m stages.report", description=__doc__, formatter_class=raw
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="print the verdict, the page's path and how to open MLflow",
    )
    show_only = parser.parse_args().show
    if not show_only or not (ROOT / PAGE).exists():
        build()
    if show_only:
        show(ROOT / "reports")


if __name__ == "__main__":
    run_main("report", main)
