"""Chat completions from an OpenAI-compatible server: many at once, and none silently missing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stages.common.errors import PawlError

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_PAUSE_S = 0.5  # before a malformed reply is asked for again; HTTP errors wait as the client or Retry-After says


@dataclass(frozen=True)
class Reply:
    """One answer. `text` may be empty: a model may stop at once. Token counts are the server's."""

    text: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str


@dataclass(frozen=True)
class Asking:
    """How a server is asked; `extra` joins the request's body (top_k, ...).

    `api_key_env` names the environment variable that holds the key, and the key itself is kept nowhere.
    """

    base_url: str
    model: str
    max_output_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    concurrency: int = 32
    timeout_s: float = 300.0
    retries: int = 3
    api_key_env: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


class _Malformed(Exception):
    """A reply with status 200 that is no chat completion."""


@dataclass
class _Progress:
    failed: int = 0
    first_cause: str = ""
    replies: dict[int, Reply] = field(default_factory=dict)


def ask(
    asking: Asking,
    conversations: Sequence[list[dict[str, str]]],
    *,
    on_reply: Callable[[int, Reply], None] | None = None,
    watch: Callable[[], None] | None = None,
) -> list[Reply]:
    """Answer every conversation, in the order given; requests start in that order, `concurrency` at a time.

    HTTP errors that may pass (408, 409, 429, 5xx, a lost connection, a timeout) and malformed replies are asked for again,
    `retries` times each. After the first request that stays failed no new one starts.

    Args:
        conversations: messages of each request, [{"role": "user", "content": ...}].
        on_reply: called with index and reply as each request finishes.
        watch: called about every second; what it raises ends everything.

    Raises:
        PawlError: a request failed for good; says how many failed of how many, and the first cause. Never names the key.
    """
    return asyncio.run(_ask(asking, conversations, on_reply, watch))


def api_key(name: str) -> str:
    """The key in the environment variable `name`, read when it is needed; a harmless word where no key is wanted.

    Raises:
        PawlError: the variable is not set.
    """
    if not name:
        return "none"
    if key := os.environ.get(name, "").strip():
        return key
    raise PawlError(f"the environment variable {name} holds no key", fix=f"export {name}=..., or put it into .env")


async def _ask(
    asking: Asking,
    conversations: Sequence[list[dict[str, str]]],
    on_reply: Callable[[int, Reply], None] | None,
    watch: Callable[[], None] | None,
) -> list[Reply]:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    key = api_key(asking.api_key_env)
    # a proxy of the environment must not be asked for a server on this machine
    transport = DefaultAioHttpClient(trust_env=urlsplit(asking.base_url).hostname not in _LOOPBACK)
    done, pending = _Progress(), iter(enumerate(conversations))
    client = AsyncOpenAI(base_url=asking.base_url, api_key=key, timeout=asking.timeout_s, max_retries=asking.retries, http_client=transport)
    async with client:

        async def worker() -> None:
            for index, messages in pending:  # shared by all workers: each takes the next one
                try:
                    reply = await _one(client, asking, messages)
                except Exception as error:
                    done.failed += 1
                    done.first_cause = done.first_cause or _cause(error, key)
                if done.failed:
                    return
                done.replies[index] = reply
                if on_reply:
                    on_reply(index, reply)

        workers = [asyncio.create_task(worker()) for _ in range(min(asking.concurrency, len(conversations)))]
        try:
            await _supervise(workers, watch)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    if done.failed or len(done.replies) != len(conversations):
        raise PawlError(
            f"{done.failed} of {len(conversations)} requests failed, {len(done.replies)} were answered, the rest was not asked; "
            f"first cause: {done.first_cause or 'unknown'}",
            where=asking.base_url,
            fix="nothing was kept; see to the server (its log), or raise evaluate.request_timeout_s or evaluate.retries, and run again",
        )
    return [done.replies[index] for index in range(len(conversations))]


async def _supervise(workers: list[asyncio.Task[None]], watch: Callable[[], None] | None) -> None:
    waiting = set(workers)
    while waiting:
        finished, waiting = await asyncio.wait(waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        if watch:
            watch()
        for task in finished:
            task.result()  # an error of a callback is a bug of ours: it must be seen


async def _one(client: Any, asking: Asking, messages: list[dict[str, str]]) -> Reply:
    attempt = 0
    while True:
        try:
            answer = await client.chat.completions.create(
                model=asking.model, messages=messages, max_tokens=asking.max_output_tokens,
                temperature=asking.temperature, top_p=asking.top_p, seed=asking.seed,
                extra_body=asking.extra or None,
            )  # fmt: skip
            return _reply(answer)
        except (_Malformed, ValueError) as error:  # ValueError: the body was no JSON
            attempt += 1
            if attempt > asking.retries:
                raise _Malformed(str(error)) from None
            await asyncio.sleep(_PAUSE_S)


def _reply(answer: Any) -> Reply:
    """The reply in an answer whose shape nobody has checked yet."""
    choices = getattr(answer, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise _Malformed(f"the server's answer has no choices: {_short(answer)}")
    message = getattr(choices[0], "message", None)
    text, reason = getattr(message, "content", None), getattr(choices[0], "finish_reason", None)
    if not isinstance(text, str):
        raise _Malformed(f"the server's answer has no text (finish_reason {reason!r:.60}): {_short(answer)}")
    if not isinstance(reason, str):
        raise _Malformed("the server's answer does not say why it ended (finish_reason)")
    usage = getattr(answer, "usage", None)
    read, written = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if not isinstance(read, int) or not isinstance(written, int) or min(read, written) < 0:
        raise _Malformed("the server's answer does not count its tokens (usage)")
    return Reply(text, read, written, reason)


def _short(answer: Any) -> str:
    return repr(answer if isinstance(answer, str) else getattr(answer, "model_extra", None) or type(answer).__name__)[:200]


def _cause(error: BaseException, key: str) -> str:
    """One line on an error, without the key: servers repeat it when they refuse it."""
    text = " ".join(str(error).split()) or type(error).__name__
    if error.__cause__ and str(error.__cause__) not in text:
        text += f" ({' '.join(str(error.__cause__).split())})"
    return (text if key == "none" else text.replace(key, "[key]"))[:400]
