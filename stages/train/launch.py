"""LLaMA-Factory as a child process: started, watched, ended, and its failure put into one screen."""

from __future__ import annotations

import json
import re
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common import process
from stages.common.errors import PawlError
from stages.common.files import write_json

LOG = Path(".pawl/logs/train.log")

_MEMORY = "not enough memory: halve train.per_device_train_batch_size and double train.gradient_accumulation_steps"
_CAUSES = (
    (r"out of memory|OutOfMemory|Cannot allocate memory", _MEMORY),
    (r"No space left on device", "the disk is full: free some space, then run 'dvc repro' again"),
    (r"Some keys are not used by the HfArgumentParser: (.*)", "LLaMA-Factory does not know a key: see stages/train/arguments.py"),
    (r"Cannot find valid samples", "no row fits into train.cutoff_len"),
)


@dataclass(frozen=True)
class Run:
    """Figures of one training process; parameters are counts, 0 where LLaMA-Factory did not print them."""

    seconds: float
    peak_memory_gib: float
    trainable_parameters: int
    total_parameters: int


def launch(config: dict[str, Any], scratch: Path, timeout_s: float) -> Run:
    """Train in a process group of its own, printing a line of progress as the trainer logs one.

    Raises:
        PawlError: the trainer failed, was killed or ran longer than `timeout_s` seconds; the log's end and the likely fix.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    LOG.unlink(missing_ok=True)
    write_json(scratch / "train.yaml", config)  # JSON is YAML; under a .json name LLaMA-Factory 0.9.5 fails to open it
    begun = time.monotonic()
    code = process.run(
        [sys.executable, "-m", "llamafactory.cli", "train", str(scratch / "train.yaml")],
        log=LOG,
        env=environment(scratch, bool(config["use_cpu"])),
        timeout_s=timeout_s,
        watch=_Progress(scratch / "trainer_log.jsonl"),
    )
    seconds = time.monotonic() - begun
    if code:
        raise failure(code, process.tail(LOG, 20_000), timeout_s)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # KiB on Linux
    trainable, total = _parameters(LOG.read_text(encoding="utf-8", errors="replace"))
    return Run(seconds, peak, trainable, total)


def environment(scratch: Path, use_cpu: bool) -> dict[str, str]:
    """What the trainer sees beside our own environment: everything local, and caches that go with the run."""
    env = {
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_CACHE": str(scratch / "datasets"),
    }
    if use_cpu:
        env["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait slow each other down where other work shares the cores
    return env


def failure(code: int, log: str, timeout_s: float) -> PawlError:
    """Say why the trainer stopped: its own last lines and, where the cause is a known one, the fix."""
    what = f"LLaMA-Factory stopped with exit code {code}"
    fix = f"read the log, correct conf/train/, and run 'dvc repro' again (the whole log: {LOG})"
    if code == 124:
        what, fix = f"training ran longer than launcher.timeout_h ({timeout_s / 3600:g} hours)", "raise launcher.timeout_h, or train less"
    elif code == -9:
        what, fix = "the trainer was killed (signal 9): most often the machine ran out of memory", _MEMORY
    for pattern, cause in _CAUSES:
        if re.search(pattern, log):
            fix = cause
            break
    lines = [line[:200] for line in log.splitlines() if line.strip()][-12:]
    return PawlError(what, where="\n         ".join([str(LOG), *lines]), fix=fix)


def _parameters(log: str) -> tuple[int, int]:
    found = re.search(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)", log)
    return (int(found[1].replace(",", "")), int(found[2].replace(",", ""))) if found else (0, 0)


class _Progress:
    """Prints each new line of LLaMA-Factory's trainer_log.jsonl: step, loss, time left."""

    def __init__(self, path: Path) -> None:
        self.path, self.shown = path, 0

    def __call__(self) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines[self.shown :]:
            try:
                entry = json.loads(line)
            except ValueError:
                return  # the trainer is still writing this line
            self.shown += 1
            if "loss" in entry:
                print(
                    f"train: step {entry['current_steps']}/{entry['total_steps']}, loss {entry['loss']:.3f}, {entry['remaining_time']} left"
                )
