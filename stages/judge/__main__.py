"""Is the candidate better than the incumbent? Paired evidence from validation items decides; a template words it.

python -m stages.judge                                                     judge the reports, as dvc.yaml does
python -m stages.judge compare CANDIDATE.jsonl INCUMBENT.jsonl             print the evidence of two evaluations as JSON
                               [--alpha 0.05] [--min-effect 0.01]

Reads params.yaml (judge, experiment), reports/eval_val, the incumbent's folder, and the reports of benchmark, data and training.
Writes reports/judge.md for people, and reports/judge.json:
    experiment   name, hypothesis, parent, incumbent
    outcome      accept, reject or inconclusive; `accepted` is true for accept alone
    evidence     alpha, min_effect, outcome and why before vetoes, further_items {towards, items, power} where inconclusive, and `pooled`
                 and benchmarks.NAME, each: n, candidate and incumbent {accuracy, low, high, lenient}, difference, low, high,
                 lenient_difference, p_better, p_two_sided, candidate_only, incumbent_only, gain, loss (see stages/judge/evidence.py)
    guards       a list of {guard, passed, detail}; one that did not pass is a veto
    truncated    share of answers cut off at the output limit: candidate, incumbent
    curve        shape of the training loss, overfitting, logged (see stages/judge/curve.py)
    words        "Code Summary", "Reason", "Decision" (yes or no)
    versions     rules (raised when the rules change), method, scipy
The same inputs give the same bytes. The stage exits 0 whatever the outcome.
compare exits 0 for accept, 1 for reject, 2 for inconclusive, 3 for bad input; it checks the rows, but has no summaries to guard.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from stages.common.config import load_params
from stages.common.errors import PawlError, from_os_error, run_main
from stages.common.files import ROOT, to_json, write_json, write_text
from stages.common.items import Row
from stages.common.process import stage_lock
from stages.common.schema import Experiment, Judge
from stages.judge import curve, guards, words
from stages.judge.evidence import evidence, pair
from stages.judge.inputs import Inputs, read_inputs, validation_rows

RULES = 1
EXIT = {"accept": 0, "reject": 1, "inconclusive": 2}
BAD_INPUT = 3


def verdict_on(inputs: Inputs, judge: Judge, experiment: Experiment) -> dict[str, Any]:
    """The verdict without its words: evidence, guards, outcome."""
    found = evidence(pair(inputs.candidate.rows, inputs.incumbent.rows), judge.alpha, judge.min_effect)
    checked = guards.check(inputs, judge.max_truncated)
    outcome = found["outcome"] if all(guard["passed"] for guard in checked) else "reject"
    names = ("name", "hypothesis", "parent", "incumbent")
    return {
        "experiment": {name: getattr(experiment, name) for name in names},
        "outcome": outcome,
        "accepted": outcome == "accept",
        "evidence": found,
        "guards": checked,
        "truncated": {"candidate": _truncated(inputs.candidate.rows), "incumbent": _truncated(inputs.incumbent.rows)},
        "curve": curve.read_curve(inputs.losses),
        "versions": _versions(),
    }


def _truncated(rows: list[Row]) -> float:
    return sum(row.truncated for row in rows) / len(rows)


def _versions() -> dict[str, Any]:
    import scipy

    return {"rules": RULES, "method": "exact McNemar or sign-flip test, Tango score interval", "scipy": scipy.__version__}


def judge_reports(root: Path, judge: Judge, experiment: Experiment) -> dict[str, Any]:
    """Judge the reports under `root` and write the verdict beside them."""
    inputs = read_inputs(root, experiment.incumbent)
    verdict = verdict_on(inputs, judge, experiment)
    known = words.facts(verdict, inputs)
    verdict["words"] = words.put_into_words(known)
    write_json(root / "reports" / "judge.json", verdict)
    write_text(root / "reports" / "judge.md", words.page(verdict, known))
    return verdict


def compare(candidate: Path, incumbent: Path, alpha: float, min_effect: float) -> int:
    """Print the evidence of two files; whatever keeps it from being computed is bad input and never looks like a verdict."""
    try:
        if not (0 < alpha <= 0.5 and 0 <= min_effect <= 1):
            raise PawlError(f"alpha {alpha}, min-effect {min_effect}: out of range", fix="alpha above 0 to 0.5, min-effect 0 to 1")
        found = evidence(pair(validation_rows(candidate), validation_rows(incumbent)), alpha, min_effect)
        print(to_json(found), end="")
    except OSError as error:
        return _bad_input(str(from_os_error(error)))
    except Exception as error:  # noqa: BLE001 - exit 1 means "reject": not even a bug of ours may end in it
        return _bad_input(str(error) if isinstance(error, PawlError) else f"{type(error).__name__}: {error}"[:2000])
    return EXIT[found["outcome"]]


def _bad_input(text: str) -> int:
    print(f"judge: error: {text}", file=sys.stderr)
    return BAD_INPUT


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_bad_input(f"{message}\n  fix:   {self.prog} --help"))


def main() -> int:
    parser = Parser(prog="python -m stages.judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    comparing = commands.add_parser("compare", help="print the evidence of two evaluations as JSON")
    comparing.add_argument("candidate", type=Path)
    comparing.add_argument("incumbent", type=Path)
    comparing.add_argument("--alpha", type=float, default=0.05, help="chance of accepting a candidate that is no better")
    comparing.add_argument("--min-effect", type=float, default=0.01, help="smallest gain in accuracy worth having")
    args = parser.parse_args()
    if args.command:
        return compare(args.candidate, args.incumbent, args.alpha, args.min_effect)
    with stage_lock("judge"), load_params("judge", "experiment", inputs=["prompts/judge"]) as params:
        verdict = judge_reports(ROOT, params.judge, params.experiment)
        pooled = verdict["evidence"]["pooled"]
        gain = f"{words.points(pooled['difference'])}, {words.p_value(pooled['p_better'])}, {pooled['n']} items"
        print(f"judge: {verdict['outcome']}: {gain}")
    return 0


if __name__ == "__main__":
    run_main("judge", main)
