"""A copy of the repository in which the checks run the real commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.common.files import write_json, write_jsonl
from stages.common.gpus import Card
from stages.common.reports.evaluation import Row, read_rows
from tests.train.rows import INFO

PYTHON = sys.executable
TRAIN = (PYTHON, "-m", "stages.train")
EVALUATE = (PYTHON, "-m", "stages.evaluate")
ROWS = 1100
"""Made-up training rows, each nearly as long as train.cutoff_len allows."""
_LIMIT_S = 300.0
_SHOWN = 300

_COMMON = ["data.max_rows=64", "benchmark.test_items=4", "train.logging_steps=1"]
_ON_GPU = [
    *_COMMON,
    "engine=vllm",
    "benchmark.val_items=50",
    "train.max_steps=8",
    "train.cutoff_len=1024",
]
# the same on a CPU, in seconds: what is measured there says nothing about a GPU
_REHEARSAL = [
    *_COMMON,
    "experiment=smoke",
    "train.device=cpu",
    "benchmark.val_items=8",
    "train.max_steps=4",
    "train.cutoff_len=512",
    "train.learning_rate=0.05",
]


class NotRun(Exception):
    """Why a check was not made."""


@dataclass
class Place:
    """Where the checks run.

    Attributes:
        folder: the copy of the repository.
        cards: the GPUs that can compute; empty in a rehearsal.
        losses: first losses of the trainings that must agree, by launcher.
    """

    folder: Path
    cards: Sequence[Card] = ()
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def rehearsal(self) -> bool:
        return not self.cards

    def compose(self, *overrides: str) -> None:
        settings = _REHEARSAL if self.rehearsal else _ON_GPU
        self.run(PYTHON, "-m", "stages.common.config", *settings, *overrides)

    def run(
        self,
        *argv: str,
        ok: bool = True,
        all_gpus: bool = False,
        limit_s: float = _LIMIT_S,
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        Args:
            ok: a failure is one of the check.
            all_gpus: show it all GPUs, instead of the first alone.
        """
        process = self.start(*argv, all_gpus=all_gpus, **env)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill(process)
            raise AssertionError(f"{_name(argv)} took longer than {limit_s:.0f} s") from None
        except BaseException:
            kill(process)
            raise
        with open(self.folder.parent / "commands.log", "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(argv)}\n{out}{err}exit code {process.returncode}\n\n")
        assert not ok or process.returncode == 0, f"{_name(argv)}: {said(err or out)}"
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def start(
        self, *argv: str, all_gpus: bool = False, output: int = subprocess.PIPE, **env: str
    ) -> subprocess.Popen[str]:
        programs = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
        shown = (
            {} if all_gpus or self.rehearsal else {"CUDA_VISIBLE_DEVICES": str(self.cards[0].index)}
        )
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PATH": programs, **shown, **env},
        )

    def report(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / "reports" / name).read_text(encoding="utf-8")))

    def rows(self, name: str) -> list[Row]:
        return read_rows(self.folder / "reports" / name, Row)

    def base_and_long_rows(self) -> None:
        """The base model, and rows of nearly train.cutoff_len tokens in place of those that DVC
        made.
        """
        if not (self.folder / "models/base.json").is_file():
            self.compose()
            self.run("dvc", "repro", "-q", "fetch_model")
        words = 140 if self.rehearsal else 960  # the tiny model reads bytes
        folder = self.folder / "data/train"
        made = ({"messages": _row(number, words)} for number in range(ROWS))
        write_jsonl(folder / "train.jsonl", made)
        write_json(
            folder / "dataset_info.json", {"train": INFO["sft"] | {"file_name": "train.jsonl"}}
        )


def _row(number: int, words: int) -> list[dict[str, str]]:
    said = " ".join("go" if (number + place) % 7 else "no" for place in range(words))
    return [{"role": "user", "content": f"Row {number}."}, {"role": "assistant", "content": said}]


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9 of a command and its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait(true: Any, limit_s: float, what: str) -> None:
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, f"{what} within {limit_s:.0f} s"
        time.sleep(0.05)


def said(text: str) -> str:
    """The error of a command on one line: ours if it has one, else its last words."""
    begin = text.rfind(": error: ")
    shown = text[text.rfind("\n", 0, begin) + 1 :] if begin >= 0 else text[-_SHOWN:]
    return " ".join(shown.split())[:_SHOWN]


def _name(argv: Sequence[str]) -> str:
    return " ".join("python" if part == PYTHON else part for part in argv)[:100]
