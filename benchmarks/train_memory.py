"""Measure what a training really takes, for the constants of stages/train/memory.py.

python -m benchmarks.train_memory MODEL [NAME ...]
    JSON lines: name, settings, GiB (largest resident set of the process)

Every training takes two optimizer steps on rows that fill cutoff_len, in a worker process as the
stage starts it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stages.common.files import write_json

CASES: dict[str, dict[str, Any]] = {
    "lora 2x256": {"per_device_train_batch_size": 2, "cutoff_len": 256},
    "lora 8x256": {"per_device_train_batch_size": 8, "cutoff_len": 256},
    "lora 2x1024": {"per_device_train_batch_size": 2, "cutoff_len": 1024},
    "lora fp32 4x256": {"per_device_train_batch_size": 4, "cutoff_len": 256, "precision": "fp32"},
    "lora checkpointing 8x256": {
        "per_device_train_batch_size": 8,
        "cutoff_len": 256,
        "gradient_checkpointing": True,
    },
    "full 2x256": {
        "per_device_train_batch_size": 2,
        "cutoff_len": 256,
        "finetuning_type": "full",
        "learning_rate": 1e-5,
    },
    "full 8x256": {
        "per_device_train_batch_size": 8,
        "cutoff_len": 256,
        "finetuning_type": "full",
        "learning_rate": 1e-5,
    },
    "freeze 4x256": {
        "per_device_train_batch_size": 4,
        "cutoff_len": 256,
        "finetuning_type": "freeze",
        "freeze_trainable_layers": 4,
    },
    "dora 4x256": {"per_device_train_batch_size": 4, "cutoff_len": 256, "use_dora": True},
    "dpo lora 2x256": {"per_device_train_batch_size": 2, "cutoff_len": 256, "stage": "dpo"},
}


def main() -> None:
    from stages.common.config import read_params
    from stages.train.arguments import arguments
    from tests.train.rows import write_data

    model, names = sys.argv[1], sys.argv[2:] or list(CASES)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            train = read_params("train").train
            for key, value in {"max_steps": 2, **CASES[name]}.items():
                setattr(train, key, value)
            data = Path(scratch) / train.stage
            words = random.Random(0)
            long = " ".join(
                words.choice(("seven", "apple", "green", "river", "12", "of")) for _ in range(3000)
            )
            write_data(data, train.stage, rows=32, answer=long)
            config = arguments(
                train, model=model, data=str(data), output=f"{scratch}/{name}", use_cpu=True
            )
            print(
                json.dumps(
                    {
                        "name": name,
                        "settings": CASES[name],
                        "gib": round(measured(config, Path(scratch) / f"{name}.job"), 3),
                    }
                ),
                flush=True,
            )


def measured(config: dict[str, Any], folder: Path) -> float:
    """A process of its own for each: a fork's resident set lacks the libraries that it has not
    touched since.
    """
    folder.mkdir()
    write_json(
        folder / "job.json", {"preflight": None, "runs": [{"name": "run", "config": config}]}
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "stages.train.worker", str(folder / "job.json")],
        stdout=-3,
        stderr=-3,
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit((folder / "failure-0.json").read_text()[-3000:])
    return usage.ru_maxrss / 2**20


if __name__ == "__main__":
    main()
