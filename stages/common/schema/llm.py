"""A language model that helps: the teacher of the data, the judge's words, the agent's
proposals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.common.errors import PawlError
from stages.common.schema.rules import aside, checks, number


@dataclass
class LLM:
    """An OpenAI-compatible endpoint, and how it is asked: all that stages/common/llm.py has to know
    of a server.

    Attributes:
        base_url: up to and with /v1; empty where no language model is configured.
        api_key_env: the name of the environment variable that holds the key; empty where none is
            wanted.
        price_in, price_out: for the account and the budget.
    """

    base_url: str = ""
    model: str = ""
    api_key_env: str = aside("")
    temperature: float = number(0.0, low=0, high=2)
    max_output_tokens: int = number(2048, low=1, unit="tokens")
    concurrency: int = number(16, low=1, high=4096, unit="requests in flight", shapes=False)
    timeout_s: float = number(120.0, above=0, unit="seconds", shapes=False)
    retries: int = number(4, low=0, high=20, shapes=False)
    price_in: float = number(0.0, low=0, unit="money per million tokens")
    price_out: float = number(0.0, low=0, unit="money per million tokens")

    def cost(self, prompt_tokens: int, output_tokens: int) -> float:
        return (prompt_tokens * self.price_in + output_tokens * self.price_out) / 1e6


@checks(LLM)
def check_llm(llm: LLM, key: str) -> None:
    if llm.base_url and not llm.model:
        raise PawlError(
            f"{key}.model is empty, but {key}.base_url is set",
            where=f"{key}.model",
            fix=f"set {key}.model",
        )
    no_secret(llm.api_key_env, llm.base_url, key)


def no_secret(api_key_env: str, base_url: str, key: str) -> None:
    """Refuse what may be a secret where params.yaml, which is committed, would carry it."""
    fix = (
        "put the key into an environment variable or .env, and the variable's name into"
        f" {key}.api_key_env"
    )
    if api_key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", api_key_env):
        raise PawlError(
            f"{key}.api_key_env is not the name of an environment variable",
            where=f"{key}.api_key_env",
            fix=fix,
        )
    if re.search(r"[@?]", base_url):
        raise PawlError(
            f"{key}.base_url carries a user or a query, which may be a secret",
            where=f"{key}.base_url",
            fix=fix,
        )
