"""What the stage costs over LLaMA-Factory itself: the same configuration both ways, in pairs, on a
tiny random model.

python -m benchmarks.train [PAIRS [STEPS]]
    writes reports/benchmarks/train.json; exit 1 above 15 s and 5 %

Both train the same steps on the same rows, and the weights must come out equal. What the stage does
beside that is its cost and is counted: preflight, a micro run of one step, a checkpoint every
launcher.checkpoint_steps, the result with its hash, the reports.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from stages.common.config import read_params
from stages.common.files import ROOT, read_json, sha256_file, write_json
from stages.train.arguments import arguments
from tests.conftest import copy_repository, run_in
from tests.train.rows import write_data

TARGET = ROOT / "reports/benchmarks/train.json"
PLAIN, OURS = "llamafactory-cli", "stage"


def main() -> int:
    pairs, steps = (
        int(sys.argv[place]) if len(sys.argv) > place else default
        for place, default in ((1, 3), (2, 200))
    )
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_repository(Path(scratch) / "copy", "smoke")
        run_in(folder, sys.executable, "-m", "stages.fetch_model")
        write_data(folder / "data/train", "sft", rows=200)
        run_in(
            folder,
            sys.executable,
            "-m",
            "stages.common.config",
            f"train.max_steps={steps}",
            "train.micro_steps=1",
            "train.device=cpu",
        )
        for number in range(pairs):
            # who is first has colder caches
            order = (PLAIN, OURS) if number % 2 == 0 else (OURS, PLAIN)
            runs.append(
                {
                    "first": order[0],
                    "load": os.getloadavg()[0],
                    **{name: timed(name, folder, number) for name in order},
                }
            )
            print(json.dumps(runs[-1]), flush=True)
        train, report = (
            read_params("train", path=folder / "params.yaml").train,
            read_json(folder / "reports/train.json"),
        )
        ours, plain = (
            report["adapter_sha256"],
            sha256_file(folder / "direct-0/adapter_model.safetensors"),
        )
        assert ours == plain and report["steps"] == steps, "not the same training"
        found = figures(runs) | {
            "steps": steps,
            "micro_steps": train.micro_steps,
            "cores": os.cpu_count(),
            "equal_weights": True,
            "counted": "preflight, micro run, checkpoints, result and reports of the stage",
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("llamafactory", "torch", "transformers")},
        }
    write_json(TARGET, found)
    print(
        f"medians of {pairs}: {PLAIN} {found['llamafactory_cli_s']:.1f} s, stage"
        f" {found['stage_s']:.1f} s with its micro run of {found['micro_steps']} step; median"
        f" difference {found['difference_s']:.1f} s ({found['difference_share']:.0%}); {TARGET}"
    )
    return int(found["difference_s"] > max(15, 0.05 * found["llamafactory_cli_s"]))


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the runs and of their differences within a pair, seconds."""
    plain = statistics.median(run[PLAIN] for run in runs)
    cost = round(statistics.median(run[OURS] - run[PLAIN] for run in runs), 2)
    return {
        "llamafactory_cli_s": plain,
        "stage_s": statistics.median(run[OURS] for run in runs),
        "difference_s": cost,
        "difference_share": round(cost / plain, 4),
        "pairs": runs,
    }


def timed(name: str, folder: Path, number: int) -> float:
    begun = time.monotonic()
    if name == OURS:
        run_in(folder, sys.executable, "-m", "stages.train")
    else:
        direct(folder, folder / f"direct-{number}")
    return round(time.monotonic() - begun, 2)


def direct(folder: Path, output: Path) -> None:
    train = read_params("train", path=folder / "params.yaml").train
    config = arguments(
        train,
        model=str(folder / "models/base"),
        data=str(folder / "data/train"),
        output=str(output),
        use_cpu=True,
    )
    output.mkdir()
    (output / "train.yaml").write_text(yaml.safe_dump(config))
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_DATASETS_CACHE": str(output / "d"),
    }
    argv = [sys.executable, "-m", "llamafactory.cli", "train", str(output / "train.yaml")]
    subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
