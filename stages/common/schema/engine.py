"""What serves a model, and how items are asked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from stages.common.errors import PawlError
from stages.common.schema.llm import LLM, no_secret
from stages.common.schema.rules import aside, checks, choice, number


@dataclass
class Engine:
    """What stands behind the OpenAI-compatible endpoint that evaluation talks to.

    Attributes:
        gpu_memory_utilization: share of each GPU that vLLM takes.
        tensor_parallel: GPUs that share one copy of the model: a number, or `auto`, as few as it
            fits on; the other GPUs hold copies.
        batch_invariant: vLLM on a GPU answers a request alike whatever is computed beside it, where
            the GPU can (capability 8.0).
        nodes: machines of a running Ray cluster over which vLLM splits the model, each with as many
            GPUs as this one.
        served_adapter: the name under which an external server serves the fine-tuned model.
        judge: the language model that scores benchmarks whose evaluator asks one.
    """

    name: str = aside()
    kind: str = choice("transformers", "vllm", "vllm_cpu", "external")
    dtype: str = choice("auto", "bfloat16", "float16", "float32")
    max_model_len: int = number(low=16, unit="tokens")
    startup_timeout_s: float = number(above=0, unit="seconds", shapes=False)
    gpu_memory_utilization: float = number(0.9, above=0, high=1, shapes=False)
    tensor_parallel: str = "auto"
    batch_invariant: bool = True
    nodes: int = number(1, low=1, unit="machines")
    extra_args: list[str] = field(default_factory=list)
    base_url: str = ""
    served_model: str = ""
    served_adapter: str = ""
    api_key_env: str = aside("")
    judge: LLM = field(default_factory=LLM)


@checks(Engine)
def check_engine(engine: Engine, key: str) -> None:
    no_secret(engine.api_key_env, engine.base_url, key)
    if any(re.match(r"--?[\w-]*(key|token|secret|password)\b", part) for part in engine.extra_args):
        raise PawlError(
            f"{key}.extra_args carries a key, which params.yaml would make public",
            where=f"{key}.extra_args",
            fix=(
                "leave it out: the server listens on this machine alone, and lives as long as the"
                " evaluation"
            ),
        )
    if engine.tensor_parallel != "auto" and not re.fullmatch(
        r"[1-9]\d{0,2}", engine.tensor_parallel
    ):
        raise PawlError(
            f"{key}.tensor_parallel is {engine.tensor_parallel!r}",
            where=f"{key}.tensor_parallel",
            fix="set it to auto, or to a number of GPUs",
        )
    if engine.kind == "external" and not engine.base_url:
        raise PawlError(
            f"{key}.base_url is empty, but {key}.kind is 'external'",
            where=f"{key}.base_url",
            fix=f"set {key}.base_url",
        )


@dataclass
class Evaluate:
    """How items are asked.

    Attributes:
        concurrency: requests in flight (0: as many as suit the engine).
        top_k: only the likeliest k tokens are drawn from (0: all).
        num_runs: how often each item is asked; with sampling each time with another seed.
        limit: only the first items of each benchmark (0: all); what is scored so is comparable with
            nothing else.
        think_open, think_close: tags around what the model thinks aloud, which is not scored ("":
            it does not).
        think_begun: its chat template ends with think_open, so that replies do not begin with it.
        template: arguments of the chat template, such as enable_thinking.
    """

    name: str = aside()
    concurrency: int = number(low=0, high=4096, unit="requests in flight", shapes=False)
    max_output_tokens: int = number(low=1, unit="tokens")
    temperature: float = number(low=0, high=2)
    top_p: float = number(above=0, high=1)
    seed: int = number(low=0)
    top_k: int = number(0, low=0)
    num_runs: int = number(1, low=1, high=1024)
    limit: int = number(0, low=0, unit="items a benchmark")
    think_open: str = ""
    think_close: str = ""
    think_begun: bool = False
    template: dict[str, Any] = field(default_factory=dict)
    request_timeout_s: float = number(above=0, unit="seconds", shapes=False)
    retries: int = number(low=0, high=20, shapes=False)


@checks(Evaluate)
def check_evaluate(evaluate: Evaluate, key: str) -> None:
    if bool(evaluate.think_open) != bool(evaluate.think_close):
        raise PawlError(
            f"{key} has one of think_open and think_close",
            where=f"{key}.think_open",
            fix="set both or none",
        )
