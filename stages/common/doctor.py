"""What this machine can run, and what is missing for the rest.

python -m stages.common.doctor            prints one line a check; exit 1 where `make run` cannot work

The tests skip for the reasons that `missing` gives and for no other.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from stages.common.errors import run_main
from stages.common.files import main_root

DISK_GIB = 12
"""The environment (7 GB), the base model twice (DVC keeps a copy), and room for a run."""

KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "LEEROOPEDIA_API_KEY")


def gpus() -> list[str]:
    """Name, memory and driver of each NVIDIA GPU; empty where there is none or the driver does not answer."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def missing() -> dict[str, str]:
    """What this machine lacks, and what therefore cannot run here (also the reasons for skipped tests)."""
    lacks = {}
    if not gpus():
        lacks["gpu"] = "no NVIDIA GPU: engine=vllm cannot run here, training uses the CPU"
    if not (main_root() / ".venv-serve/bin/python").exists():
        lacks["serve"] = "no .venv-serve: engines vllm and vllm_cpu cannot run here (make serve-env)"
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        lacks["browser"] = "no chromium and chromedriver on the path: the page is not tested in a browser (apt-get install chromium-driver)"
    if os.geteuid() != 0 or sys.platform != "linux":
        lacks["mount"] = "not root on Linux: the full-disk tests, which mount a small tmpfs, are skipped"
    return lacks


def checks() -> list[tuple[bool, str]]:
    """(whether `make run` can work with it, one line) for each thing that it needs."""
    root = main_root()
    free = shutil.disk_usage(root).free / 2**30
    need = 2 if (root / ".venv/ready").exists() else DISK_GIB
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    version = platform.python_version()
    return [
        (sys.version_info[:2] == (3, 11), f"python {version} (3.11)"),
        (bool(shutil.which("git")), "git on the path"),
        (free >= need, f"{free:.0f} GiB of disk free (at least {need})"),
        (memory >= 7.5, f"{memory:.0f} GiB of memory, {os.cpu_count()} cores (the default needs 8 GB)"),
        (os.access(root, os.W_OK), f"the repository can be written to ({root.name}/)"),
    ]


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m stages.common.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    results = checks()
    for good, line in results:
        print(f"{'ok  ' if good else 'BAD '} {line}")
    for gpu in gpus():
        print(f"ok   GPU: {gpu}")
    for reason in missing().values():
        print(f"none {reason}")
    declared = _dotenv_names(main_root() / ".env")
    for key in KEYS:
        state = "set" if os.environ.get(key) else "in .env" if key in declared else "not set (needed only by what uses it)"
        print(f"key  {key}: {state}")
    return 0 if all(good for good, _ in results) else 1


def _dotenv_names(path: Path) -> set[str]:
    """Names, never values, in a .env file."""
    if not path.is_file():
        return set()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.partition("=")[0].removeprefix("export ").strip() for line in lines if "=" in line and not line.startswith("#")}


if __name__ == "__main__":
    run_main("doctor", main)
