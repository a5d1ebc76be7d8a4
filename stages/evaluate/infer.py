"""Ask a served model all items, and say how far it is."""

from __future__ import annotations

import sys
import time

from stages.common import llm
from stages.common.engine import Endpoint
from stages.common.errors import PawlError
from stages.common.schema import Engine, Evaluate
from stages.evaluate.benchmark import Task

_EVERY_S = 5.0


def settings(evaluate: Evaluate) -> dict[str, float | int]:
    """What shapes the answers, apart from the model: part of every report and of its fingerprint."""
    return {name: getattr(evaluate, name) for name in ("max_output_tokens", "temperature", "top_p", "seed")}


def ask(endpoint: Endpoint, tasks: list[Task], engine: Engine, evaluate: Evaluate) -> list[list[llm.Reply]]:
    """Answer every item of every task: for each task its replies in the order of its items.

    Raises:
        PawlError: a request failed for good, a server died, a prompt does not fit or an answer was lost. Nothing partial is returned.
    """
    if engine.kind == "transformers" and evaluate.temperature > 0:
        raise PawlError(
            "'transformers serve' takes the most likely token whatever the temperature", where="evaluate.temperature",
            fix="set it to 0, or choose engine=vllm or vllm_cpu",
        )  # fmt: skip
    flat = [(task, index) for task in tasks for index in range(len(task.items))]
    # the longest first: at the end only short ones run, and no long one alone
    order = sorted(range(len(flat)), key=lambda place: -len(flat[place][0].prompts[flat[place][1]]))
    asking = llm.Asking(
        base_url=endpoint.base_url, model=endpoint.model, api_key_env=endpoint.api_key_env, max_output_tokens=evaluate.max_output_tokens,
        temperature=evaluate.temperature, top_p=evaluate.top_p, seed=evaluate.seed, concurrency=evaluate.concurrency,
        timeout_s=evaluate.request_timeout_s, retries=evaluate.retries,
    )  # fmt: skip
    progress = _Progress(len(flat))

    def on_reply(index: int, reply: llm.Reply) -> None:
        task, item = flat[order[index]]
        _check(reply, task.items[item]["item_id"], endpoint, engine, evaluate)
        progress.add(reply)

    conversations = [[{"role": "user", "content": flat[place][0].prompts[flat[place][1]]}] for place in order]
    replies = llm.ask(asking, conversations, on_reply=on_reply, watch=endpoint.check)
    progress.end()
    by_place = dict(zip(order, replies, strict=True))
    answers = iter(by_place[place] for place in range(len(flat)))
    return [[next(answers) for _ in task.items] for task in tasks]


def _check(reply: llm.Reply, item: str, endpoint: Endpoint, engine: Engine, evaluate: Evaluate) -> None:
    if engine.kind != "external" and reply.output_tokens == 0:
        # the end token counts, so an empty answer has one token; none at all is how a failed generation looks
        raise PawlError(
            f"the server generated nothing for item {item}",
            where=endpoint.base_url,
            fix="see the server's log in .pawl/logs, then run again",
        )
    if reply.prompt_tokens + evaluate.max_output_tokens > engine.max_model_len:
        raise PawlError(
            f"item {item} has {reply.prompt_tokens} prompt tokens; with evaluate.max_output_tokens that is above engine.max_model_len",
            where="engine.max_model_len", fix=f"set it to {reply.prompt_tokens + evaluate.max_output_tokens} or more",
        )  # fmt: skip


class _Progress:
    """Items done, tokens a second and time left, every few seconds; on a terminal in one line that moves."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.tokens = total, 0, 0
        self.begun = self.told = time.monotonic()

    def add(self, reply: llm.Reply) -> None:
        self.done += 1
        self.tokens += reply.output_tokens
        if time.monotonic() - self.told >= _EVERY_S and self.done < self.total:
            self.told = time.monotonic()
            self._tell(end="\r" if sys.stdout.isatty() else "\n")

    def end(self) -> None:
        self._tell(end="\n")

    def _tell(self, end: str) -> None:
        spent = max(time.monotonic() - self.begun, 1e-9)
        left = spent / self.done * (self.total - self.done)
        guess = f", {left:.0f} s left" if self.done * 10 >= self.total else ""  # the first ones wait for a whole batch of prompts
        state = guess if self.done < self.total else f", in {spent:.0f} s"
        print(
            f"  {self.done} of {self.total} items, {self.tokens / spent:.0f} tokens/s{state}".ljust(60 if end == "\r" else 0),
            end=end,
            flush=True,
        )
