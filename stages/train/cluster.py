"""Training by Ray Train: LLaMA-Factory's `run_exp` in each worker of a TorchTrainer, on a running cluster or on one of this machine's own.

python -m stages.train.cluster JOB.json LAUNCHER-JSON cpu|gpu            started by launch.py

(LLaMA-Factory's own USE_RAY mode wants 10 cores for each device of the cluster and waits for ever where there are fewer.) Nodes see the
repository and `launcher.storage` under the same paths. A worker or node that is lost is Ray's to replace: the group starts again from the
last whole checkpoint. An error of the training itself would only come again, so it ends the run and is left in failure-RANK.json.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, read_json
from stages.common.gpus import visible
from stages.common.schema import Launcher

_PASSED_ON = ("HF_HUB_OFFLINE", "DISABLE_VERSION_CHECK", "TOKENIZERS_PARALLELISM", "HF_DATASETS_CACHE", "PYTHONPATH", "OMP_WAIT_POLICY",
              "FSDP_STATE_DICT_TYPE")  # fmt: skip
_PATIENCE_S = 10.0
"""For the machine of a cluster's address to answer."""
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
            socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=_PATIENCE_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        return int(ray.cluster_resources().get("GPU", 0))
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        fix = "start it ('ray start --head'), or leave the address empty for a cluster of this machine's own"
        raise PawlError(f"no Ray cluster answers at {address}: {str(error)[:200]}", where="launcher.address", fix=fix) from None
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, ours)


def main() -> int:
    job_file, launcher, device = Path(sys.argv[1]), Launcher(**json.loads(sys.argv[2])), sys.argv[3]
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"PYTHONPATH": str(ROOT)}
    if launcher.address:
        ray.init(address=launcher.address, runtime_env={"env_vars": env})
    else:
        ray.init(num_cpus=(launcher.workers or max(1, len(visible()))) + 1, include_dashboard=False, runtime_env={"env_vars": env})
    workers = launcher.workers or int(ray.cluster_resources().get("GPU", 0))
    if not workers:
        raise PawlError("the cluster has no GPU", where="launcher.workers", fix="set launcher.workers to train on CPUs")
    needed = {"CPU": workers} | ({"GPU": workers} if device == "gpu" else {})
    short = [name for name, count in needed.items() if ray.cluster_resources().get(name, 0) < count]
    if short:  # Ray would wait for them for ever
        found = int(ray.cluster_resources().get(short[0], 0))
        raise PawlError(f"{workers} workers need {workers} {short[0]}s, the cluster has {found}", where="launcher.workers", fix="lower it")
    trainer = TorchTrainer(
        loop,
        train_loop_config={"job": str(job_file.absolute())},
        torch_config=TorchConfig(backend="gloo" if device == "cpu" else "nccl"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=device == "gpu", resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="run",
            storage_path=str(job_file.parent.absolute() / "ray"),
            failure_config=FailureConfig(max_failures=launcher.max_failures),
        ),
    )
    trainer.fit()
    return 1 if list(job_file.parent.glob("failure-*.json")) else 0


def lost_peer(text: str) -> bool:
    """Whether an error's words only say that another process has gone."""
    return any(word in text.lower() for word in _LOST)


def loop(settings: dict[str, Any]) -> None:
    """What each worker does, again after each loss of a worker: go on from the last checkpoint that is whole."""
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
            if isinstance(error, RuntimeError) and lost_peer(str(error)):
                raise  # another worker has gone: Ray's failure policy decides
            worker.leave(folder, rank, run["name"], traceback.format_exc(), {"what": f"{type(error).__name__}: {error}"})
            return


if __name__ == "__main__":
    run_main("train", main)
