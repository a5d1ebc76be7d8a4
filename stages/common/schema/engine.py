"""What serves a model, and how items are asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.llm import no_secret
from stages.common.schema.rules import checks, choice, number


@dataclass
class Engine:
    """What stands behind the OpenAI-compatible endpoint that evaluation talks to."""

    name: str = MISSING
    kind: str = choice("transformers", "vllm", "vllm_cpu", "external")
    dtype: str = choice("auto", "bfloat16", "float16", "float32")
    max_model_len: int = number(low=16, unit="tokens")
    startup_timeout_s: float = number(above=0, unit="seconds")
    extra_args: list[str] = field(default_factory=list)
    base_url: str = ""
    served_model: str = ""
    api_key_env: str = ""


@checks(Engine)
def check_engine(engine: Engine, key: str) -> None:
    no_secret(engine.api_key_env, engine.base_url, key)
    if engine.kind == "external" and not engine.base_url:
        raise PawlError(f"{key}.base_url is empty, but {key}.kind is 'external'", where=f"{key}.base_url", fix=f"set {key}.base_url")


@dataclass
class Evaluate:
    """How items are asked."""

    name: str = MISSING
    concurrency: int = number(low=1, high=4096, unit="requests in flight")
    max_output_tokens: int = number(low=1, unit="tokens")
    temperature: float = number(low=0, high=2)
    top_p: float = number(above=0, high=1)
    seed: int = number(low=0)
    request_timeout_s: float = number(above=0, unit="seconds")
    retries: int = number(low=0, high=20)
