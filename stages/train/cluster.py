"""Training by Ray Train: LLaMA-Factory's `run_exp` in each worker of a TorchTrainer, on a running
cluster or on one of this machine's own.

python -m stages.train.cluster JOB.json LAUNCHER-JSON cpu|gpu            started by launch.py

(LLaMA-Factory's own USE_RAY mode wants 10 cores for each device of the cluster and waits for ever
where there are fewer.) Nodes see the repository, the base model, the rows and `launcher.storage`
under the same paths; what a node lacks is named before anything starts. A worker or node that is
lost is Ray's to replace: the group starts again from the last whole checkpoint. An error of the
training itself would only come again, so it ends the run and is left in failure-RANK.json.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, read_json
from stages.common.gpus import visible
from stages.common.schema import Launcher
from stages.train.arguments import FSDP

_PASSED_ON = (
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "DISABLE_VERSION_CHECK",
    "TOKENIZERS_PARALLELISM",
    "HF_DATASETS_CACHE",
    "PYTHONPATH",
    "OMP_WAIT_POLICY",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    *FSDP,
)
_PATIENCE_S = 10.0
"""For the machine of a cluster's address to answer."""
_TELL_S = 60.0
"""Between two lines about a busy cluster."""
SAID = "said.txt"
"""In the folder of the training: what launch.py prints of this process."""
_LOST = ("connection", "gloo", "nccl", "peer", "timed out", "timeout", "socket")


@functools.cache
def cluster_gpus(address: str) -> int:
    """GPUs of a running cluster, whose head, where the stage runs, may have none.

    Raises:
        PawlError: no cluster answers at `address`.
    """
    import ray

    host, _, port = address.rpartition(":")
    ours = signal.getsignal(signal.SIGTERM)  # which Ray replaces
    try:
        if host and port.isdigit():  # Ray itself asks for minutes
            socket.create_connection(
                (host.rpartition("/")[2].strip("[]"), int(port)), timeout=_PATIENCE_S
            ).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        return int(ray.cluster_resources().get("GPU", 0))
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        fix = (
            "start it ('ray start --head'), or leave the address empty for a cluster of this"
            " machine's own"
        )
        raise PawlError(
            f"no Ray cluster answers at {address}: {str(error)[:200]}",
            where="launcher.address",
            fix=fix,
        ) from None
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, ours)


def main() -> int:
    job_file = Path(sys.argv[1])
    try:
        return run(job_file, Launcher(**json.loads(sys.argv[2])), sys.argv[3])
    except PawlError as error:  # told by the stage, see worker.py
        from stages.train import worker

        worker.leave(
            job_file.parent,
            0,
            "preflight",
            str(error),
            {"what": error.what, "where": error.where, "fix": error.fix},
        )
        return error.code


def run(job_file: Path, launcher: Launcher, device: str) -> int:
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {
        "PYTHONPATH": str(ROOT)
    }
    if launcher.address:
        ray.init(address=launcher.address, runtime_env={"env_vars": env})
    else:
        ray.init(
            num_cpus=(launcher.workers or max(1, len(visible()))) + 1,
            include_dashboard=False,
            runtime_env={"env_vars": env},
        )
    workers = launcher.workers or int(ray.cluster_resources().get("GPU", 0))
    if not workers:
        raise PawlError(
            "the cluster has no GPU",
            where="launcher.workers",
            fix="set launcher.workers to train on CPUs",
        )
    needed = {"CPU": workers} | ({"GPU": workers} if device == "gpu" else {})
    short = [name for name, count in needed.items() if ray.cluster_resources().get(name, 0) < count]
    if short:  # Ray would wait for them for ever
        found = int(ray.cluster_resources().get(short[0], 0))
        raise PawlError(
            f"{workers} workers need {workers} {short[0]}s, the cluster has {found}",
            where="launcher.workers",
            fix="lower it",
        )
    check_shared(job_file, needed)
    wait_for(needed, job_file.parent)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"job": str(job_file.absolute())},
        torch_config=TorchConfig(backend="gloo" if device == "cpu" else "nccl"),
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=device == "gpu", resources_per_worker={"CPU": 1}
        ),
        run_config=RunConfig(
            name="run",
            storage_path=str(job_file.parent.absolute() / "ray"),
            failure_config=FailureConfig(max_failures=launcher.max_failures),
        ),
    )
    try:
        trainer.fit()
    except Exception:
        if not list(job_file.parent.glob("failure-*.json")):
            raise  # else a worker has said it better
    return 1 if list(job_file.parent.glob("failure-*.json")) else 0


def check_shared(job_file: Path, needed: dict[str, int]) -> None:
    """Ask each node that may get a worker whether it sees what the training reads.

    Raises:
        PawlError: names the node, what it lacks, and how to share it.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = _cluster()
    config = read_json(job_file)["runs"][0]["config"]
    hub = (
        "put the hub's cache on shared storage (export HF_HOME=...), then run 'dvc repro --force"
        " fetch_model'"
    )
    same = "every node needs it under the same path: put it on shared storage"
    fixes = {
        str(ROOT / "stages/train/cluster.py"): f"{same}, or clone the repository there to {ROOT}",
        str(Path(config["model_name_or_path"]) / "config.json"): (
            hub if "hub" in config["model_name_or_path"] else same
        ),
        str(Path(config["dataset_dir"]) / "dataset_info.json"): same,
        str(job_file.absolute()): "set launcher.storage to a folder that every node sees",
    }
    ask = ray.remote(num_cpus=0)(absent)
    for node in ray.nodes():
        if not node["Alive"] or any(node["Resources"].get(name, 0) < 1 for name in needed):
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        lacks = ray.get(ask.options(scheduling_strategy=there).remote(list(fixes)), timeout=600)
        if lacks:
            first = lacks[0]
            start = (
                f"start Ray there from this environment: {Path(sys.prefix) / 'bin/ray'} start"
                " --address=..."
            )
            what = f"the node {node['NodeManagerHostname']} lacks {' and '.join(lacks)}"
            raise PawlError(what, where="launcher.address", fix=fixes.get(first, start))


def absent(paths: list[str]) -> list[str]:
    """Which of these files, and of the trainer's packages, this machine lacks. Runs where the
    repository may be missing.
    """
    missing = [path for path in paths if not os.path.exists(path)]  # noqa: PTH110
    return missing + [
        f"the package {name}"
        for name in ("torch", "llamafactory")
        if not importlib.util.find_spec(name)
    ]


def wait_for(needed: dict[str, int], folder: Path, poll_s: float = 5.0) -> None:
    """Wait until the cluster has this much free; Ray would do so too, but without a word."""
    begun = time.monotonic()
    told = -_TELL_S
    while True:
        free = _cluster().available_resources()
        short = [
            f"{free.get(name, 0):g} of {count} {name}s"
            for name, count in needed.items()
            if free.get(name, 0) < count
        ]
        waited = time.monotonic() - begun
        if not short:
            return
        if waited - told >= _TELL_S:
            told = waited
            with open(folder / SAID, "a", encoding="utf-8") as file:
                file.write(
                    f"waits for the Ray cluster: {' and '.join(short)} are free; {waited:.0f} s so"
                    " far\n"
                )
        time.sleep(poll_s)


def _cluster() -> Any:
    import ray

    return ray


def lost_peer(text: str) -> bool:
    """Whether an error's words only say that another process has gone."""
    return any(word in text.lower() for word in _LOST)


def loop(settings: dict[str, Any]) -> None:
    """What each worker does, again after each loss of a worker: go on from the last checkpoint that
    is whole.

    An error is left for the stage and raised, so that Ray ends the other workers: on GPUs they wait
    half an hour for the one that has gone. The group that Ray then starts again finds the word that
    was left and returns.
    """
    from stages.train import checkpoints, worker

    job_file = Path(settings["job"])
    folder, rank = job_file.parent, int(os.environ.get("RANK", "0"))
    if list(folder.glob("failure-*.json")):
        return
    for run in read_json(job_file)["runs"]:
        if run["name"] == "train" and run["config"].get("save_strategy") != "no":
            last = checkpoints.last_whole(folder, remove_broken=rank == 0)
            run["config"]["resume_from_checkpoint"] = str(last) if last else None
        try:
            worker.train(run, folder)
        except Exception as error:  # told by the stage, see worker.py
            # else Ray's failure policy decides
            if not (isinstance(error, RuntimeError) and lost_peer(str(error))):
                worker.leave(
                    folder,
                    rank,
                    run["name"],
                    traceback.format_exc(),
                    {"what": f"{type(error).__name__}: {error}"},
                )
            raise


if __name__ == "__main__":
    run_main("train", main)
