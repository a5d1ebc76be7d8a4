"""Ask a served model all items, keep each reply as it comes, and say how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stages.common import llm
from stages.common.engine import Endpoint
from stages.common.errors import PawlError
from stages.common.gpus import visible
from stages.common.schema import Engine, Evaluate
from stages.common.scoring import Task
from stages.evaluate.journal import Journal, request_key

_EVERY_S = 5.0
_ALWAYS = ("max_output_tokens", "temperature", "top_p", "seed")
_UNUSUAL = {"top_k": 0, "num_runs": 1, "limit": 0, "think_open": "", "think_close": "", "think_begun": False, "template": {}}
Replies = list[list[list[llm.Reply]]]
"""By repeat, task and item."""


def settings(evaluate: Evaluate) -> dict[str, Any]:
    """What shapes the answers, apart from the model: part of every report and of its fingerprint.

    What is as it was before it could be set is left out, so that results from then stay comparable.
    """
    always = {name: getattr(evaluate, name) for name in _ALWAYS}
    return always | {name: getattr(evaluate, name) for name, usual in _UNUSUAL.items() if getattr(evaluate, name) != usual}


def in_flight(engine: Engine, evaluate: Evaluate) -> int:
    """Requests in flight: those that are set, else two batches of our own server, or what keeps each GPU of vLLM's busy.

    No answer depends on it, unless the engine's answers depend on their batch (stages/common/noise.py).
    """
    if evaluate.concurrency:
        return evaluate.concurrency
    return min(256 * max(1, len(visible())), 1024) if engine.kind == "vllm" else 64


def ask(
    endpoint: Endpoint, tasks: list[Task], engine: Engine, evaluate: Evaluate, journal: Journal,
    right: Callable[[Task, int, llm.Reply], bool | None] | None = None,
) -> Replies:  # fmt: skip
    """Answer every item of every task, each `num_runs` times. What the journal holds is not asked again; what comes is written there.

    Args:
        right: whether a reply is right, where that can be told at once; for the progress alone.

    Raises:
        PawlError: a request failed for good, a server died, a prompt does not fit or an answer was lost. Nothing partial is returned.
    """
    keys = {
        (repeat, number, index): request_key(turns, repeat)
        for repeat in range(evaluate.num_runs) for number, task in enumerate(tasks) for index, turns in enumerate(task.conversations)
    }  # fmt: skip
    done = sum(key in journal.replies for key in keys.values())
    if done:
        print(f"  {done} of {len(keys)} answers are there from a run that was stopped")
    progress = _Progress(len(keys), done)
    for repeat in range(evaluate.num_runs):
        places = [place for place, key in keys.items() if place[0] == repeat and key not in journal.replies]
        # the longest first: at the end only short ones run, and no long one alone
        places.sort(key=lambda place: -_length(tasks[place[1]].conversations[place[2]]))

        def on_reply(number: int, reply: llm.Reply, places: list[tuple[int, int, int]] = places) -> None:
            place = places[number]
            task, index = tasks[place[1]], place[2]
            _check(reply, task.items[index]["item_id"], endpoint, engine, evaluate)
            journal.add(keys[place], reply)
            progress.add(reply, right(task, index, reply) and not reply.missing if right else None)

        if places:
            asking = replace(_asking(endpoint, engine, evaluate), seed=evaluate.seed + repeat)
            with kept(journal, set(keys.values())):
                turns = [tasks[number].conversations[index] for _, number, index in places]
                llm.ask(asking, turns, on_reply=on_reply, watch=endpoint.check)
    progress.end()
    return [
        [[journal.replies[keys[repeat, number, index]] for index in range(len(task.items))] for number, task in enumerate(tasks)]
        for repeat in range(evaluate.num_runs)
    ]


@contextmanager
def kept(journal: Journal, wanted: set[str]) -> Iterator[None]:
    """Say, where asking ends early, what is on disk: it is not asked, or paid for, again."""
    try:
        yield
    except (PawlError, KeyboardInterrupt, SystemExit) as error:
        told = f"{sum(key in journal.replies for key in wanted)} of {len(wanted)} answers are kept, and the next run asks only the rest"
        if isinstance(error, PawlError):
            error.fix = "; ".join(filter(None, (error.fix, told)))
        else:
            print(f"  {told}", flush=True)
        raise


def _asking(endpoint: Endpoint, engine: Engine, evaluate: Evaluate) -> llm.Asking:
    extra: dict[str, Any] = {"top_k": evaluate.top_k} if evaluate.top_k else {}
    if evaluate.template:
        extra["chat_template_kwargs"] = dict(evaluate.template)
    return llm.Asking(
        base_url=endpoint.base_url, model=endpoint.model, api_key_env=endpoint.api_key_env, max_output_tokens=evaluate.max_output_tokens,
        temperature=evaluate.temperature, top_p=evaluate.top_p, seed=evaluate.seed, concurrency=in_flight(engine, evaluate),
        timeout_s=evaluate.request_timeout_s, retries=evaluate.retries, extra=extra,
    )  # fmt: skip


def _length(turns: list[dict[str, str]]) -> int:
    return sum(len(turn["content"]) for turn in turns)


def _check(reply: llm.Reply, item: str, endpoint: Endpoint, engine: Engine, evaluate: Evaluate) -> None:
    if engine.kind != "external" and reply.output_tokens == 0:
        # the end token counts, so an empty answer has one token; none at all is how a failed generation looks
        raise PawlError(
            f"the server generated nothing for item {item}",
            where=endpoint.base_url,
            fix="see the server's log in .pawl/logs, then run again",
        )
    if not reply.estimated and reply.prompt_tokens + evaluate.max_output_tokens > engine.max_model_len:
        raise PawlError(
            f"item {item} has {reply.prompt_tokens} prompt tokens; with evaluate.max_output_tokens that is above engine.max_model_len",
            where="engine.max_model_len", fix=f"set it to {reply.prompt_tokens + evaluate.max_output_tokens} or more",
        )  # fmt: skip


class _Progress:
    """Items done, accuracy so far, tokens a second and time left, every few seconds; on a terminal in one line that moves."""

    def __init__(self, total: int, before: int = 0) -> None:
        self.total, self.before, self.done, self.tokens = total, before, 0, 0
        self.right = self.told_right = 0
        self.begun = self.told = time.monotonic()

    def add(self, reply: llm.Reply, right: bool | None = None) -> None:
        self.done += 1
        self.tokens += reply.output_tokens
        if right is not None:
            self.told_right += 1
            self.right += right
        if time.monotonic() - self.told >= _EVERY_S and self.done + self.before < self.total:
            self.told = time.monotonic()
            self._tell(end="\r" if sys.stdout.isatty() else "\n")

    def end(self) -> None:
        if self.done:
            self._tell(end="\n")

    def _tell(self, end: str) -> None:
        spent = max(time.monotonic() - self.begun, 1e-9)
        done = self.done + self.before
        left = spent / self.done * (self.total - done)
        guess = f", {left:.0f} s left" if self.done * 10 >= self.total - self.before else ""  # the first wait for a batch of prompts
        state = guess if done < self.total else f", in {spent:.0f} s"
        scored = f", {self.right / self.told_right:.0%} right" if self.told_right else ""
        print(
            f"  {done} of {self.total} items{scored}, {self.tokens / spent:.0f} tokens/s{state}".ljust(70 if end == "\r" else 0),
            end=end,
            flush=True,
        )
