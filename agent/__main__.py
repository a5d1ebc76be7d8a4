"""The research loop, its memory, and one experiment at a time.

python -m agent run --trials 3
    propose, run, keep or discard by the verdict, three times
python -m agent run --hours 8 --policy llm
    until a limit of conf/agent or of the command line is reached
python -m agent resume
    after Ctrl-C or a kill -9: go on with that run, nothing lost, nothing run twice
python -m agent history
    the lineage of all experiments, newest last
python -m agent history --json
    the same as a list of records
python -m agent try 'train.learning_rate=5e-4' --why "the loss oscillates: half the step keeps more"
    change parameters, run 'dvc repro', keep or discard by the verdict
python -m agent try train.lora_rank=32 train.lora_alpha=64 --name rank-32 --why "..."
python -m agent adopt fit-lynx
    put an experiment of DVC's, a sweep's winner, to the test and record it
python -m agent restore
    after a kill -9: put the tree back, drop the unfinished experiment and its run;
    after a failed commit (a hook, a full disk): commit the finished one

A run and a try need a clean tree on a branch. Accepted: one commit of conf/, params.yaml, dvc.lock,
reports/ and the record. Otherwise all of these go back to HEAD and the record alone is committed.
Either way it is one folder in experiments/ and one row in experiments/journal.md. A try may change
model, data, train and launcher, a run less (agent/gates/reach.py); what measures, and what keeps
the benchmark out of the training data, stays as it is. Where a person changed the ruler (benchmark,
engine, evaluate), the present state is recorded first as a new starting point, and experiments of
another ruler are no longer what a try is compared with. Exit code: 0 with a verdict (a run: at a
limit), 1 without, 130 stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from agent import commands
from agent.run import adopt
from stages.common.errors import run_main

Add = Callable[[str, Callable[[argparse.Namespace], None], str, str], argparse.ArgumentParser]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added = parser.add_subparsers(dest="command", required=True)

    def add(
        name: str, does: Callable[[argparse.Namespace], None], about: str, example: str
    ) -> argparse.ArgumentParser:
        command = added.add_parser(
            name, help=about, description=f"python -m agent {name}{example}", allow_abbrev=False
        )
        command.set_defaults(does=does)
        return command

    _run(add)
    add("resume", commands.resume, "go on with the run that was cut short", "")
    history = add("history", commands.history, "show what was tried", " --json")
    history.add_argument("--json", action="store_true", help="print the records as a JSON list")
    trying = add(
        "try", commands.try_one, "run one experiment", " 'train.learning_rate=5e-4' --why \"...\""
    )
    trying.add_argument(
        "overrides",
        nargs="+",
        metavar="KEY=VALUE",
        help="a declared parameter of model, data, train or launcher",
    )
    trying.add_argument(
        "--why",
        required=True,
        metavar="TEXT",
        help="the hypothesis: what you expect, and why; recorded before the run",
    )
    trying.add_argument(
        "--name", default="", metavar="SLUG", help="a short name (default: made from what changes)"
    )
    adopting = add(
        "adopt", adopt.command, "put an experiment of DVC's to the test and record it", " fit-lynx"
    )
    adopting.add_argument(
        "name", metavar="NAME", help="as in 'dvc exp list', or a branch made by 'dvc exp branch'"
    )
    adopting.add_argument(
        "--why",
        default="",
        metavar="TEXT",
        help="the hypothesis (default: that the sweep's finding holds)",
    )
    add("restore", commands.restore, "after a kill -9 or a failed commit", "")
    # further commands: one line here, one function in a module of its own
    return parser.parse_args(joined(arguments))


def _run(add: Add) -> None:
    run = add("run", commands.run, "run the research loop", " --trials 3 --policy optuna")
    run.add_argument(
        "--policy",
        default="",
        choices=("optuna", "llm"),
        help="who proposes (default: agent.policy)",
    )
    for name, kind, about in (
        ("trials", int, "experiments"),
        ("hours", float, "hours of work"),
        ("llm-cost", float, "money for language models"),
        ("gpu-hours", float, "GPU hours"),
        ("plateau", int, "experiments in a row without one that is kept"),
    ):
        run.add_argument(
            f"--{name}",
            type=kind,
            metavar="N",
            help=f"end after so many {about}; 0: no limit (default: agent.budget)",
        )


def joined(arguments: list[str]) -> list[str]:
    """--why TEXT as --why=TEXT, so that a text may begin with a dash."""
    parts, rest = [], iter(arguments)
    for part in rest:
        value = next(rest, None) if part in ("--why", "--name") else None
        parts.append(part if value is None else f"{part}={value}")
    return parts


def main() -> None:
    args = parse(sys.argv[1:])
    args.does(args)


if __name__ == "__main__":
    run_main("agent", main)
