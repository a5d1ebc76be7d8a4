"""Serve a model behind an OpenAI-compatible endpoint on this machine, for as long as a block lasts; or reach one that runs elsewhere."""

from __future__ import annotations

import functools
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stages.common import adapter as adapters
from stages.common import process
from stages.common.errors import PawlError
from stages.common.files import main_root, read_json, sha256_folder, sha256_text
from stages.common.llm import api_key
from stages.common.schema import Engine

_POLL_S = 0.25
_TAIL = 2500  # characters of a dead server's log that fit on one screen


@dataclass(frozen=True)
class Endpoint:
    """A server that answers.

    Attributes:
        base_url: ends in /v1.
        model: what requests must ask for.
        api_key_env: the environment variable that holds the key ("": none is wanted).
        fingerprint: what the answers depend on beside the questions; equal fingerprints mean comparable answers.
        check: raises PawlError with the server's last words where it has died.
    """

    base_url: str
    model: str
    api_key_env: str
    fingerprint: dict[str, Any]
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Command:
    """How a server is started, and the name under which it serves the model."""

    argv: list[str]
    model: str
    env: dict[str, str] = field(default_factory=dict)


@contextmanager
def serve(
    engine: Engine,
    model_dir: Path,
    adapter: Path | None,
    log: Path,
    *,
    weights_sha256: str = "",
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[Endpoint]:
    """Serve the model in `model_dir`, with `adapter` where one is given, and stop the server when the block ends.

    Args:
        engine: the section of params.yaml.
        log: where the server writes; started afresh.
        weights_sha256: hash of the base's weights, from models/base.json ("": computed).
        meanwhile: called in this thread while the server starts.

    Raises:
        PawlError: the server does not start (its last lines are in the error), dies inside the block, or does not list the model.
    """
    meanwhile = functools.cache(meanwhile or (lambda: None))  # called where there is something to wait for, and once
    if engine.kind == "external":
        if adapter:
            raise PawlError(
                "an external server cannot be given an adapter", where="engine.kind",
                fix="serve the fine-tuned model there yourself and name it in engine.served_model, or choose engine=transformers",
            )  # fmt: skip
        endpoint = _external(engine)
        meanwhile()
        yield endpoint
        return
    model_dir = model_dir.resolve()
    weights = weights_sha256 or sha256_folder(model_dir, "*.safetensors")
    gpus = 0 if engine.kind == "vllm_cpu" else visible_gpus()
    python = serve_python() if engine.kind.startswith("vllm") else sys.executable
    fingerprint = {
        "engine": engine.kind, "engine_version": _engine_version(engine.kind, python), "dtype": engine.dtype,
        "device": "cuda" if gpus else "cpu", "max_model_len": engine.max_model_len, "extra_args": list(engine.extra_args),
        "base_sha256": weights, "adapter_sha256": adapters.sha256(adapter) if adapter else None,
        "chat_template_sha256": sha256_text(chat_template(model_dir)),
    }  # fmt: skip
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with ExitStack() as stack:
        if adapter and engine.kind == "transformers":
            model_dir = stack.enter_context(adapters.merged(model_dir, adapter, weights, log, meanwhile))
            adapter = None
        started = command(engine, model_dir, adapter, port=free_port(), gpus=shards(model_dir, gpus), python=python)
        server = stack.enter_context(_running(engine, started, log, meanwhile))
        url = f"http://127.0.0.1:{started.argv[started.argv.index('--port') + 1]}/v1"
        yield Endpoint(url, started.model, "", fingerprint, functools.partial(_check, server, log))


def command(engine: Engine, model_dir: Path, adapter: Path | None, *, port: int, gpus: int, python: str) -> Command:
    """The command line and environment that serve a model; starts and looks up nothing.

    Args:
        adapter: served beside its base (vLLM only; for transformers it is merged before).
        gpus: over how many the model is split (0: CPU).
        python: the interpreter of the engine's environment.
    """
    address = ["--host", "127.0.0.1", "--port", str(port)]
    env = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    if engine.kind == "transformers":
        argv = [python, "-m", "transformers.cli.transformers", "serve", str(model_dir), *address, "--continuous-batching"]
        argv += ["--dtype", engine.dtype, "--device", "auto" if gpus else "cpu"]
        # Full blocks of the KV cache are shared between prompts that begin alike, and 5.6 then serves wrong answers: 19 of 42 and
        # 17 of 79 with blocks of 32 tokens. A block as long as the longest conversation is never full; so served, 120 of 120
        # answers and token counts equalled vLLM's.
        argv += ["--cb-block-size", str(engine.max_model_len)]
        if not gpus:
            env["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning threads made it 7 times slower on a machine with other work
        return Command(argv + engine.extra_args, str(model_dir), env)
    argv = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir), *address]
    argv += ["--served-model-name", "base", "--dtype", engine.dtype, "--max-model-len", str(engine.max_model_len)]
    if (template := model_dir / "chat_template.jinja").is_file():
        argv += ["--chat-template", str(template)]  # the base's, whatever the adapter's folder holds
    env |= {"VLLM_NO_USAGE_STATS": "1"}
    if engine.kind == "vllm_cpu":
        env["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; by default it takes half of the machine
    elif gpus > 1:
        argv += ["--tensor-parallel-size", str(gpus)]
    if adapter:
        argv += ["--enable-lora", "--max-lora-rank", str(adapters.max_rank(adapter)), "--lora-modules", f"adapter={adapter.resolve()}"]
    return Command(argv + engine.extra_args, "adapter" if adapter else "base", env)


def shards(model_dir: Path, gpus: int) -> int:
    """Over how many of the visible GPUs the model can be split: vLLM wants the number to divide the attention heads."""
    if gpus < 2:
        return gpus
    heads = read_json(model_dir / "config.json").get("num_attention_heads") or 1
    return max(count for count in range(1, gpus + 1) if heads % count == 0)


def serve_python() -> str:
    """The interpreter of vLLM's own environment.

    Raises:
        PawlError: there is none.
    """
    path = Path(os.environ.get("PAWL_SERVE_PYTHON") or main_root() / ".venv-serve" / "bin" / "python")
    if not path.is_file():
        raise PawlError("vLLM's environment is missing", where=str(path), fix="run 'make serve-env', or choose engine=transformers")
    return str(path)


def visible_gpus() -> int:
    """How many NVIDIA GPUs this process may use: CUDA_VISIBLE_DEVICES where it is set, else what nvidia-smi lists."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        return len(names[: names.index("-1")] if "-1" in names else [name for name in names if name])
    if not (smi := shutil.which("nvidia-smi")):
        return 0
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def free_port() -> int:
    """A port on the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def chat_template(model_dir: Path) -> str:
    """The chat template of a model.

    Raises:
        PawlError: it has none, so that it cannot be asked as a chat model.
    """
    if (path := model_dir / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    path = model_dir / "tokenizer_config.json"
    template = read_json(path).get("chat_template")
    if not template:
        raise PawlError(
            "the model has no chat template", where=str(path), fix="choose an instruct model, or put a chat_template.jinja beside it"
        )
    return template if isinstance(template, str) else json.dumps(template, sort_keys=True)


class _ServerDiedError(PawlError):
    """A server ended by itself; holds its last lines."""


@contextmanager
def _running(engine: Engine, started: Command, log: Path, meanwhile: Callable[[], None]) -> Iterator[subprocess.Popen[bytes]]:
    server = process.start(started.argv, log=log, env=started.env)
    try:
        _await_ready(engine, started, server, log, meanwhile)
        try:
            yield server
        except _ServerDiedError:
            raise
        except PawlError as error:  # such as: no connection. Where the server is gone, that is the cause
            _check(server, log, f"{error.what}\n")
            raise
    finally:
        process.stop(server)


def _await_ready(engine: Engine, started: Command, server: subprocess.Popen[bytes], log: Path, meanwhile: Callable[[], None]) -> None:
    port = started.argv[started.argv.index("--port") + 1]
    begun = told = time.monotonic()
    print(f"starting {engine.kind} (log: {log})")
    meanwhile()
    while True:
        _check(server, log)
        try:
            with _direct().open(f"http://127.0.0.1:{port}/health", timeout=5):
                break
        except (OSError, http.client.HTTPException):  # refused, cut or timed out: not ready yet
            pass
        now = time.monotonic()
        if now - begun > engine.startup_timeout_s:
            lines = process.tail(log, _TAIL)
            fix = "raise engine.startup_timeout_s if it was still loading"
            raise PawlError(
                f"{engine.kind} was not ready after {engine.startup_timeout_s:g} s; its last lines:\n{lines}", where=str(log), fix=fix
            )
        if now - told > 15:
            told = now
            print(f"  still starting after {now - begun:.0f} s")
        time.sleep(_POLL_S)
    print(f"{engine.kind} is ready after {time.monotonic() - begun:.0f} s")


def _check(server: subprocess.Popen[bytes], log: Path, before: str = "") -> None:
    if server.poll() is not None:
        raise _ServerDiedError(
            f"{before}the server ended with code {server.returncode}; its last lines:\n{process.tail(log, _TAIL)}", where=str(log)
        )


def _direct() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy between us and ourselves


def _external(engine: Engine) -> Endpoint:
    """A server that somebody else runs, once it has said that it serves the model."""
    url, key = engine.base_url.rstrip("/"), api_key(engine.api_key_env)
    request = urllib.request.Request(f"{url}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=engine.startup_timeout_s) as answer:
            names = [model["id"] for model in json.load(answer)["data"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        cause = f"{type(error).__name__}: {error}".replace(key, "[key]") if key != "none" else f"{type(error).__name__}: {error}"
        raise PawlError(
            f"the server does not list its models ({cause})", where=f"{url}/models", fix="check engine.base_url and engine.api_key_env"
        ) from None
    model = engine.served_model or (names[0] if len(names) == 1 else "")
    if model not in names:
        listed = ", ".join(map(str, names[:10])) or "none"
        raise PawlError(
            f"the server does not serve {model or 'just one model'!r}",
            where=f"{url}/models",
            fix=f"set engine.served_model to one of: {listed}",
        )
    unknown = dict.fromkeys(("engine_version", "device", "base_sha256", "adapter_sha256", "chat_template_sha256"))
    return Endpoint(url, model, engine.api_key_env, {"engine": "external", "dtype": engine.dtype, "served_model": model, **unknown})


def _engine_version(kind: str, python: str) -> str:
    if kind == "transformers":
        return f"transformers {version('transformers')}"
    code = "from importlib.metadata import distributions as all; print(*(f'{d.name} {d.version}' for d in all() if d.name[:4] == 'vllm'))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    if found.returncode or not found.stdout.strip():
        raise PawlError("vLLM is not installed in its environment", where=python, fix="run 'make serve-env'")
    return found.stdout.strip()
