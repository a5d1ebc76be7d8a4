"""What Pawl would run on the machines of tests/gpu_machines.py, and what it says there, as files
that a person can read.

python -m tests.golden_gpu
    writes tests/golden/gpu/MACHINE.json anew (a minute; look at the differences before you
    commit them)
python -m tests.golden_gpu --checks
    prints the part that needs LLaMA-Factory

The base has the shape of Qwen2.5-7B and no weights.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stages.common import doctor, lease
from stages.common.config import compose, read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, to_json, write_json
from stages.common.lease import Wanted
from stages.common.schema import Config
from stages.evaluate.serve import engine, server
from stages.evaluate.serve.commands import Command
from stages.train import launch
from tests import gpu_machines
from tests.train.rows import write_data

FOLDER = ROOT / "tests" / "golden" / "gpu"
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "dtype": "bfloat16",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
GIB = 14.2
CHECKED = {"local": [], "torchrun": ["launcher=torchrun"]}


def file(machine: str) -> Path:
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', machine.lower())}.json"


def base(folder: Path) -> Path:
    """A model of 7 billion parameters: its configuration, and weights that take no disk."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", SHAPE)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with open(folder / "model.safetensors", "wb") as weights:
        weights.truncate(int(GIB * 2**30))
    return folder


@contextmanager
def machine(name: str, folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """This process on one of the machines. `folder`: its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        gpu_machines.install(folder, patch)(*gpu_machines.MACHINES[name])
        patch.setattr(lease, "_SETTLE_S", -1.0)
        yield patch


def params(folder: Path, *overrides: str) -> Config:
    path = folder / "params.yaml"
    path.write_text(compose(overrides), encoding="utf-8")
    return read_params(
        "train", "launcher", "engine", "evaluate", "data", "model", "judge", path=path
    )


def commands(name: str, folder: Path) -> dict[str, Any]:
    """What training and serving would start on a machine, and what the doctor says of it."""
    with machine(name, folder / "bin") as patch:
        model = base(folder / "base")
        train = {kind: _train(folder, model, f"launcher={kind}") for kind in ("local", "torchrun")}
        serve = {kind: _serve(folder, model, kind, patch) for kind in ("vllm", "vllm_cpu")}
        found = {"train": train, "serve": serve, "doctor": _doctor(folder, patch)}
    for path, word in (
        (sys.executable, "python"),
        (model, "models/base"),
        (folder, "FOLDER"),
        (ROOT, "REPOSITORY"),
    ):
        found = json.loads(json.dumps(found).replace(str(path), word))
    return found


def _train(folder: Path, model: Path, override: str) -> dict[str, Any]:
    known = params(folder, override)
    try:
        use_cpu = not launch.devices(known.train, known.launcher)
        with lease.leased(launch.wanted(known.launcher, use_cpu), "train") as gpus:
            env = launch.environment(folder, use_cpu, known.train.parallel) | gpus.environment()
    except PawlError as error:
        return refused(error)
    config = {"dataset_dir": "data/train", "output_dir": str(folder), "use_cpu": use_cpu}
    asked = {"model": str(model), "template": {}, "think_close": ""}
    argvs = list(
        launch.plan(config, known.train, known.launcher, folder, known.engine.kind, asked, False)
    )
    return {
        "argv": argvs[-1],
        "env": {key: value for key, value in env.items() if key != "PYTHONPATH"},
    }


def _serve(folder: Path, model: Path, kind: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: list[Command] = []

    @contextmanager
    def started(name: str, make: server.Make, *rest: Any) -> Iterator[server.Running]:
        wanted: Wanted | None = rest[-1]
        with lease.leased(wanted or Wanted(), "vllm server") as gpus:
            seen.append(make(8000, gpus))
            yield server.Running(8000, make(8000, gpus).model, lambda: None)

    patch.setattr(engine, "interpreter", lambda kind: sys.executable)
    patch.setattr(engine, "engine_version", lambda kind, python: "the pinned one")
    patch.setattr(server, "started", started)
    try:
        with engine.serve(
            params(folder, f"engine={kind}").engine, model, None, folder / "log", weights_sha256="0"
        ) as endpoint:
            told = {
                key: endpoint.fingerprint[key]
                for key in ("gpu", "tensor_parallel", "batch_invariant")
                if key in endpoint.fingerprint
            }
    except PawlError as error:
        return refused(error)
    return {"argv": seen[0].argv, "env": seen[0].env, "fingerprint": told}


def _doctor(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """Its lines about GPUs and engines, with vLLM's GPU build installed."""
    (folder / ".venv-serve/bin").mkdir(parents=True)
    (folder / ".venv-serve/bin/python").touch()
    (folder / ".venv-serve/lib/python3.11/site-packages/vllm-0.33.0.dist-info").mkdir(parents=True)
    patch.setattr(doctor, "main_root", lambda: folder)
    patch.setattr(doctor, "no_compiler", lambda python: "")
    patch.setattr(sys, "argv", ["doctor"])
    with contextlib.redirect_stdout(io.StringIO()) as said:
        doctor.main()
    return [line for line in said.getvalue().splitlines() if re.search(r"GPU|vllm|make run", line)]


def refused(error: PawlError) -> dict[str, Any]:
    return {"refused": error.what, "where": error.where, "fix": error.fix}


# --- what --check says


def checks(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each machine, what `python -m stages.train --check` says there; each in a fork, since a
    process sees one machine.
    """
    # once for all forks; LLaMA-Factory itself looks at the machine when imported
    for name in ("datasets", "peft", "transformers.trainer"):
        importlib.import_module(name)

    from stages.fetch_model import tiny

    tiny.write(folder / "base", "bfloat16")
    (folder / "base/model.safetensors").unlink()
    base_config = {**json.loads((folder / "base/config.json").read_text()), **SHAPE}
    write_json(folder / "base/config.json", base_config)
    write_data(folder / "rows", "sft", rows=640, answer="of a usual length, " * 8)
    return {
        name: {kind: _in_fork(folder, name, overrides) for kind, overrides in CHECKED.items()}
        for name in gpu_machines.MACHINES
    }


def _in_fork(folder: Path, name: str, overrides: list[str]) -> Any:
    child = os.fork()
    if child == 0:
        try:
            with machine(name, folder / "bin") as patch:
                write_json(folder / "said.json", _check(folder, overrides, patch))
        except BaseException:  # noqa: BLE001 - the parent cannot see it
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = read_json(folder / "said.json")
    (folder / "said.json").unlink()
    return said


def _check(folder: Path, overrides: list[str], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from stages.train import __main__ as stage
    from stages.train import preflight, room
    from tests import fake_cuda

    fake_cuda.install()
    # enough of everything else: memory and disk of the machine that runs this
    patch.setattr(room, "gpu_gib", functools.partial(room.gpu_gib, patience_s=0.0))
    patch.setattr(room, "machine_gib", lambda: 64.0)
    patch.setattr(room, "own_gib", lambda: 0.0)
    patch.setattr(preflight, "check_disk", lambda *given: 0.0)
    patch.setattr(
        stage, "base_model", lambda: ({"name": "a model of 7 billion parameters"}, folder / "base")
    )
    patch.setattr(stage, "DATA", folder / "rows")
    try:
        found = stage.check([*overrides, "model=tiny_random"])
    except PawlError as error:
        return refused(error)
    memory = found["memory"]
    return {
        "estimate_gib": round(memory["estimate_gib"]["total"]),
        "available_gib": round(memory["available_gib"]),
        "per": memory["per"],
        "processes": memory["processes"],
        "bf16": found["config"].get("bf16"),
        "warnings": [
            warning for warning in found["warnings"] if "base that is here" not in warning
        ],
    }


def all_checks() -> dict[str, dict[str, Any]]:
    """`checks`, in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden_gpu", "--checks"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-4000:]
    return dict(json.loads(done.stdout))


def main() -> None:
    if "--checks" in sys.argv:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            found = checks(Path(folder))
        print(to_json(found))
        return
    said = all_checks()
    for name in gpu_machines.MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            write_json(file(name), commands(name, Path(folder)) | {"check": said[name]})
        print(file(name).relative_to(ROOT))


if __name__ == "__main__":
    main()
