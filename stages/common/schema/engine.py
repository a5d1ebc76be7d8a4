"""What serves a model, and how items are asked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.rules import checks, choice, number

_NO_SECRET = "put the key into an environment variable or .env, and the variable's name into engine.api_key_env"


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
    if engine.api_key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", engine.api_key_env):
        raise PawlError(f"{key}.api_key_env is not the name of an environment variable", where=f"{key}.api_key_env", fix=_NO_SECRET)
    if re.search(r"[@?]", engine.base_url):
        raise PawlError(f"{key}.base_url carries a user or a query, which may be a secret", where=f"{key}.base_url", fix=_NO_SECRET)
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
