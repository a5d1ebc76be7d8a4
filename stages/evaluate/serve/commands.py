"""The command line of each engine's server, and what this machine offers it. Starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from stages.common.errors import PawlError
from stages.common.files import main_root
from stages.common.models import date_of
from stages.common.placement import Split
from stages.common.schema import Engine
from stages.evaluate.serve import adapter as adapters
from stages.evaluate.serve import batching


@dataclass(frozen=True)
class Command:
    """How a server is started, and the name under which it serves the model."""

    argv: list[str]
    model: str
    env: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.argv[self.argv.index("--port") + 1])


def command(
    engine: Engine,
    model_dir: Path,
    adapter: Path | None,
    *,
    port: int,
    split: Split,
    python: str,
    invariant: bool = False,
) -> Command:
    """The command line and environment that serve a model.

    Args:
        adapter: served beside its base (vLLM only; for transformers it is merged before).
        split: the GPUs of each copy (0: CPU), and the copies.
        python: the interpreter of the engine's environment.
        invariant: an answer does not depend on which other requests are computed beside it (vLLM on
            a GPU, at some cost in speed).
    """
    address = ["--host", "127.0.0.1", "--port", str(port)]
    env = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    if engine.kind == "transformers":
        argv = [python, "-m", "stages.evaluate.serve.batching", *address]
        argv += ["--dtype", engine.dtype, "--device", "cuda" if split.tensor else "cpu"]
        argv += ["--max-model-len", str(engine.max_model_len), "--model", str(model_dir)]
        if not split.tensor:
            # spinning threads made it 7 times slower on a machine with other work
            env["OMP_WAIT_POLICY"] = "PASSIVE"
        return Command(argv + engine.extra_args, str(model_dir), env)
    argv = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir), *address]
    argv += ["--served-model-name", "base", "--dtype", engine.dtype]
    argv += ["--max-model-len", str(engine.max_model_len)]
    # a request says how to sample; what it leaves out would come from the model's
    # generation_config.json (Qwen2.5: a repetition penalty)
    argv += ["--generation-config", "vllm"]
    if (template := model_dir / "chat_template.jinja").is_file():
        # the base's, whatever the adapter's folder holds
        argv += ["--chat-template", str(template)]
    env |= {"VLLM_NO_USAGE_STATS": "1"}
    if day := date_of(model_dir):
        # of gpt-oss, whose prompt vLLM writes without the template
        env["VLLM_SYSTEM_START_DATE"] = day
    if engine.kind == "vllm_cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""  # the fingerprint says that the CPU answers
        # GiB; by default it takes half of the machine
        env["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    else:
        if invariant:
            env["VLLM_BATCH_INVARIANT"] = "1"
        argv += ["--gpu-memory-utilization", f"{engine.gpu_memory_utilization:g}"]
        if split.tensor > 1:
            argv += ["--tensor-parallel-size", str(split.tensor)]
        if split.data > 1:
            argv += ["--data-parallel-size", str(split.data)]
        if engine.nodes > 1:
            # a Ray cluster of the user's: a pipeline over machines, tensors split within each
            argv += ["--pipeline-parallel-size", str(engine.nodes)]
            argv += ["--distributed-executor-backend", "ray"]
    if adapter:
        argv += ["--enable-lora", "--max-lora-rank", str(adapters.max_rank(adapter))]
        argv += ["--lora-modules", f"adapter={adapter.resolve()}"]
    return Command(argv + engine.extra_args, "adapter" if adapter else "base", env)


def serve_python() -> str:
    """The interpreter of vLLM's own environment.

    Raises:
        PawlError: there is none.
    """
    usual = main_root() / ".venv-serve" / "bin" / "python"
    path = Path(os.environ.get("PAWL_SERVE_PYTHON") or usual)
    if not path.is_file():
        fix = "run 'make serve-env', or choose engine=transformers"
        raise PawlError("vLLM's environment is missing", where=str(path), fix=fix)
    return str(path)


def interpreter(kind: str) -> str:
    return serve_python() if kind.startswith("vllm") else sys.executable


def engine_version(kind: str, python: str) -> str:
    """Engine and version, as far as the answers may depend on it.

    Raises:
        PawlError: vLLM is not installed in its environment.
    """
    if kind == "transformers":
        return f"transformers {version('transformers')}, batching {batching.VERSION}"
    code = (
        "from importlib.metadata import distributions as all; "
        "print(*(f'{d.name} {d.version}' for d in all() if d.name[:4] == 'vllm'), sep='\\n')"
    )
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    names = [line.partition(" ")[0].replace("_", "-") for line in found.stdout.splitlines()]
    if found.returncode or not names:
        what = "vLLM is not installed in its environment"
        raise PawlError(what, where=python, fix="run 'make serve-env'")
    if (wanted := kind.replace("_", "-")) not in names:
        raise PawlError(
            f"engine={kind} needs {wanted}, and {names[0]} is installed",
            where=python,
            fix=(
                "run 'make serve-env' on this machine: it takes the GPU build if there is a GPU, "
                "else the CPU build"
            ),
        )
    return found.stdout.strip()
