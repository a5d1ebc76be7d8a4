"""Fine-tune the base model with LLaMA-Factory: data/train and models/base to models/adapter.

python -m stages.train            what `dvc repro train` runs; declared in params.yaml under `train` (conf/train/)

Writes models/adapter (the adapter alone, whole or not at all), reports/train.json and reports/loss.csv.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from stages.common.config import load_params
from stages.common.errors import PawlError, run_main
from stages.common.files import fresh_folder, read_json, sha256_file, write_json, write_text
from stages.common.models import base_model
from stages.common.process import stage_lock
from stages.train.arguments import DATASET, arguments
from stages.train.launch import Run, launch
from stages.train.losses import losses_csv, summarize, trainer_state

DATA = Path("data/train")
ADAPTER = Path("models/adapter")
SCRATCH = Path(".pawl/train")


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m stages.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with stage_lock("train"), load_params("train", "launcher.kind", untracked=["launcher.timeout_h"]) as params:
        base, model_path = base_model()
        rows = count_rows(DATA)
        config = arguments(
            params.train, model=str(model_path), data=str(DATA), output=str(SCRATCH), use_cpu=not has_gpu(params.train.device)
        )
        print(f"train: {base['name']}, {rows} rows, {params.train.finetuning_type} on {'CPU' if config['use_cpu'] else 'GPU'}")
        run = launch(config, SCRATCH, timeout_s=params.launcher.timeout_h * 3600)
        state = trainer_state(SCRATCH)
        report = summarize(state)
        keep_adapter(SCRATCH, ADAPTER)
        write_text("reports/loss.csv", losses_csv(state))
        write_json("reports/train.json", report | figures(run, state, rows))
        print(f"train: loss {report['initial_loss']:.3f} to {report['final_loss']:.3f} in {report['steps']} steps, {run.seconds:.0f} s")
        shutil.rmtree(SCRATCH, ignore_errors=True)


def count_rows(folder: Path) -> int:
    """Rows of the training file; an empty or missing one is refused here, not by a traceback a minute later."""
    file = folder / str(read_json(folder / "dataset_info.json")[DATASET]["file_name"])
    try:
        with open(file, encoding="utf-8") as lines:
            rows = sum(1 for line in lines if line.strip())
    except FileNotFoundError:
        rows = 0
    if not rows:
        raise PawlError("there are no training rows", where=str(file), fix="see reports/generate_data.json for what the filters removed")
    return rows


def has_gpu(device: str) -> bool:
    import torch

    return device == "auto" and torch.cuda.is_available()


def keep_adapter(scratch: Path, target: Path) -> None:
    """Keep what serving needs, in a form that depends on nothing but the training: no times, no host, no order of a Python set."""
    with fresh_folder(target) as folder:
        shutil.copyfile(scratch / "adapter_model.safetensors", folder / "adapter_model.safetensors")
        config = json.loads((scratch / "adapter_config.json").read_text(encoding="utf-8"))
        if isinstance(config.get("target_modules"), list):
            config["target_modules"].sort()
        write_json(folder / "adapter_config.json", config)


def figures(run: Run, state: dict[str, Any], rows: int) -> dict[str, Any]:
    tokens = state.get("num_input_tokens_seen") or 0
    return {
        "rows": rows,
        "tokens": tokens,
        "trainable_parameters": run.trainable_parameters,
        "total_parameters": run.total_parameters,
        "adapter_sha256": sha256_file(ADAPTER / "adapter_model.safetensors"),
        "runtime_s": round(run.seconds, 1),
        "tokens_per_s": round(tokens / state["train_runtime"], 1),
        "peak_memory_gib": round(run.peak_memory_gib, 2),
    }


if __name__ == "__main__":
    run_main("train", main)
