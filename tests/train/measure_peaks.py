"""Measure what a training really takes, for the constants of stages/train/memory.py.

python -m tests.train.measure_peaks MODEL [NAME ...]            JSON lines: name, settings, GiB (largest resident set of the process)

Every training is a fork of one process that has imported LLaMA-Factory, takes two optimizer steps on rows that fill cutoff_len, and ends.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

LOG = Path(tempfile.gettempdir()) / "measure_peaks.log"
CASES: dict[str, dict[str, Any]] = {
    "lora 2x256": {"per_device_train_batch_size": 2, "cutoff_len": 256},
    "lora 8x256": {"per_device_train_batch_size": 8, "cutoff_len": 256},
    "lora 2x1024": {"per_device_train_batch_size": 2, "cutoff_len": 1024},
    "lora fp32 4x256": {"per_device_train_batch_size": 4, "cutoff_len": 256, "precision": "fp32"},
    "lora checkpointing 8x256": {"per_device_train_batch_size": 8, "cutoff_len": 256, "gradient_checkpointing": True},
    "full 2x256": {"per_device_train_batch_size": 2, "cutoff_len": 256, "finetuning_type": "full", "learning_rate": 1e-5},
    "full 8x256": {"per_device_train_batch_size": 8, "cutoff_len": 256, "finetuning_type": "full", "learning_rate": 1e-5},
    "freeze 4x256": {"per_device_train_batch_size": 4, "cutoff_len": 256, "finetuning_type": "freeze", "freeze_trainable_layers": 4},
    "dora 4x256": {"per_device_train_batch_size": 4, "cutoff_len": 256, "use_dora": True},
    "dpo lora 2x256": {"per_device_train_batch_size": 2, "cutoff_len": 256, "stage": "dpo"},
}


def main() -> None:
    from stages.common.config import read_params
    from stages.train.arguments import arguments
    from tests.train.rows import write_data

    model, names = sys.argv[1], sys.argv[2:] or list(CASES)
    import llamafactory.train.tuner  # noqa: F401 - once, for all forks

    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            train = read_params("train").train
            for key, value in {"max_steps": 2, **CASES[name]}.items():
                setattr(train, key, value)
            data = Path(scratch) / train.stage
            words = random.Random(0)
            long = " ".join(words.choice(("seven", "apple", "green", "river", "12", "of")) for _ in range(3000))
            write_data(data, train.stage, rows=32, answer=long)
            config = arguments(train, model=model, data=str(data), output=f"{scratch}/{name}", use_cpu=True)
            print(json.dumps({"name": name, "settings": CASES[name], "gib": round(measured(config), 3)}), flush=True)


def measured(config: dict[str, Any]) -> float:
    child = os.fork()
    if not child:
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from llamafactory.train.tuner import run_exp

        run_exp(config)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(LOG.read_text()[-3000:])
    return usage.ru_maxrss / 2**20


if __name__ == "__main__":
    main()
