"""Serve a model behind an OpenAI-compatible endpoint on this machine, or reach one elsewhere."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

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
"""Compute capability from which vLLM 0.32 and later offer batch invariance.

Source: docs.vllm.ai, features/batch_invariance.
"""
_WORTH = 0.75
"""Share of a GPU's memory that makes it worth taking at once: a desktop leaves as much."""


@dataclass(frozen=True)
class Endpoint:
    """A server that answers.

    Attributes:
        base_url: ends in /v1.
        model: what requests must ask for.
        api_key_env: the environment variable that holds the key ("": none is wanted).
        fingerprint: what the answers depend on beside the questions; equal fingerprints mean
            comparable answers.
        check: raises PawlError with the server's last words if it has died.
    """

    base_url: str
    model: str
    api_key_env: str
    fingerprint: dict[str, object]
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
) -> Iterator[Endpoint]:
    """Serve a model while the block lasts.

    Args:
        engine: the section of params.yaml.
        model_dir: the base.
        adapter: what training made of it: an adapter, or, from full fine-tuning, a whole model.
        log: where the server writes; started afresh.
        weights_sha256: hash of the base's weights, from models/base.json ("": computed).
        meanwhile: called once, in this thread, while the server starts.

    Raises:
        PawlError: the server does not start (its last lines are in the error), dies inside the
            block, or does not list the model; or no GPU becomes free.
    """
    meanwhile = functools.cache(meanwhile or (lambda: None))  # the first that waits calls it
    if engine.kind == "external":
        endpoint = _external(engine, adapter)
        meanwhile()
        yield endpoint
        return
    model_dir = model_dir.resolve()
    weights = weights_sha256 or sha256_folder(model_dir, "*.safetensors")
    engine = copy.copy(engine)  # no dataclass if a stage loads only some of its keys
    engine.dtype = placement.precision(engine.dtype, model_dir)
    gpus = [] if engine.kind == "vllm_cpu" else alike(usable())
    if engine.kind == "vllm" and not gpus:
        raise PawlError(
            "engine=vllm serves on GPUs, and none is visible here",
            where="engine.kind",
            fix=(
                "run Pawl on a machine with a GPU, or choose engine=external, "
                "engine=vllm_cpu or engine=transformers"
            ),
        )
    if gpus and (note := untried()):
        print(f"evaluate: {note}")
    python = interpreter(engine.kind)
    split = placement.split(engine, model_dir, gpus)
    invariant = _invariant(engine, gpus)
    fingerprint: dict[str, object] = {
        "engine": engine.kind,
        "engine_version": engine_version(engine.kind, python),
        "dtype": engine.dtype,
        "device": "cuda" if gpus else "cpu",
        "max_model_len": engine.max_model_len,
        "extra_args": list(engine.extra_args),
        "base_sha256": weights,
        "adapter_sha256": _tuned_sha256(adapter),
        "chat_template_sha256": sha256_text(chat_template(model_dir)),
    }
    if gpus:
        # greedy answers differ between kinds of GPU, ways to split a model, and with the batch
        fingerprint["gpu"] = gpus[0].name
        fingerprint["tensor_parallel"] = split.tensor
        fingerprint["batch_invariant"] = invariant
    with ExitStack() as stack:
        if adapter and not adapters.is_adapter(adapter):
            model_dir, adapter = adapter.resolve(), None  # full fine-tuning: a model of its own
        elif adapter and (engine.kind == "transformers" or adapters.needs_merge(adapter)):
            merged = adapters.merged(model_dir, adapter, weights, log, meanwhile)
            model_dir, adapter = stack.enter_context(merged), None
        make = functools.partial(_command, engine, model_dir, adapter, split, python, invariant)
        wanted = _wanted(engine, split, gpus) if gpus else None
        started = server.started(
            engine.kind, make, log, engine.startup_timeout_s, meanwhile, wanted
        )
        running = stack.enter_context(started)
        url = f"http://127.0.0.1:{running.port}/v1"
        try:
            yield Endpoint(url, running.model, "", fingerprint, running.check)
        except server.ServerDiedError:
            raise
        except PawlError:  # such as: no connection. If the server is gone, that is the cause
            running.check()
            raise


def _invariant(engine: Engine, gpus: list[Card]) -> bool:
    """Whether answers will not depend on what else is in their batch. Says so if they will."""
    if engine.kind != "vllm" or not engine.batch_invariant:
        return False
    if all(card.capability >= _INVARIANT_FROM for card in gpus):
        return True
    print(
        "evaluate: this GPU cannot compute answers independently of their batch: "
        "the same weights may answer a few items differently"
    )
    return False


def _tuned_sha256(adapter: Path | None) -> str | None:
    """Hash of what was trained: an adapter's content, or the weights of a whole model."""
    if adapter is None:
        return None
    if adapters.is_adapter(adapter):
        return adapters.sha256(adapter)
    return sha256_folder(adapter, "*.safetensors")


def _wanted(engine: Engine, split: placement.Split, gpus: list[Card]) -> Wanted:
    """The GPUs to lease: at least those of one copy.

    A clone made by DVC takes no more, since others work beside it.
    """
    one = len(gpus) if engine.nodes > 1 else split.tensor
    alone = main_root() == ROOT.resolve()
    share = min(engine.gpu_memory_utilization, _WORTH) if engine.kind == "vllm" else 0.5
    return Wanted(gpus, one, one * split.data if alone else one, share)


def _command(
    engine: Engine,
    model_dir: Path,
    adapter: Path | None,
    split: placement.Split,
    python: str,
    invariant: bool,
    port: int,
    lease: Lease,
) -> Command:
    """As many copies as the leased GPUs hold, and of their memory no more than is free."""
    if engine.kind == "vllm" and lease.cards:
        engine = copy.copy(engine)
        engine.gpu_memory_utilization = share(engine.gpu_memory_utilization, lease.cards)
    copies = max(1, len(lease.cards) // split.tensor) if split.tensor and engine.nodes == 1 else 1
    spread = placement.Split(split.tensor, copies)
    started = command(
        engine, model_dir, adapter, port=port, split=spread, python=python, invariant=invariant
    )
    return replace(started, env=started.env | lease.environment())


def chat_template(model_dir: Path) -> str:
    """The chat template of a model.

    Raises:
        PawlError: it has none, so that it cannot be asked as a chat model.
    """
    if not (text := template_text(model_dir)):
        fix = "choose an instruct model, or put a chat_template.jinja beside it"
        where = str(model_dir / "tokenizer_config.json")
        raise PawlError("the model has no chat template", where=where, fix=fix)
    return text


def _external(engine: Engine, adapter: Path | None) -> Endpoint:
    """A server that somebody else runs, once it has said that it serves the model.

    A fine-tuned model has to be served there under the name engine.served_adapter; that it is this
    one nobody can check from here, so the fingerprint holds the adapter's hash beside that name.
    """
    url, key = engine.base_url.rstrip("/"), api_key(engine.api_key_env)
    if adapter and not engine.served_adapter:
        raise PawlError(
            "an external server cannot be given an adapter",
            where="engine.served_adapter",
            fix=(
                "serve the fine-tuned model there yourself and name it in engine.served_adapter, "
                "or choose engine=transformers"
            ),
        )
    names = _models(f"{url}/models", key, engine.startup_timeout_s)
    base = engine.served_model
    if not base and len(names) == 1:
        base = names[0]
    model = engine.served_adapter if adapter else base
    if model not in names:
        listed = ", ".join(map(str, names[:10])) or "none"
        raise PawlError(
            f"the server does not serve {model or 'just one model'!r}",
            where=f"{url}/models",
            fix=f"set engine.{'served_adapter' if adapter else 'served_model'} to one of: {listed}",
        )
    unknown = dict.fromkeys(("engine_version", "device", "base_sha256", "chat_template_sha256"))
    known: dict[str, object] = {
        "engine": "external",
        "dtype": engine.dtype,
        "served_model": base,
        "adapter_sha256": _tuned_sha256(adapter),
    }
    if adapter:
        known["adapter_served_as"] = model
    return Endpoint(url, model, engine.api_key_env, known | unknown)


def _models(url: str, key: str, timeout_s: float) -> list[str]:
    """The names of the models that a server lists."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = web.fetch("GET", url, headers=headers, timeout_s=timeout_s, limit=2**24)
        if answer.status != 200:
            to = web.redirected(answer, url)
            elsewhere = f": it redirects to {web.shown(to)}" if to else ""
            raise web.Unusable(f"HTTP {answer.status}{elsewhere}")
        return [model["id"] for model in json.loads(answer.body)["data"]]
    except web.Unusable as error:
        cause = str(error)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"{type(error).__name__}: {error}"
    if key != "none":
        cause = cause.replace(key, "[key]")
    raise PawlError(
        f"the server does not list its models ({cause})",
        where=url,
        fix="check engine.base_url and engine.api_key_env",
    )
