"""Record the table that benchmarks/policies.py searches: real training runs of LLaMA-Factory on the
tiny random model.

python -m benchmarks.record_runs data/train/train.jsonl
    writes benchmarks/tiny_runs.json, from rows of the default data

Every run is one grid point of four parameters, trained on the first 160 rows and measured by the
loss on the next 80, which none trains on. One process imports LLaMA-Factory once; a grid point that
is in the table already is not trained again.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GRID: dict[str, list[float]] = {
    "train.learning_rate": [3e-4, 1e-3, 3e-3, 9e-3, 2.7e-2],
    "train.lora_rank": [4, 8, 16, 32],
    "train.per_device_train_batch_size": [4, 8],
    "train.warmup_ratio": [0.1, 0.3],
}
TABLE = Path(__file__).with_name("tiny_runs.json")
TRAIN_ROWS, EVAL_ROWS = 160, 80


def data(folder: Path, rows: Path) -> None:
    lines = rows.read_text(encoding="utf-8").splitlines()[: TRAIN_ROWS + EVAL_ROWS]
    form = {
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
            "observation_tag": "observation",
            "function_tag": "function",
        },
    }
    (folder / "train.jsonl").write_text("\n".join(lines[:TRAIN_ROWS]) + "\n")
    (folder / "eval.jsonl").write_text("\n".join(lines[TRAIN_ROWS:]) + "\n")
    (folder / "dataset_info.json").write_text(
        json.dumps({name: {"file_name": f"{name}.jsonl", **form} for name in ("train", "eval")})
    )


def one(point: dict[str, float], folder: Path) -> dict[str, float]:
    """Train and evaluate one grid point; gives the evaluation loss and the last training loss."""
    from llamafactory.train.tuner import run_exp

    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    settings = {key.partition(".")[2]: value for key, value in point.items()}
    arguments: dict[str, Any] = {
        "model_name_or_path": str(folder / "base"),
        "dataset_dir": str(folder),
        "dataset": "train",
        "eval_dataset": "eval",
        "output_dir": str(out),
        "stage": "sft",
        "finetuning_type": "lora",
        "lora_alpha": 32,
        "lora_target": "all",
        "do_train": True,
        "do_eval": True,
        "num_train_epochs": 1.0,
        "per_device_eval_batch_size": 16,
        "lr_scheduler_type": "cosine",
        "seed": 42,
        "cutoff_len": 512,
        "logging_steps": 5,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "overwrite_cache": True,
        "disable_gradient_checkpointing": True,
        **settings,
    }
    run_exp(args=arguments)
    state = json.loads((out / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return {
        "eval_loss": json.loads((out / "eval_results.json").read_text())["eval_loss"],
        "train_loss": losses[-1],
    }


def main() -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        DISABLE_VERSION_CHECK="1",
        TOKENIZERS_PARALLELISM="false",
        DISABLE_TQDM="1",
    )
    from stages.fetch_model import tiny

    runs = json.loads(TABLE.read_text()) if TABLE.exists() else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
        tiny.write(folder / "base", "float32")
        data(folder, Path(sys.argv[1]))
        for values in itertools.product(*GRID.values()):
            point = dict(zip(GRID, values, strict=True))
            if any(run["params"] == point for run in runs):
                continue
            begun = time.monotonic()
            runs.append(
                {
                    "params": point,
                    **one(point, folder),
                    "seconds": round(time.monotonic() - begun, 2),
                }
            )
            TABLE.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
            print(len(runs), runs[-1], flush=True)


if __name__ == "__main__":
    main()
