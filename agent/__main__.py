"""The research loop's memory, and one experiment at a time.

python -m agent history                                     the lineage of all experiments, newest last
python -m agent history --json                              the same as a list of records
python -m agent try 'train.learning_rate=5e-4' --why "the loss still oscillates at the end: half the step keeps more"
                                                            change parameters, run 'dvc repro', keep or discard by the verdict
python -m agent try train.lora_rank=32 train.lora_alpha=64 --name rank-32 --why "..."
python -m agent restore                                     after a kill -9: put the tree back, drop the unfinished experiment;
                                                            after a failed commit (a hook, a full disk): commit the finished one

A try needs a clean tree on a branch. Accepted: one commit of conf/, params.yaml, dvc.lock, reports/ and the record. Otherwise
all of these go back to HEAD and the record alone is committed. Either way it is one folder in experiments/ and one row in
experiments/journal.md. An experiment may change model, data, train and launcher; what measures it, and what keeps the benchmark
out of the training data, stays as it is. Where a person changed the ruler (benchmark, engine, evaluate), the present state is
recorded first as a new starting point, and experiments of another ruler are no longer what a try is compared with.
Exit code: 0 with a verdict, 1 without, 130 stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from agent.history import as_json, fit, read_history, tree
from stages.common.errors import PawlError, run_main
from stages.common.process import stage_lock

START = """no experiment yet. The first try records the present state as the starting point, then runs yours:
  python -m agent try 'train.learning_rate=5e-4' --why "what you expect, and why\""""


def show_history(as_list: bool) -> None:
    records, broken = read_history()
    if broken:
        print(f"agent: warning: not read: {', '.join(broken)}", file=sys.stderr)
    if as_list:
        print(json.dumps(as_json(records), indent=1, sort_keys=True))  # ASCII: safe in any terminal and pipe
        return
    if not records:
        print(START)
        return
    width = shutil.get_terminal_size((120, 0)).columns
    print(fit("experiments, newest last; difference in validation accuracy from the incumbent, with its 95 % interval", width))
    for line in tree(records, width):
        print(line)


def try_one(overrides: list[str], why: str, name: str) -> None:
    from agent import settings, trial, workspace

    with stage_lock("agent", record_failure=False):
        commit = workspace.require_ready()
        hypothesis = trial.hypothesis(why)
        before, planned = settings.require_composed(), settings.resolve(overrides)
        if reason := trial.why_start(before):
            if settings.fingerprint(before) == settings.fingerprint(planned):
                raise PawlError(
                    "this is the present state: nothing changes but seeds and names", where=" ".join(overrides), fix="change something"
                )
            trial.tell(trial.starting_point(commit, reason))
            commit = workspace.head()
        record = trial.run(*trial.plan(overrides, hypothesis, name, commit))
        trial.tell(record)


def restore() -> None:
    from agent import trial, workspace

    with stage_lock("agent", record_failure=False):
        committed, removed = trial.recover()
        left = workspace.changed()
    if committed:
        print(f"committed the finished {', '.join(committed)}")
    if removed:
        print(f"put back to HEAD; removed the unfinished {', '.join(removed)}")
    if not committed and not removed:
        print("no experiment was cut short here: nothing to restore")
    if left:
        print(f"not the agent's, so left as they are: {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    history = commands.add_parser("history", help="show what was tried", description="python -m agent history --json", allow_abbrev=False)
    history.add_argument("--json", action="store_true", help="print the records as a JSON list")
    trying = commands.add_parser(
        "try", help="run one experiment", description="python -m agent try 'train.learning_rate=5e-4' --why \"...\"", allow_abbrev=False
    )
    trying.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="a declared parameter of model, data, train or launcher")
    trying.add_argument("--why", required=True, metavar="TEXT", help="the hypothesis: what you expect, and why; recorded before the run")
    trying.add_argument("--name", default="", metavar="SLUG", help="a short name (default: made from what changes)")
    commands.add_parser("restore", help="after a kill -9 or a failed commit", description="python -m agent restore", allow_abbrev=False)
    return parser.parse_args(joined(arguments))


def joined(arguments: list[str]) -> list[str]:
    """--why TEXT as --why=TEXT, so that a text may begin with a dash."""
    parts, rest = [], iter(arguments)
    for part in rest:
        value = next(rest, None) if part in ("--why", "--name") else None
        parts.append(part if value is None else f"{part}={value}")
    return parts


def main() -> None:
    args = parse(sys.argv[1:])
    if args.command == "history":
        show_history(args.json)
    elif args.command == "try":
        try_one(args.overrides, args.why, args.name)
    else:
        restore()


if __name__ == "__main__":
    run_main("agent", main)
