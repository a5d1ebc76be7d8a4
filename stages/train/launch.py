"""The trainer as child processes: started as the launcher says, watched, ended, and its failure put
into one screen.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from stages.common import process
from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, write_json
from stages.common.gpus import usable
from stages.common.lease import Wanted, leased
from stages.common.schema import Launcher, Train
from stages.train import checkpoints
from stages.train import log as logs
from stages.train.arguments import FSDP, micro_steps, resumable, separate
from stages.train.cluster import SAID, cluster_gpus, lost_peer
from stages.train.meeting import meet

LOG = Path(".pawl/logs/train.log")

_ALLOCATOR = "expandable_segments:True"
"""Rows of changing length otherwise leave gaps in a GPU's memory that no tensor fits into
(docs.pytorch.org, notes/cuda).
"""
_PIECE = 10_000
"""Characters of a line that are looked at together: a progress bar may write many MB without a
line's end.
"""
_MEMORY = (
    "not enough memory: halve train.per_device_train_batch_size and double"
    " train.gradient_accumulation_steps"
)
_CAUSES = (
    (r"out of memory|OutOfMemory|Cannot allocate memory|can't allocate memory", _MEMORY),
    (
        r"No space left on device|Disk quota exceeded",
        (
            "the disk is full or has no inodes left (df -h, df -i): free some, then run 'dvc repro'"
            " again"
        ),
    ),
    (
        r"Some keys are not used by the HfArgumentParser: (.*)",
        "LLaMA-Factory does not know a key: see stages/train/arguments.py",
    ),
    (r"Cannot find valid samples", "no row fits into train.cutoff_len"),
    (
        r"NonFiniteLossError",
        (
            "lower train.learning_rate, raise train.warmup_ratio, or train.precision=bf16 instead"
            " of fp16"
        ),
    ),
    (
        r"No module named '?([\w.]+)",
        "a package is missing: 'make' installs what is pinned, others are named in conf/",
    ),
)


@dataclass(frozen=True)
class Run:
    """What is known of a training that ended well. `figures`: see callback.py; `preflight`: see
    preflight.check.
    """

    seconds: float
    peak_memory_gib: float
    figures: dict[str, Any]
    preflight: dict[str, Any]


def launch(
    config: dict[str, Any],
    train: Train,
    launcher: Launcher,
    folder: Path,
    *,
    engine: str,
    served: dict[str, Any],
    timeout_s: float,
) -> Run:
    """Preflight, micro run and training, each line of progress printed as the trainer logs one.

    Args:
        folder: of this training on this node alone.
        engine, served: what serves the result, and how it will be asked (preflight.check).

    Raises:
        PawlError: refused (exit code 3), failed, killed, or longer than `timeout_s` seconds: the
            root cause and the likely fix.
    """
    resume = config.get("resume_from_checkpoint")
    for path in folder.iterdir():
        if path.is_dir() and not (resume and path.name.startswith("checkpoint-")):
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    LOG.unlink(missing_ok=True)
    if resume:
        print(
            f"train: goes on from step {resume.rpartition('-')[2]}, where an earlier attempt was"
            " ended"
        )
    progress, micro = _Progress(folder), micro_steps(train, bool(config["use_cpu"])) > 0
    with leased(wanted(launcher, bool(config["use_cpu"])), "train") as gpus:
        begun = time.monotonic()
        env = environment(folder, bool(config["use_cpu"]), train.parallel) | gpus.environment()
        try:
            for argv in plan(
                config, train, launcher, folder, engine, served, micro=micro and not resume
            ):
                left_s = max(1.0, timeout_s - (time.monotonic() - begun))
                code = process.run(argv, log=LOG, env=env, timeout_s=left_s, watch=progress)
                if code:
                    raise failure(code, folder, LOG, timeout_s)
        finally:
            with suppress(OSError):  # a full disk is told by what failed
                logs.keep(LOG)
    progress()  # what came after the last look
    figures = read_json(folder / "figures.json") if launcher.node_rank == 0 else {}
    return Run(time.monotonic() - begun, peak_gib(), figures, read_json(folder / "preflight.json"))


def resumed(
    config: dict[str, Any], train: Train, launcher: Launcher, made_of: dict[str, Any]
) -> dict[str, Any]:
    """The configuration with the checkpoint of an earlier attempt to go on from, if there is one
    and the nodes agree on it.
    """
    saved = Path(config["output_dir"])
    last = (
        checkpoints.last_whole(saved, remove_broken=not launcher.node_rank)
        if resumable(train, separate(launcher))
        else None
    )
    if launcher.nodes > 1:
        last = meet(launcher, made_of, saved, last, launcher.timeout_h * 3600)
    return config | ({"resume_from_checkpoint": str(last)} if last else {})


def devices(train: Train, launcher: Launcher) -> int:
    """GPUs that the training may use: those of the machines that it runs on, which are a running
    cluster's or this one.
    """
    if train.device == "cpu":
        return 0
    if launcher.kind == "ray" and launcher.address:
        return cluster_gpus(launcher.address)
    return len(usable())


def wanted(launcher: Launcher, use_cpu: bool) -> Wanted:
    """The GPUs of this machine to lease: one for one process, one for each process of torchrun. Ray
    places its workers itself.
    """
    if use_cpu or launcher.kind == "ray":
        return Wanted()
    cards = usable()
    count = 1 if launcher.kind == "local" else min(launcher.workers or len(cards), len(cards))
    return Wanted(cards, count, count)


def placed(train: Train, launcher: Launcher) -> Launcher:
    """The launcher with the number of its workers, which a Ray cluster is asked for."""
    return (
        replace(launcher, workers=launcher.workers or devices(train, launcher))
        if launcher.kind == "ray"
        else launcher
    )


def peak_gib() -> float:
    """Largest resident memory of one of our children so far, GiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def plan(
    config: dict[str, Any],
    train: Train,
    launcher: Launcher,
    folder: Path,
    engine: str,
    served: dict[str, Any],
    micro: bool,
) -> Iterator[list[str]]:
    """The commands, one after another. One process does it all where it can, since importing
    LLaMA-Factory takes 10 s.
    """
    ask = {
        "train": asdict(train),
        "launcher": asdict(launcher),
        "engine": engine,
        "config": config,
        "data": config["dataset_dir"],
        "served": served,
        "micro": str(folder / "longest") if micro else "",
    }
    runs = [{"name": "train", "config": config}]
    if micro:
        runs.insert(
            0, {"name": "micro", "config": micro_config(config, train, folder), "needs": "longest"}
        )
    worker = [sys.executable, "-m", "stages.train.worker"]
    if launcher.kind == "local":
        yield [*worker, _job(folder, "job", {"preflight": ask, "runs": runs})]
        return
    yield [*worker, _job(folder, "preflight-job", {"preflight": ask, "runs": []})]
    for run in runs:
        job = _job(folder, f"{run['name']}-job", {"preflight": None, "runs": [run]})
        if launcher.kind == "ray":
            yield [
                sys.executable,
                "-m",
                "stages.train.cluster",
                job,
                json.dumps(asdict(launcher)),
                "cpu" if config["use_cpu"] else "gpu",
            ]
        else:
            yield [*torchrun(launcher), "-m", "stages.train.worker", job]


def micro_config(config: dict[str, Any], train: Train, folder: Path) -> dict[str, Any]:
    """The same training on the longest rows alone, and nothing of it kept."""
    dropped = (
        "eval_dataset",
        "eval_strategy",
        "eval_steps",
        "save_steps",
        "save_total_limit",
        "load_best_model_at_end",
    )
    kept = {name: value for name, value in config.items() if name not in dropped}
    return kept | {
        "dataset_dir": str(folder / "longest"),
        "output_dir": str(folder / "micro"),
        "save_strategy": "no",
        "max_steps": micro_steps(train, bool(config["use_cpu"])),
        "logging_steps": 1,
    }


def _job(folder: Path, name: str, job: dict[str, Any]) -> str:
    write_json(folder / f"{name}.json", job)
    return str(folder / f"{name}.json")


def torchrun(launcher: Launcher) -> list[str]:
    """torch's launcher: as many processes as there are GPUs, unless the launcher says how many."""
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        str(launcher.workers or "gpu"),
    ]
    if launcher.nodes == 1:
        return (
            [*argv, "--standalone"]
            if not launcher.master_port
            else [*argv, "--master_port", str(launcher.master_port)]
        )
    where = ["--master_addr", launcher.master_addr, "--master_port", str(launcher.master_port)]
    return [*argv, "--nnodes", str(launcher.nodes), "--node_rank", str(launcher.node_rank), *where]


def environment(folder: Path, use_cpu: bool, parallel: str) -> dict[str, str]:
    """What the trainer sees beside our own environment and its GPUs: everything local, and caches
    that go with the run.
    """
    env = {
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
    }
    if use_cpu:
        # threads that spin while they wait slow each other down where other work shares the cores
        env["OMP_WAIT_POLICY"] = "PASSIVE"
    elif "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its older name, which a user may have set
        env["PYTORCH_ALLOC_CONF"] = os.environ.get("PYTORCH_ALLOC_CONF", _ALLOCATOR)
    if parallel == "fsdp":
        env |= FSDP
    return env


def failure(code: int, folder: Path, log: Path, timeout_s: float) -> PawlError:
    """Say why the trainer stopped: the root cause that a process left, or else the log's, and where
    the cause is a known one, the fix.
    """
    told, tail = _told(folder), process.tail(log, 20_000)
    # such a process says nothing of its end, and its log is full of warnings
    cut_short = code == -9 and not told
    traceback, named = told.get("traceback", ""), ""
    if not told and not cut_short:
        traceback, named = first_cause(log)
    last = checkpoints.last_whole(folder)
    again = (
        f"'dvc repro' goes on from step {last.name.rpartition('-')[2]}"
        if last
        else "'dvc repro' starts it again"
    )
    details = {
        "exit_code": code,
        "signal": max(0, -code),
        "timed_out": code == 124,
        "tail": tail,
        "peak_memory_gib": peak_gib(),
        "traceback": traceback,
    }
    if told.get("during") == "preflight" and told.get("fix"):
        return PawlError(
            told["what"],
            where=told["where"],
            fix=told["fix"],
            details=details | {"exit_code": 3},
            code=3,
        )
    what = f"LLaMA-Factory stopped with exit code {code}"
    fix = f"read the log, correct conf/train/; then {again} (the whole log: {LOG})"
    if told.get("during") == "micro":
        what = f"the micro run on the longest rows failed: {what}"
    if code == 124:
        what, fix = (
            f"training ran longer than launcher.timeout_h ({timeout_s / 3600:g} hours)",
            f"raise launcher.timeout_h: {again}",
        )
    elif code == -9:
        what, fix = (
            "the trainer was killed (signal 9): most often the machine ran out of memory",
            f"{_MEMORY}; else {again}",
        )
    elif "NonFiniteLossError" in told.get("what", ""):
        what = told["what"].partition(": ")[2]
    evidence = [f"{told['what']}\n{traceback}"] if told else [traceback, tail, named]
    causes = (cause for text in evidence for pattern, cause in _CAUSES if re.search(pattern, text))
    fix = fix if code == 124 or cut_short else next(causes, fix)
    shown = traceback or tail
    lines = [line[:200] for line in shown.splitlines() if line.strip()][-12:]
    return PawlError(what, where="\n         ".join([str(LOG), *lines]), fix=fix, details=details)


def _told(folder: Path) -> dict[str, str]:
    """What a worker left about its failure: the one of lowest rank that says more than that a peer
    has gone.
    """
    left = sorted(folder.glob("failure-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
    told = [dict(read_json(path)) for path in left]
    return next((words for words in told if not lost_peer(words["what"])), told[0] if told else {})


def first_cause(log: Path) -> tuple[str, str]:
    """For processes that died without leaving word, from a log of any length: its first traceback,
    and the first lines with a known cause.

    The first, since what comes after it is the other processes' and torch's launcher's report of
    it.
    """
    traceback, done, named = list[str](), False, dict[str, str]()
    try:
        with open(log, encoding="utf-8", errors="replace", newline="\n") as file:
            for piece in iter(lambda: file.readline(_PIECE), ""):
                line = re.sub(r"^\[rank\d+\]: ?", "", piece.rstrip("\n"))
                # perhaps right behind a progress bar
                begins = line.find("Traceback (most recent call last)")
                if not traceback and begins >= 0:
                    traceback.append(line[begins:])
                elif traceback and not done:
                    traceback.append(line)
                    done = bool(line.strip()) and not line.startswith(" ")
                for pattern, _ in _CAUSES:
                    if pattern not in named and re.search(pattern, line):
                        named[pattern] = line
    except FileNotFoundError:
        pass
    return "\n".join(traceback)[-4000:], "\n".join(named.values())


class _Progress:
    """Prints each new line that the trainer's callback writes (step, loss, tokens a second, time
    left), or the process that places it.
    """

    def __init__(self, folder: Path) -> None:
        self.files = {
            "micro run, ": folder / "micro" / "progress.jsonl",
            "": folder / "progress.jsonl",
        }
        self.shown = dict.fromkeys(self.files, 0)
        self.said, self.heard = folder / SAID, 0

    def __call__(self) -> None:
        with suppress(FileNotFoundError):
            lines = self.said.read_text(encoding="utf-8").splitlines()
            for line in lines[self.heard :]:
                print(f"train: {line}")
            self.heard = len(lines)
        for label, path in self.files.items():
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except FileNotFoundError:
                continue
            for line in lines[self.shown[label] :]:
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # the trainer is still writing this line
                self.shown[label] += 1
                losses = [
                    f"{name} {entry[key]:.3f}"
                    for name, key in (("loss", "loss"), ("eval loss", "eval_loss"))
                    if entry[key] is not None
                ]
                left = timedelta(seconds=round(entry["left_s"]))
                rate = (
                    ""
                    if entry["tokens_per_s"] is None
                    else f", {entry['tokens_per_s']:.0f} tokens/s"
                )
                done = f"{label}step {entry['step']}/{entry['steps']}, {', '.join(losses)}"
                print(f"train: {done}{rate}, {left} left")
