"""Ask a teacher for a stream of conversations: cached, bounded, in order, and within a budget.

    with Teacher(llm, replies, budget) as teacher:
        for request, reply in teacher.answers(requests):
            ...

`requests` is read as it is needed, so that a million of them need no more memory than a few
windows. Results come in the order of the requests whatever the order of the replies, so that what
is made of them is the same each time.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from stages.common.errors import PawlError
from stages.common.llm import Client, Failed, Reply
from stages.common.replies import Replies, key_of
from stages.common.schema import LLM

T = TypeVar("T")
_GRACE_S = 10.0  # for requests in flight when the reader stops, as at Ctrl-C
_TOP_P = 1.0
# times the concurrency: a slow reply holds back the results behind it, not the requests
_WINDOW = 4


@dataclass(frozen=True)
class Refused:
    """The server refuses this one request, as too long or for its content; its row is a bad row."""

    reason: str


@dataclass
class Budget:
    """What a run may spend on replies that are not in the cache; 0 means no limit.

    A reply's price is known only when it has come, so requests in flight are counted at the mean of
    those before, and at the longest reply before the first has come: what is spent at the end may
    exceed the limit by the spread of the last replies.
    """

    max_tokens: int = 0
    max_cost: float = 0.0
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def add(self, reply: Reply, llm: LLM) -> None:
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.output_tokens += reply.output_tokens
        self.cost += llm.cost(reply.prompt_tokens, reply.output_tokens)

    def left(self, llm: LLM) -> float:
        """How many replies still fit: infinite without a limit, at least one before the first
        reply.
        """
        longest = llm.max_output_tokens
        fits = math.inf
        for limit, spent, most in (
            (self.max_tokens, self.prompt_tokens + self.output_tokens, longest),
            (self.max_cost, self.cost, longest * llm.price_out / 1e6),
        ):
            if limit and spent:
                fits = min(fits, (limit - spent) / (spent / self.requests))
            elif limit and most:
                fits = min(fits, max(1.0, limit / most))
        return fits


@dataclass
class Usage:
    """What the replies that were used cost when they were made, whether in this run or before: the
    same for the same data.
    """

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    odd: Counter[str] = field(default_factory=Counter)
    """What is not as it should be about the replies, counted."""

    def add(self, reply: Reply, llm: LLM) -> None:
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.output_tokens += reply.output_tokens
        self.cost = llm.cost(self.prompt_tokens, self.output_tokens)
        self.odd.update(
            told
            for told, holds in (
                ("without text", reply.missing),
                ("with tokens that are estimated", reply.estimated),
                (f"signed {reply.model}", reply.model),
                (f"asked without {', '.join(reply.not_sent)}", reply.not_sent),
            )
            if holds
        )

    def report(self) -> dict[str, Any]:
        """As the stage's report has it; `odd` where there is something to say."""
        told = {
            name: getattr(self, name)
            for name in ("requests", "prompt_tokens", "output_tokens", "cost")
        }
        return told | ({"odd": dict(sorted(self.odd.items()))} if self.odd else {})


def request_key(llm: LLM, messages: list[dict[str, str]], seed: int) -> bytes:
    """By which a reply is found again; the address of the server is no part of it."""
    sampling = [llm.max_output_tokens, llm.temperature, _TOP_P, seed]
    return key_of(llm.model, sampling, messages)


@dataclass
class _Slot:
    request: Any
    key: bytes
    messages: list[dict[str, str]]
    seed: int
    result: Reply | Refused | None = None


class Teacher:
    """One language model behind one cache. `usage` is the account of what was used, `budget` of
    what this run paid for.
    """

    def __init__(
        self, llm: LLM, replies: Replies, budget: Budget, where: str = "data.teacher"
    ) -> None:
        self.llm, self.replies, self.budget, self.where = llm, replies, budget, where
        self.usage = Usage()
        self.retried = 0
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._todo: deque[_Slot] = deque()
        # in flight or waiting for it; the same request twice is sent once
        self._asked: dict[bytes, list[_Slot]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._failed: list[str] = []
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def __enter__(self) -> Teacher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._loop.run_until_complete(self._close())
        finally:
            self._loop.close()

    def answers(
        self, requests: Iterable[tuple[T, list[dict[str, str]], int]], ahead: int = 0
    ) -> Iterator[tuple[T, Reply | Refused]]:
        """The reply to each (anything, messages, seed), with whatever it came with, in the order of
        the requests.

        Several of these may be read by turns. Args: `ahead`: how many requests may be sent before
        the first is read (0: a few windows), for a reader that may stop early and would have paid
        for the others.

        Raises:
            PawlError: a request stayed failed, or the budget is used up. No new request starts
                then, those in flight come to their end, and every reply is in the cache, so that
                another run goes on from there.
        """
        source, window, size = (
            iter(requests),
            deque[_Slot](),
            min(ahead or _WINDOW * self.llm.concurrency, _WINDOW * self.llm.concurrency),
        )
        more = True
        try:
            while more or window:
                while more and len(window) < size:
                    request = next(source, None)
                    if request is None:
                        more = False
                    else:
                        window.append(self._slot(*request))
                if not window:
                    return
                if window[0].result is None:
                    self._loop.run_until_complete(self._wait(window[0]))
                while window and window[0].result is not None:
                    slot = window.popleft()
                    yield slot.request, self._count(slot.result)
        finally:
            if window:  # the reader stopped early: what is paid for is kept all the same
                self._forget(window)
                self._loop.run_until_complete(self._settle(_GRACE_S))

    def _forget(self, window: Iterable[_Slot]) -> None:
        """Take what was not sent yet out of the queue, unless another reader waits for the same
        reply.
        """
        own = {id(slot) for slot in window}
        todo, self._todo = self._todo, deque()
        for slot in todo:
            if others := [other for other in self._asked[slot.key] if id(other) not in own]:
                self._asked[slot.key] = others
                self._todo.append(others[0])
            else:
                del self._asked[slot.key]

    def _slot(self, request: Any, messages: list[dict[str, str]], seed: int) -> _Slot:
        key = request_key(self.llm, messages, seed)
        slot = _Slot(request, key, messages, seed)
        if key in self._asked:
            self._asked[key].append(slot)
            return slot
        slot.result = self.replies.get(key)
        if slot.result is None:
            if not self.llm.base_url:
                fix = (
                    f"set {self.where}.base_url and {self.where}.model, or restore the cache in"
                    " .pawl/teacher"
                )
                raise PawlError(
                    "a reply is not in the cache, and no teacher is configured",
                    where=self.where,
                    fix=fix,
                )
            self._asked[key] = [slot]
            self._todo.append(slot)
        return slot

    def _count(self, result: Reply | Refused | None) -> Reply | Refused:
        assert result is not None
        if isinstance(result, Reply):
            self.usage.add(result, self.llm)
        return result

    async def _wait(self, head: _Slot) -> None:
        """Run requests until the first of the window has its result."""
        if self._client is None:
            self._client = await Client(self.llm, top_p=_TOP_P).__aenter__()
        while head.result is None:
            self._changed.clear()
            self._start()
            if self._failed or self._error or (self._todo and not self._in_flight):
                await self._settle()
                raise self._stopped()
            await self._changed.wait()

    def _start(self) -> None:
        stopped = self._failed or self._error
        while (
            self._todo
            and not stopped
            and self._in_flight < self.llm.concurrency
            and self.budget.left(self.llm) > self._in_flight
        ):
            self._in_flight += 1
            task = self._loop.create_task(self._ask(self._todo.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _ask(self, slot: _Slot) -> None:
        assert self._client
        result: Reply | Refused | None = None
        try:
            # goes on with the next one: a task for each request would cost as much as its parsing
            while True:
                try:
                    result = await self._client.complete(slot.messages, seed=slot.seed)
                    self.budget.add(result, self.llm)
                    self.replies.put(slot.key, result)
                except Failed as error:
                    if not error.refused:
                        self._failed.append(str(error))
                        return
                    result = Refused(f"the teacher refuses it: {error}")
                for waiting in self._asked.pop(slot.key):
                    waiting.result = result
                self._changed.set()
                if (
                    self._failed
                    or self._error
                    or not self._todo
                    or self.budget.left(self.llm) <= self._in_flight - 1
                ):
                    return
                slot = self._todo.popleft()
        finally:
            self._in_flight -= 1
            self._changed.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._error = error  # a full disk, or a bug of ours: it must be seen, not waited for
            self._changed.set()

    async def _settle(self, limit_s: float | None = None) -> None:
        """Let what is in flight come to its end, within `limit_s` seconds: it is paid for."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)

    async def _close(self) -> None:
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client:
            self.retried = self._client.retried
            await self._client.__aexit__(None, None, None)

    def _stopped(self) -> BaseException:
        if self._error:
            return self._error
        paid = f"{self.budget.requests} requests were answered in this run and are kept"
        if self._failed:
            return PawlError(
                f"{len(self._failed)} requests to the teacher failed for good, {paid}; first cause:"
                f" {self._failed[0]}",
                where=self.llm.base_url,
                fix=(
                    f"see to the server, or raise {self.where}.retries or timeout_s, and run again:"
                    " nothing is paid for twice"
                ),
            )
        spent = (
            f"{self.budget.prompt_tokens:,} prompt and {self.budget.output_tokens:,} output tokens,"
            f" cost {self.budget.cost:.4g}"
        )
        return PawlError(
            f"the teacher's budget for one run is used up: {paid} ({spent})",
            where="data.teacher.max_tokens, data.teacher.max_cost",
            fix="run again to go on with a new budget, or raise it: nothing is paid for twice",
        )
