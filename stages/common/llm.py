"""The one client for language models: chat completions from an OpenAI-compatible server, and none
silently missing.

    ask(llm, conversations)             all of them, or an error with counts
    async with Client(llm) as client:   one at a time, with retries: for callers that stream or
    cache
        reply = await client.complete(messages)

A request is one POST of JSON, sent by aiohttp itself. openai.AsyncOpenAI with its own aiohttp
transport was measured in its place: 632 to 706 requests/s against 1,203 at 256 in flight, and 699
against 1,166 with the teacher's cache, budget and order on top (two cores, one of them the
server's). It also takes 0.4 s more to import, and sends what OPENAI_ORG_ID and
OPENAI_CUSTOM_HEADERS hold to any server.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from stages.common import completion, web
from stages.common.completion import Reply
from stages.common.errors import PawlError
from stages.common.schema.llm import LLM

__all__ = ["Client", "Failed", "Messages", "Reply", "api_key", "ask"]

Messages = list[dict[str, str]]
"""[{"role": "user", "content": ...}]"""

_PAUSE_S = 0.5
"""Before the first retry; doubled for each further one, with jitter, so that many clients do not
come back at once.
"""
_LONGEST_PAUSE_S = 30.0
# bytes of one reply, beside 64 for each token: more is no chat completion
_LARGEST_BODY = 4 * 2**20
_MAY_PASS = {408, 409, 425, 429}  # with 5xx: it may be gone when asked again
_REFUSING = {400, 413, 422}  # the server's answer to this one request, now and later
_SHORTEST_KEY = 12  # characters; a shorter one may be a word that the model means
_HELD: dict[str, float] = {}
"""By address, until when (monotonic) its server wants no request: Retry-After holds back all of
this process.
"""


class Failed(Exception):
    """A request that stays failed; one line without the key. `status`: of the server's refusal,
    else 0.
    """

    def __init__(self, cause: str, status: int = 0) -> None:
        super().__init__(cause)
        self.status = status

    @property
    def refused(self) -> bool:
        """The server refuses this request itself (its length, its content), not the caller."""
        return self.status in _REFUSING


class _Passing(Exception):
    """A failure that may be gone when asked again, after `wait_s` seconds if the server says so.

    `reply` is what it is taken for if it stays.
    """

    def __init__(self, cause: str, wait_s: float = 0.0, reply: Reply | None = None) -> None:
        asks = f"; it asks to wait {wait_s:g} s" if wait_s > web.LONGEST_WAIT_S else ""
        super().__init__(f"{cause}{asks}")
        self.wait_s, self.reply = wait_s, reply


class _Refused(Exception):
    """A request that the server refuses, with its words. They may hold the key."""

    def __init__(self, cause: str, status: int, told: str) -> None:
        super().__init__(cause)
        self.status, self.told = status, told


def api_key(name: str) -> str:
    """The key in the environment variable `name`, read when it is needed; "none" if no name is
    given.

    Raises:
        PawlError: the variable is not set.
    """
    if not name:
        return "none"
    if key := os.environ.get(name, "").strip():
        return key
    fix = f"export {name}=..., or put it into .env"
    raise PawlError(f"the environment variable {name} holds no key", fix=fix)


class Client:
    """A connection pool to one server. Use it as an async context manager.

    Attributes:
        retried: how many requests were sent again.
        spent: prompt and output tokens of all answers, of those too that cannot be used.
        estimated: the server did not count some of them.
    """

    def __init__(self, llm: LLM, **options: Any) -> None:
        """`options` join the body of each request: top_p, seed, top_k, ... Raises PawlError if the
        key is not set.
        """
        self.llm = llm
        self.retried, self.spent, self.estimated = 0, (0, 0), False
        self._options = options
        self._key = api_key(llm.api_key_env)
        self._url = f"{llm.base_url.rstrip('/')}/chat/completions"
        self._limit = _LARGEST_BODY + 64 * llm.max_output_tokens
        self._pool: Any = None

    async def __aenter__(self) -> Client:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        self._pool = web.session(self._url, headers, self.llm.timeout_s, self.llm.concurrency)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.close()

    async def complete(self, messages: Messages, **options: Any) -> Reply:
        """Answer one conversation. Waits between attempts, at least as long as Retry-After says.

        An option that the server refuses is left out, which costs no attempt; the reply says so.

        Raises:
            Failed: it stays failed.
        """
        llm = self.llm
        wanted = {"max_tokens": llm.max_output_tokens, "temperature": llm.temperature}
        wanted |= self._options | options
        sent, attempt = completion.options(llm.base_url, llm.model, wanted), 0
        while True:
            await self._held_back()
            try:
                return self._told(await self._post(messages, sent), wanted, sent)
            except _Refused as error:
                less = completion.fewer(error.status, error.told, sent)
                if less is None:
                    raise Failed(self._clean(str(error)), error.status) from None
                sent = less
            except _Passing as error:
                if attempt >= llm.retries or error.wait_s > web.LONGEST_WAIT_S:
                    if error.reply:
                        return self._told(error.reply, wanted, sent)
                    raise Failed(self._clean(str(error))) from None
                pause_s = min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                attempt += 1
                self.retried += 1
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    def _told(self, reply: Reply, wanted: dict[str, Any], sent: dict[str, Any]) -> Reply:
        left = completion.learnt(self.llm.base_url, self.llm.model, wanted, sent)
        long_enough = len(self._key) >= _SHORTEST_KEY
        text = reply.text.replace(self._key, "[key]") if long_enough else reply.text
        return replace(reply, text=text, not_sent=left, model=self._clean(reply.model))

    async def _held_back(self) -> None:
        while (wait_s := _HELD.get(self.llm.base_url, 0.0) - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    async def _post(self, messages: Messages, sent: dict[str, Any]) -> Reply:
        body = json.dumps({"model": self.llm.model, "messages": messages, **sent}).encode()
        try:
            answer = await web.exchange(self._pool, "POST", self._url, body, self._limit)
        except web.Unusable as error:
            raise _Passing(str(error)) from None
        if answer.status == 200:
            return self._read(answer.body, messages)
        cause = f"HTTP {answer.status}: {completion.message_of(answer.body)}"
        if to := web.redirected(answer, self._url):
            why = f"it redirects to {web.shown(to)}, and prompts go to the declared address alone"
            raise Failed(self._clean(f"HTTP {answer.status}: {why}"))
        if answer.status in _MAY_PASS or (answer.status >= 500 and answer.status != 501):
            raise _Passing(cause, self._hold(web.retry_after(answer.headers)))
        raise _Refused(cause, answer.status, str(answer.body[:20_000], "utf-8", "replace"))

    def _read(self, body: bytes, messages: Messages) -> Reply:
        llm = self.llm
        try:
            reply = completion.read(body, messages, llm.model, llm.max_output_tokens)
        except completion.Malformed as error:
            self._pay(*error.spent, estimated=error.reply is None)
            raise _Passing(str(error), reply=error.reply) from None
        self._pay(reply.prompt_tokens, reply.output_tokens, estimated=reply.estimated)
        return reply

    def _pay(self, prompt_tokens: int, output_tokens: int, *, estimated: bool) -> None:
        self.spent = self.spent[0] + prompt_tokens, self.spent[1] + output_tokens
        self.estimated = self.estimated or estimated

    def _hold(self, wait_s: float) -> float:
        """Hold back every request to this server; a longer wait than is sensible ends the one that
        met it.
        """
        if 0 < wait_s <= web.LONGEST_WAIT_S:
            url = self.llm.base_url
            _HELD[url] = max(_HELD.get(url, 0.0), time.monotonic() + wait_s)
        return wait_s

    def _clean(self, cause: str) -> str:
        """One line, without the key: servers repeat it when they refuse it.

        Cut last, since half of a key would not be found.
        """
        line = " ".join(cause.split())
        return (line if self._key == "none" else line.replace(self._key, "[key]"))[:400]


@dataclass
class _Progress:
    failed: int = 0
    first_cause: str = ""
    replies: dict[int, Reply] = field(default_factory=dict)


def ask(
    llm: LLM,
    conversations: Sequence[Messages],
    options: Mapping[str, Any],
    *,
    on_reply: Callable[[int, Reply], None] | None = None,
    watch: Callable[[], None] | None = None,
) -> list[Reply]:
    """Answer every conversation, in the order given; requests start in that order, `concurrency` at
    a time.

    HTTP errors that may pass (408, 409, 425, 429, 5xx, a lost connection, a timeout) and malformed
    replies are asked for again, `retries` times each. A reply without text is an answer all the
    same (Reply.missing). After the first request that stays failed no new one starts.

    Args:
        options: what joins the body of each request, as for `Client`.
        on_reply: called with index and reply as each request finishes.
        watch: called about every second; what it raises ends everything.

    Raises:
        PawlError: a request failed for good; says how many failed of how many, and the first cause.
            Never names the key.
    """
    return asyncio.run(_ask(Client(llm, **options), conversations, on_reply, watch))


async def _ask(
    client: Client,
    conversations: Sequence[Messages],
    on_reply: Callable[[int, Reply], None] | None,
    watch: Callable[[], None] | None,
) -> list[Reply]:
    done, pending = _Progress(), iter(enumerate(conversations))

    async def worker() -> None:
        for index, messages in pending:  # shared by all workers: each takes the next one
            try:
                reply = await client.complete(messages)
            except Failed as error:
                done.failed += 1
                done.first_cause = done.first_cause or str(error)
                return
            done.replies[index] = reply
            if on_reply:
                on_reply(index, reply)
            if done.failed:
                return

    async with client:
        count = min(client.llm.concurrency, len(conversations))
        workers = [asyncio.create_task(worker()) for _ in range(count)]
        try:
            await _supervise(workers, watch)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    if done.failed or len(done.replies) != len(conversations):
        raise PawlError(
            f"{done.failed} of {len(conversations)} requests failed, {len(done.replies)} were"
            f" answered, the rest was not asked; first cause: {done.first_cause or 'unknown'}",
            where=client.llm.base_url,
            fix="see to the server (its log), or allow it more time or retries, and run again",
        )
    return [done.replies[index] for index in range(len(conversations))]


async def _supervise(workers: list[asyncio.Task[None]], watch: Callable[[], None] | None) -> None:
    waiting = set(workers)
    while waiting:
        finished, waiting = await asyncio.wait(
            waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED
        )
        if watch:
            watch()
        for task in finished:
            task.result()  # an error of a callback is a bug of ours: it must be seen
