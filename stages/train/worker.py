"""The process that trains: preflight, micro run and training share one import of LLaMA-Factory,
which takes as long as a short training.

python -m stages.train.worker JOB.json
    started by launch.py, once or (torchrun) once for each process

Exit codes: 0; 3 where the preflight refuses; 4 where the loss became NaN or infinite; 1 for any
other failure. What went wrong is in `failure-RANK.json` beside the job, so that nobody has to
search a log that several processes write at once.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import write_json
from stages.common.gpus import hide_gpu_packages
from stages.common.process import die_with_parent

NON_FINITE = 4


def main(job_file: str) -> int:
    # under torchrun the parent is torch's agent, which gives each worker a session of its own
    die_with_parent()
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    rank = int(os.environ.get("RANK", "0"))
    begun = "preflight"
    if on_cpu(job):
        hide_gpu_packages()
    try:
        if job.get("preflight"):
            from stages.train.preflight import check_job

            write_json(folder / "preflight.json", check_job(job["preflight"]))
        for run in job["runs"]:
            begun = run["name"]
            train(run, folder)
    except PawlError as error:
        leave(
            folder,
            rank,
            begun,
            str(error),
            {"what": error.what, "where": error.where, "fix": error.fix},
        )
        return error.code
    except Exception as error:  # noqa: BLE001 - whatever a trainer raises is told by the stage
        leave(
            folder,
            rank,
            begun,
            traceback.format_exc(),
            {"what": f"{type(error).__name__}: {error}"},
        )
        return NON_FINITE if type(error).__name__ == "NonFiniteLossError" else 1
    return 0


def on_cpu(job: dict[str, Any]) -> bool:
    configs = [part["config"] for part in (job.get("preflight"), *job["runs"]) if part]
    return all(config["use_cpu"] for config in configs)


def train(run: dict[str, Any], folder: Path) -> None:
    """One call of LLaMA-Factory. `run`: name (micro or train), config, needs (a file without which
    the run is left out).
    """
    if run.get("needs") and not (folder / run["needs"]).exists():
        return
    import torch
    from llamafactory.train.tuner import run_exp

    from stages.train.callback import Watch

    accept_numbered_cpus()
    if run["config"].get("deepspeed") and run["config"]["use_cpu"]:
        join_on_cpus()
    target = folder if run["name"] == "train" else folder / run["name"]
    target.mkdir(exist_ok=True)
    run_exp(dict(run["config"]), callbacks=[Watch(target)])
    gc.collect()  # the micro run's model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# torch sorts its packages at each registration: a second one of the same priority would compare
# functions
@functools.cache
def accept_numbered_cpus() -> None:
    """Under torchrun on CPUs the trainer loads its optimizer to "cpu:0", a place that torch's
    loader does not know.
    """
    import torch

    torch.serialization.register_package(
        99,
        lambda storage: None,
        lambda storage, place: storage if place.startswith("cpu:") else None,
    )


def join_on_cpus() -> None:
    """On GPUs accelerate joins the processes by way of deepspeed. On CPUs it does not, and each
    takes itself for the only one.
    """
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def leave(folder: Path, rank: int, begun: str, text: str, words: dict[str, str]) -> None:
    print(text, file=sys.stderr, flush=True)
    write_json(
        folder / f"failure-{rank}.json", words | {"during": begun, "traceback": text[-8000:]}
    )


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # a failed process must not wait for threads or for the other processes
    os._exit(code) if code else sys.exit(0)
