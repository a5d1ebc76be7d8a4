"""The stage as `dvc repro` runs it: killed and taken up again, out of time, on several processes,
on a Ray cluster that loses a worker.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import run_in

pytestmark = pytest.mark.e2e

STEPS = "train.max_steps=40"
ENV = {"OMP_NUM_THREADS": "1"}


def compose(folder: Path, *overrides: str) -> None:
    run_in(folder, sys.executable, "-m", "stages.common.config", *overrides)


def result(folder: Path) -> tuple[str, str]:
    """The losses, and the hash of the weights."""
    report = json.loads((folder / "reports/train.json").read_text())
    return (folder / "reports/loss.csv").read_text(), report["adapter_sha256"]


def train(folder: Path, *, ok: bool = True) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "dvc", "repro", "-s", "-f", "train", ok=ok, env=ENV)


def kill_at(folder: Path, step: int, argv: list[str]) -> None:
    """Start a command and kill -9 its group when the training has logged `step`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        argv,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, **ENV, "PATH": path},
        stdout=subprocess.DEVNULL,
    )
    wait_for(folder, step, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(folder: Path, step: int, process: subprocess.Popen[Any]) -> None:
    deadline, begun = time.time() + 300, psutil.Process(process.pid).create_time()
    while process.poll() is None and time.time() < deadline:
        # an unfinished one may lie beside it
        for file in folder.glob(".pawl/train/*/progress.jsonl"):
            if file.stat().st_mtime > begun and any(
                json.loads(line)["step"] >= step
                for line in file.read_text().splitlines()
                if line.endswith("}")
            ):
                return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was never logged")


def gone(folder: Path) -> bool:
    """Whether, within some seconds, no process works in `folder` any more."""
    for _ in range(100):
        if not [
            process
            for process in psutil.process_iter(["cwd"])
            if str(folder) in str(process.info["cwd"])
        ]:
            return True
        time.sleep(0.1)
    return False


def test_a_killed_stage_goes_on_where_it_was_and_ends_as_if_undisturbed(place: Path) -> None:
    compose(place, STEPS, "launcher.checkpoint_steps=2")
    train(place)
    undisturbed = result(place)
    for path in (place / "models/adapter/adapter_model.safetensors", place / "reports/train.json"):
        path.unlink()
    # and a micro run before it changes nothing
    compose(place, STEPS, "launcher.checkpoint_steps=2", "train.micro_steps=2")
    kill_at(place, 5, ["dvc", "repro", "-s", "-f", "train"])
    assert list(place.glob(".pawl/train/*/micro/progress.jsonl"))
    assert (
        not (place / "models/adapter").exists() and not (place / "reports/train.json").exists()
    ), "no half of a model is a result"
    run_in(place, sys.executable, "-m", "stages.common.process")
    said = train(place).stdout
    assert "goes on from step" in said and result(place) == undisturbed
    assert json.loads((place / "reports/train.json").read_text())["resumed_from_step"] >= 2
    assert not [path for path in (place / ".pawl/train").glob("*") if path.is_dir()], (
        "checkpoints go with success"
    )


def test_a_training_that_ran_out_of_time_says_so_and_goes_on_with_more(place: Path) -> None:
    compose(
        place,
        "train.max_steps=3000",
        "train.logging_steps=1",
        "launcher.checkpoint_steps=2",
        "launcher.timeout_h=0.006",
    )
    stopped = train(place, ok=False)
    assert stopped.returncode and "launcher.timeout_h" in stopped.stderr
    told = json.loads((place / ".pawl/failure/train.json").read_text())
    assert (
        told["timed_out"]
        and told["exit_code"] == 124
        and told["tail"]
        and told["peak_memory_gib"] > 0.1
    )
    folder = next(path for path in (place / ".pawl/train").glob("*") if path.is_dir())
    if list(folder.glob("checkpoint-*")):  # a very busy machine may have spent the 22 s on imports
        assert "goes on from step" in stopped.stderr


def test_a_refused_configuration_leaves_its_reason_and_exit_code_3(place: Path) -> None:
    compose(place, "train.template=alpaca")
    refused = run_in(place, sys.executable, "-m", "stages.train", ok=False, env=ENV)
    told = json.loads((place / ".pawl/failure/train.json").read_text())
    assert refused.returncode == 3 and "train.template (alpaca)" in refused.stderr
    assert (
        told["exit_code"] == 3
        and "differs" in told["error"]
        and "leave train.template empty" in told["fix"]
    )


def test_check_answers_in_json_or_with_exit_code_3(place: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = run_in(
        place,
        sys.executable,
        "-m",
        "stages.train",
        "--check",
        "train=dora",
        "train.cutoff_len=16",
        env=ENV,
    )
    told = json.loads(found.stdout)
    assert (
        told["config"]["use_dora"] is True
        and told["memory"]["table"]
        and told["longest_tokens"] == 16
    )
    assert [
        warning
        for warning in told["warnings"]
        if "built anew" in warning and "would be cut at 16" in warning
    ], "rows of another cutoff_len"
    refused = run_in(
        place,
        sys.executable,
        "-m",
        "stages.train",
        "--check",
        "+train.extra.lora_rnk=8",
        ok=False,
        env=ENV,
    )
    assert refused.returncode == 3
    assert "did you mean train.lora_rank" in refused.stderr
    assert json.loads(refused.stdout)["refused"]["where"] == "train.extra.lora_rnk"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 60, (
        "two checks, 30 s each; processor time, which other work on the machine does not lengthen"
    )


def test_torchrun_and_a_ray_cluster_that_loses_a_worker_give_the_same_losses(place: Path) -> None:
    shape = (STEPS.replace("40", "300"), "launcher.workers=2", "launcher.checkpoint_steps=10")
    compose(place, *shape, "launcher=torchrun")
    kill_at(place, 15, [sys.executable, "-m", "stages.train"])
    assert gone(place), (
        "torch gives its workers a session of their own, yet they die with the stage"
    )
    assert "goes on from step" in train(place).stdout
    undisturbed = result(place)
    compose(place, *shape, "launcher=ray")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with open(place / "ray.log", "w") as log:
        stage = subprocess.Popen(
            [sys.executable, "-m", "stages.train"],
            cwd=place,
            stdout=log,
            stderr=log,
            env={**os.environ, **ENV, "PATH": path},
        )
        wait_for(place, 25, stage)
        workers = [
            child
            for child in psutil.Process(stage.pid).children(recursive=True)
            if "RayTrainWorker" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2
        workers[0].kill()
        assert stage.wait(400) == 0, (place / "ray.log").read_text()[-3000:]
    losses, weights = result(place)
    assert losses == undisturbed[0] and weights == undisturbed[1]
    report = json.loads((place / "reports/train.json").read_text())
    assert report["resumed_from_step"] >= 10 and report["processes"] == 2
    assert gone(place)
