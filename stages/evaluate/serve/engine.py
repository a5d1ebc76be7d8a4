"""Serve a model behind an OpenAI-compatible endpoint on this machine; or reach one that runs elsewhere."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.common import placement, web
from stages.common.errors import PawlError
from stages.common.files import ROOT, main_root, sha256_folder, sha256_text
from stages.common.gpus import Card, alike, share, untried, usable
from stages.common.lease import Lease, Wanted
from stages.common.llm import api_key
from stages.common.models import template_text
from stages.common.schema import Engine
from stages.evaluate.serve import adapter as adapters
from stages.evaluate.serve import server
from stages.evaluate.serve.commands import Command, command, engine_version, interpreter

_INVARIANT_FROM = (8, 0)
"""Compute capability from which vLLM 0.32 and later offer batch invariance (docs.vllm.ai, features/batch_invariance)."""
_WORTH = 0.75
"""Share of a GPU's memory that makes it worth taking at once: a desktop leaves as much."""


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


@contextmanager
def serve(
    engine: Engine,
    model_dir: Path,
    adapter: Path | None,
    log: Path,
    *,
    weights_sha256: str = "",
    meanwhile: Callable[[], None] | None = None,
    beside: Path | None = None,
) -> Iterator[Endpoint]:
    """Serve the model in `model_dir`, with `adapter` where one is given (or, from full fine-tuning, in its place), while the block lasts.

    With engine.keep_alive and inside a run (server.owner_of_this_run), the server stays for the run's next evaluation.

    Args:
        engine: the section of params.yaml.
        log: where the server writes; started afresh.
        weights_sha256: hash of the base's weights, from models/base.json ("": computed).
        meanwhile: called in this thread while the server starts.
        beside: an adapter that the run will ask for too, so that a shared server of vLLM can be started for both.

    Raises:
        PawlError: the server does not start (its last lines are in the error), dies inside the block, or does not list the model; or no
            GPU becomes free.
    """
    meanwhile = functools.cache(meanwhile or (lambda: None))  # called where there is something to wait for, and once
    if engine.kind == "external":
        endpoint = _external(engine, adapter)
        meanwhile()
        yield endpoint
        return
    model_dir = model_dir.resolve()
    weights = weights_sha256 or sha256_folder(model_dir, "*.safetensors")
    engine = copy.copy(engine)  # no dataclass where a stage loads only some of its keys
    engine.dtype = placement.precision(engine.dtype, model_dir)
    gpus = [] if engine.kind == "vllm_cpu" else alike(usable())
    if engine.kind == "vllm" and not gpus:
        raise PawlError(
            "engine=vllm serves on GPUs, and none is visible here", where="engine.kind",
            fix="run Pawl on a machine with a GPU, or choose engine=external, engine=vllm_cpu or engine=transformers",
        )  # fmt: skip
    if gpus and (note := untried()):
        print(f"evaluate: {note}")
    python = interpreter(engine.kind)
    fingerprint = {
        "engine": engine.kind, "engine_version": engine_version(engine.kind, python), "dtype": engine.dtype,
        "device": "cuda" if gpus else "cpu", "max_model_len": engine.max_model_len, "extra_args": list(engine.extra_args),
        "base_sha256": weights, "adapter_sha256": _tuned_sha256(adapter), "chat_template_sha256": sha256_text(chat_template(model_dir)),
    }  # fmt: skip
    split = placement.split(engine, model_dir, gpus)
    invariant = engine.kind == "vllm" and engine.batch_invariant and all(card.capability >= _INVARIANT_FROM for card in gpus)
    if engine.kind == "vllm" and engine.batch_invariant and not invariant:
        print("evaluate: this GPU cannot compute answers independently of their batch: the same weights may answer a few items differently")
    if gpus:  # greedy answers differ between kinds of GPU, between ways to split a model, and with the batch
        fingerprint |= {"gpu": gpus[0].name, "tensor_parallel": split.tensor, "batch_invariant": invariant}
    content: list[Any] = [weights, fingerprint["chat_template_sha256"]]  # a folder keeps its name when another model comes to lie in it
    with ExitStack() as stack:
        if adapter and not adapters.is_adapter(adapter):
            content.append(fingerprint["adapter_sha256"])
            model_dir, adapter = adapter.resolve(), None  # full fine-tuning: a model of its own
        elif adapter and (engine.kind == "transformers" or adapters.needs_merge(adapter)):
            model_dir = stack.enter_context(adapters.merged(model_dir, adapter, weights, log, meanwhile))
            adapter = None
        if beside and (not adapters.is_adapter(beside) or engine.kind == "transformers" or adapters.needs_merge(beside)):
            beside = None
        make = functools.partial(_command, engine, model_dir, adapter or beside, split, python, invariant)
        wanted = _wanted(engine, split, gpus) if gpus else None
        running = stack.enter_context(_running(engine, make, log, meanwhile, wanted=wanted, lora=adapter or beside, content=content))
        name = make(0, Lease()).model
        if adapter is None and name == "adapter":
            name = "base"
        url = f"http://127.0.0.1:{running.port}/v1"
        try:
            yield Endpoint(url, name, "", fingerprint, running.check)
        except server.ServerDiedError:
            raise
        except PawlError:  # such as: no connection. Where the server is gone, that is the cause
            running.check()
            raise


def _tuned_sha256(adapter: Path | None) -> str | None:
    """Hash of what was trained: an adapter's content, or the weights of a whole model."""
    if adapter is None:
        return None
    return adapters.sha256(adapter) if adapters.is_adapter(adapter) else sha256_folder(adapter, "*.safetensors")


def _wanted(engine: Engine, split: placement.Split, gpus: list[Card]) -> Wanted:
    """The GPUs to lease: at least those of one copy. A clone made by DVC takes no more, since others work beside it."""
    one = len(gpus) if engine.nodes > 1 else split.tensor
    alone = main_root() == ROOT.resolve()
    share = min(engine.gpu_memory_utilization, _WORTH) if engine.kind == "vllm" else 0.5
    return Wanted(gpus, one, one * split.data if alone else one, share)


def _command(
    engine: Engine, model_dir: Path, adapter: Path | None, split: placement.Split, python: str, invariant: bool, port: int, lease: Lease
) -> Command:
    """As many copies as the leased GPUs hold, and of their memory no more than is free.

    For an empty lease one copy and the share as it is set: what is the same server otherwise then has an equal command.
    """
    if engine.kind == "vllm" and lease.cards:
        engine = copy.copy(engine)
        engine.gpu_memory_utilization = share(engine.gpu_memory_utilization, lease.cards)
    copies = max(1, len(lease.cards) // split.tensor) if split.tensor and engine.nodes == 1 else 1
    spread = placement.Split(split.tensor, copies)
    started = command(engine, model_dir, adapter, port=port, split=spread, python=python, invariant=invariant)
    return replace(started, env=started.env | lease.environment())


def _running(
    engine: Engine, make: server.Make, log: Path, meanwhile: Callable[[], None], *, wanted: Wanted | None, lora: Path | None,
    content: list[Any],
) -> AbstractContextManager[server.Running]:  # fmt: skip
    """The server that answers: the run's shared one, or one of this evaluation alone."""
    makes_way = wanted is None or server.training_can_be_seen()
    owner = server.owner_of_this_run() if engine.keep_alive and makes_way else None
    if owner is None:
        return server.private(engine.kind, make, log, engine.startup_timeout_s, meanwhile, wanted)
    started = make(0, Lease())
    argv = started.argv
    if engine.kind == "transformers":  # its server loads any model by name, so the one that it began with does not count
        at = argv.index("--model")
        argv = argv[:at] + argv[at + 2 :]
    key = sha256_text(json.dumps([argv, sorted(started.env.items()), adapters.sha256(lora) if lora else "", content]))[:24]
    return server.shared(
        engine.kind, key, make, log, engine.startup_timeout_s, meanwhile, owner=owner, idle_s=engine.keep_alive_idle_s, wanted=wanted
    )


def chat_template(model_dir: Path) -> str:
    """The chat template of a model.

    Raises:
        PawlError: it has none, so that it cannot be asked as a chat model.
    """
    if not (text := template_text(model_dir)):
        fix = "choose an instruct model, or put a chat_template.jinja beside it"
        raise PawlError("the model has no chat template", where=str(model_dir / "tokenizer_config.json"), fix=fix)
    return text


def _external(engine: Engine, adapter: Path | None) -> Endpoint:
    """A server that somebody else runs, once it has said that it serves the model.

    A fine-tuned model has to be served there under the name engine.served_adapter; that it is this one nobody can check from here,
    so the fingerprint holds the adapter's hash beside that name.
    """
    url, key = engine.base_url.rstrip("/"), api_key(engine.api_key_env)
    if adapter and not engine.served_adapter:
        raise PawlError(
            "an external server cannot be given an adapter",
            where="engine.served_adapter",
            fix="serve the fine-tuned model there yourself and name it in engine.served_adapter, or choose engine=transformers",
        )  # fmt: skip
    try:
        answer = web.fetch(
            "GET", f"{url}/models", headers={"Authorization": f"Bearer {key}"}, timeout_s=engine.startup_timeout_s, limit=2**24
        )  # fmt: skip
        if answer.status != 200:
            to = web.redirected(answer, f"{url}/models")
            raise web.Unusable(f"HTTP {answer.status}" + (f": it redirects to {web.shown(to)}" if to else ""))
        names = [model["id"] for model in json.loads(answer.body)["data"]]
    except (web.Unusable, ValueError, KeyError, TypeError, RecursionError) as error:
        cause = str(error) if isinstance(error, web.Unusable) else f"{type(error).__name__}: {error}"
        raise PawlError(
            f"the server does not list its models ({cause if key == 'none' else cause.replace(key, '[key]')})",
            where=f"{url}/models", fix="check engine.base_url and engine.api_key_env",
        ) from None  # fmt: skip
    base = engine.served_model or (names[0] if len(names) == 1 else "")
    model = engine.served_adapter if adapter else base
    if model not in names:
        listed = ", ".join(map(str, names[:10])) or "none"
        raise PawlError(
            f"the server does not serve {model or 'just one model'!r}",
            where=f"{url}/models",
            fix=f"set engine.{'served_adapter' if adapter else 'served_model'} to one of: {listed}",
        )
    unknown = dict.fromkeys(("engine_version", "device", "base_sha256", "chat_template_sha256"))
    known = {"engine": "external", "dtype": engine.dtype, "served_model": base, "adapter_sha256": _tuned_sha256(adapter)}
    if adapter:
        known["adapter_served_as"] = model
    return Endpoint(url, model, engine.api_key_env, known | unknown)
