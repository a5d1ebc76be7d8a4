"""What the commands of `python -m agent` do; each is one function of its arguments."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from agent.knowledge.history import as_json, fit, read_history, tree
from stages.common.errors import PawlError
from stages.common.process import stage_lock

START = """no experiment yet. The first try records the present state as the starting point,
then runs yours:
  python -m agent try 'train.learning_rate=5e-4' --why "what you expect, and why\""""


def history(args: argparse.Namespace) -> None:
    records, broken = read_history()
    if broken:
        print(f"agent: warning: not read: {', '.join(broken)}", file=sys.stderr)
    if args.json:
        # ASCII: safe in any terminal and pipe
        print(json.dumps(as_json(records), indent=1, sort_keys=True))
        return
    if not records:
        print(START)
        return
    width = shutil.get_terminal_size((120, 0)).columns
    print(
        fit(
            "experiments, newest last; difference in validation accuracy from the incumbent, with"
            " its 95 % interval",
            width,
        )
    )
    for line in tree(records, width):
        print(line)


def run(args: argparse.Namespace) -> None:
    from agent import loop

    limits = {
        "trials": args.trials,
        "hours": args.hours,
        "llm_cost": args.llm_cost,
        "gpu_hours": args.gpu_hours,
        "plateau": args.plateau,
    }
    with _stopped():
        loop.start(args.policy, limits)


def resume(args: argparse.Namespace) -> None:
    from agent import loop

    with _stopped():
        loop.resume()


@contextmanager
def _stopped() -> Iterator[None]:
    """Ctrl-C or its like during a run: what lies in the tree, and how to go on."""
    from agent.run.progress import read_run

    try:
        yield
    except KeyboardInterrupt:
        run = read_run()
        if run is None or run.ended:
            raise
        about = (
            f"{run.folder} stays planned, and its changes stay in the tree"
            if run.folder
            else "between two experiments"
        )
        print(f"\nagent: stopped: {about}", file=sys.stderr)
        print(
            "  go on:   python -m agent resume\n  give up: python -m agent restore", file=sys.stderr
        )
        sys.exit(130)


def try_one(args: argparse.Namespace) -> None:
    from agent.run import execution, preflight, settings, telling, trial, workspace
    from agent.run.progress import Progress

    with stage_lock("agent", record_failure=False):
        commit = workspace.require_ready()
        hypothesis = trial.hypothesis(args.why)
        before, planned = settings.require_composed(), settings.resolve(args.overrides)
        preflight.require_trainable(args.overrides)
        if reason := trial.why_start(before):
            if settings.fingerprint(before) == settings.fingerprint(planned):
                raise PawlError(
                    "this is the present state: nothing changes but seeds and names",
                    where=" ".join(args.overrides),
                    fix="change something",
                )
            telling.tell(trial.starting_point(commit, reason))
            commit = workspace.head()
        record, cause = execution.run(
            trial.plan(args.overrides, hypothesis, args.name, commit), Progress()
        )
        if cause:
            raise cause
        telling.tell(record)


def restore(args: argparse.Namespace) -> None:
    from agent.run import execution, workspace
    from agent.run.progress import Progress, read_run

    with stage_lock("agent", record_failure=False):
        committed = execution.commit_finished()
        removed = workspace.put_back()
        left = workspace.changed()
        run = read_run()
        if run and not run.ended:
            Progress(run).end("given up")
    if committed:
        print(f"committed the finished {', '.join(committed)}")
    if removed:
        print(f"put back to HEAD; removed the unfinished {', '.join(removed)}")
    if run and run.ended == "given up":
        print(f"the run {run.id} is given up")
    if not committed and not removed:
        print("no experiment was cut short here: nothing to restore")
    if left:
        print(
            "not the agent's, so left as they are:"
            f" {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}"
        )
