"""Log the run in the working tree to MLflow, once.

python -m stages.track
python -m stages.track --crashed experiments/0007-rank-64
    log an experiment of the agent that crashed, as a failed run

A run is found by its key (tag pawl.key): a hash of the parameters that dvc.yaml names for the
stages before (a longer timeout is no new run), of what dvc.lock says came out, and of the verdict.
A complete run is left alone, an incomplete one is completed, so the stage may run as often as it
likes, also for results that DVC restored. The store is the server that MLFLOW_TRACKING_URI names,
or mlflow.db and mlartifacts/ in the repository (in the main one, from a queue worker's clone too).
Where it cannot be reached, the run waits in .pawl/spool and the next one delivers it. Runs of one
sweep, or of one session of the agent, are nested under one parent. tracking=none logs nothing. What
was measured on test items is under test/, for human eyes only. A verdict that DVC's cache gave back
was not judged here: its look at the validation items is written into experiments/looks.jsonl.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stages.common import looks
from stages.common.config import load_params
from stages.common.errors import run_main
from stages.common.files import ROOT, main_root, write_text
from stages.common.keys import tracked
from stages.common.process import stage_lock
from stages.common.reports.verdict import Verdict
from stages.track.crashed import make_crashed
from stages.track.record import make_record
from stages.track.store import save

SECTIONS = (
    "experiment",
    "model",
    "data",
    "benchmark",
    "train",
    "launcher",
    "engine",
    "evaluate",
    "judge",
    "tracking",
)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m stages.track", description=__doc__, formatter_class=raw
    )
    parser.add_argument(
        "--crashed", metavar="FOLDER", type=Path, help="of an experiment that has no verdict"
    )
    if folder := parser.parse_args().crashed:
        return log_crashed(folder)
    with (
        stage_lock("track"),
        load_params(*tracked("track")) as params,
    ):
        looks.take_over([ROOT, main_root()], Verdict.read(ROOT / "reports/judge.json"))
        if params.tracking.kind == "none":
            print("track: tracking.kind is none, nothing logged")
        else:
            record = make_record(ROOT, {name: getattr(params, name) for name in SECTIONS})
            done = save(record, params.tracking.experiment, main_root())
            if done != "spooled":
                print(
                    f"track: run {record.name} {done} in MLflow, {len(record.metrics)} metric"
                    " points; 'make ui' shows it"
                )
        # the same text always, so that an experiment that is put back finds the marker as it was
        write_text(
            ROOT / "reports/track.txt",
            "This working tree's results were logged; 'make ui' shows them.\n",
        )


def log_crashed(folder: Path) -> None:
    record, tracking = make_crashed(ROOT / folder)
    if tracking.get("kind") == "mlflow":
        print(
            f"track: crashed run {record.name}"
            f" {save(record, str(tracking.get('experiment')), main_root())}"
        )


if __name__ == "__main__":
    run_main("track", main)
