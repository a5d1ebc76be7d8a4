"""What the stage costs over LLaMA-Factory itself: the same configuration both ways, in pairs, on a tiny random model.

python -m tests.train.overhead [PAIRS [STEPS]]            prints seconds of each run and the medians; exit 1 above 15 s and 5 %
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from stages.common.config import read_params
from stages.train.arguments import arguments
from tests.conftest import copy_repository, run_in
from tests.train.rows import write_data


def main() -> int:
    pairs, steps = (int(sys.argv[place]) if len(sys.argv) > place else default for place, default in ((1, 3), (2, 200)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_repository(Path(scratch) / "copy", "smoke")
        run_in(folder, sys.executable, "-m", "stages.fetch_model")
        write_data(folder / "data/train", "sft", rows=200)
        run_in(folder, sys.executable, "-m", "stages.common.config", f"train.max_steps={steps}", "train.micro_steps=1")
        times: dict[str, list[float]] = {"llamafactory-cli": [], "stage": []}
        for number in range(pairs):
            for name in sorted(times, reverse=bool(number % 2)):  # who is first has colder caches
                begun = time.monotonic()
                if name == "stage":
                    run_in(folder, sys.executable, "-m", "stages.train")
                else:
                    direct(folder, Path(scratch) / f"out-{number}")
                times[name].append(time.monotonic() - begun)
                print(f"{name}: {times[name][-1]:.1f} s", flush=True)
    plain, ours = (statistics.median(times[name]) for name in ("llamafactory-cli", "stage"))
    cost = statistics.median(b - a for a, b in zip(times["llamafactory-cli"], times["stage"], strict=True))
    print(f"medians of {pairs}: llamafactory-cli {plain:.1f} s, stage {ours:.1f} s; median difference {cost:.1f} s ({cost / plain:.0%})")
    return int(cost > max(15, 0.05 * plain))


def direct(folder: Path, output: Path) -> None:
    train = read_params("train", path=folder / "params.yaml").train
    config = arguments(train, model=str(folder / "models/base"), data=str(folder / "data/train"), output=str(output), use_cpu=True)
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
