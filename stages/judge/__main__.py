"""Is the candidate better than the incumbent? Paired evidence from validation items decides; a
template or a language model words it.

python -m stages.judge
    judge the reports, as dvc.yaml does
python -m stages.judge compare CANDIDATE.jsonl INCUMBENT.jsonl
    print the evidence of two evaluations as JSON
    [--alpha 0.05] [--min-effect 0.01] [--primary ''] [--max-regression 0.1] [--metric correct]
    [--looks 1]    how often these items were looked at, this time included
python -m stages.judge explain-failure [--since SECONDS]
    put the newest failed stage into words (reports/failure.md)
python -m stages.judge simulate [--pairs 2000]
    how often this rule errs, and the naive one
python -m stages.judge simulate --adversary [--looks 100] [--pairs 2000]
    how often somebody who learns from the answers has a candidate accepted that is no better

Reads params.yaml, reports/eval_val, the incumbent's folder, and the reports of benchmark, data and
training; for a language model (judge.kind llm) also the validation items. Writes a line into
experiments/looks.jsonl, reports/judge.md for people, and reports/judge.json, which
stages/common/reports/verdict.py declares. Without a language model, the same inputs give the same
bytes. The stage exits 0 whatever the outcome. compare exits 0 for accept, 1 for reject, 2 for
inconclusive, 3 for bad input; it checks the rows, and the summaries (val.json) where they lie
beside them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError, from_os_error, run_main
from stages.common.files import ROOT, main_root, to_json
from stages.common.reports.verdict import Verdict
from stages.common.schema import Experiment, Judge
from stages.judge.evidence import Rule, evidence
from stages.judge.guards import of_files
from stages.judge.inputs import file_side
from stages.judge.pairing import pair

EXIT = {"accept": 0, "reject": 1, "inconclusive": 2}
BAD_INPUT = 3


def judge_reports(root: Path, judge: Judge, experiment: Experiment, **more: Any) -> Verdict:
    """See `stages.judge.verdict`, whose modules take as long to import as `compare` needs for its
    work.
    """
    from stages.judge import verdict

    return verdict.judge_reports(root, judge, experiment, **more)


def compare(candidate: Path, incumbent: Path, rule: Rule) -> int:
    """Print the evidence of two files; whatever keeps it from being computed is bad input and never
    looks like a verdict.
    """
    try:
        if not (
            0 < rule.alpha <= 0.5
            and 0 <= rule.min_effect <= 1
            and 0 < rule.max_regression <= 1
            and rule.look >= 1
        ):
            fix = (
                "alpha above 0 to 0.5, min-effect 0 to 1, max-regression above 0 to 1, looks 1 or"
                " more: this look counts too"
            )
            raise PawlError("a threshold is out of range", where=str(rule), fix=fix)
        sides = file_side(candidate), file_side(incumbent)
        if wrong := of_files(*sides):
            raise PawlError(
                "; ".join(wrong)[:1000],
                fix="evaluate both sides again, in one way, and keep each summary beside its rows",
            )
        found = evidence(pair(*(side.rows for side in sides)), rule)
        print(to_json(found.plain()), end="")
    except OSError as error:
        return _bad_input(str(from_os_error(error)))
    except Exception as error:  # noqa: BLE001 - exit 1 means "reject": not even a bug of ours may end in it
        return _bad_input(
            str(error)
            if isinstance(error, PawlError)
            else f"{type(error).__name__}: {error}"[:2000]
        )
    return EXIT[found.outcome]


def _bad_input(text: str) -> int:
    print(f"judge: error: {text}", file=sys.stderr)
    return BAD_INPUT


class Parser(argparse.ArgumentParser):
    def error(self, message: str):  # type: ignore[no-untyped-def]
        self.exit(_bad_input(f"{message}\n  fix:   {self.prog} --help"))


def arguments() -> argparse.Namespace:
    parser = Parser(
        prog="python -m stages.judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command")
    comparing = commands.add_parser("compare", help="print the evidence of two evaluations as JSON")
    comparing.add_argument("candidate", type=Path)
    comparing.add_argument("incumbent", type=Path)
    comparing.add_argument(
        "--alpha",
        type=float,
        default=0.05,
        help="chance that a series of looks accepts a candidate that is no better",
    )
    comparing.add_argument(
        "--min-effect", type=float, default=0.01, help="smallest gain worth having"
    )
    comparing.add_argument(
        "--looks",
        type=int,
        default=1,
        help="how often these items were looked at, this time included",
    )
    comparing.add_argument(
        "--primary", default="", help="the benchmark that decides; without one, all items together"
    )
    comparing.add_argument(
        "--max-regression",
        type=float,
        default=0.1,
        help="loss that the other benchmarks are shown not to exceed",
    )
    comparing.add_argument(
        "--metric",
        choices=("correct", "score"),
        default="correct",
        help="right or wrong, or credit",
    )
    explaining = commands.add_parser(
        "explain-failure", help="put the newest failed stage into words"
    )
    explaining.add_argument(
        "--since",
        type=float,
        default=0,
        help="leave out failures before this time, in seconds since 1970",
    )
    simulating = commands.add_parser(
        "simulate", help="how often this judge errs, and how often the naive rule does"
    )
    simulating.add_argument(
        "--pairs", type=int, default=2000, help="simulated experiments in each cell"
    )
    simulating.add_argument("--seed", type=int, default=1)
    simulating.add_argument(
        "--adversary",
        action="store_true",
        help="print as JSON how often somebody who learns from the answers gets a null accepted",
    )
    simulating.add_argument("--looks", type=int, default=100, help="candidates of the adversary")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.command == "compare":
        rule = Rule(
            args.alpha, args.min_effect, args.looks, args.primary, args.max_regression, args.metric
        )
        return compare(args.candidate, args.incumbent, rule)
    if args.command == "simulate":
        from stages.judge import simulate

        if args.adversary:
            return simulate.adversarial(args.looks, args.pairs, args.seed)
        return simulate.main(args.pairs, args.seed)
    from stages.common.config import load_params
    from stages.common.keys import tracked
    from stages.common.process import stage_lock
    from stages.judge import verdict, words
    from stages.judge.public import SECTIONS, public_settings

    if args.command == "explain-failure":
        return verdict.explain_failure(ROOT, args.since)
    # what a language model is told; what of it shapes a result is in the reports already
    seen = SECTIONS
    with (
        stage_lock("judge"),
        load_params(*tracked("judge"), untracked=seen, inputs=["prompts/judge"]) as params,
    ):
        found = judge_reports(
            ROOT,
            params.judge,
            params.experiment,
            max_contamination=params.data.max_contamination,
            settings=public_settings(params),
            more_roots=[main_root()],
        )
        pooled = found.evidence.pooled
        gain = (
            f"{words.points(pooled.difference)}, {words.p_value(pooled.p_better)}, {pooled.n} items"
        )
        print(f"judge: {found.outcome}: {gain}, look {found.evidence.look} at them")
    return 0


if __name__ == "__main__":
    run_main("judge", main)
