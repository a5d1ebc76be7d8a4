"""Ask a served model all items, keep each reply as it comes, and say how far it is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.common import llm
from stages.common.errors import PawlError
from stages.common.files import sha256_text
from stages.common.gpus import visible
from stages.common.replies import Replies, key_of, remove
from stages.common.schema import LLM, Engine, Evaluate
from stages.common.scoring import Task
from stages.evaluate.serve.engine import Endpoint

_KEPT_S = 7 * 24 * 3600
_EVERY_S = 5.0
_ALWAYS = ("max_output_tokens", "temperature", "top_p", "seed")
_UNUSUAL = {
    "top_k": 0,
    "num_runs": 1,
    "limit": 0,
    "think_open": "",
    "think_close": "",
    "think_begun": False,
    "template": {},
}
IsRight = Callable[[Task, int, llm.Reply], bool | None]
"""Whether the reply to an item is right, None if that cannot be told at once."""
Answers = list[list[list[llm.Reply]]]
"""By repeat, task and item."""


def settings(evaluate: Evaluate) -> dict[str, object]:
    """What shapes the answers, apart from the model: part of every report and of its fingerprint.

    What is as it was before it could be set is left out, so that results from then stay comparable.
    """
    found = {name: getattr(evaluate, name) for name in _ALWAYS}
    for name, usual in _UNUSUAL.items():
        if getattr(evaluate, name) != usual:
            found[name] = getattr(evaluate, name)
    return found


def in_flight(engine: Engine, evaluate: Evaluate) -> int:
    """Requests in flight: those that are set, else two batches of our own server, or what keeps
    each GPU of vLLM's busy.

    No answer depends on it, unless the engine's answers depend on their batch
    (stages/common/noise.py).
    """
    if evaluate.concurrency:
        return evaluate.concurrency
    if engine.kind != "vllm":
        return 64
    return min(256 * max(1, len(visible())), 1024)


def store(folder: Path, shaping: Mapping[str, object]) -> Replies:
    """Where the replies of one evaluation are kept, so that one that was killed asks only the rest.

    The file is named after a hash of all that shapes an answer but the question. Remove it once the
    results are written: another evaluation is another measurement. The file of a killed run is kept
    for a week.
    """
    path = folder / f"{sha256_text(json.dumps(shaping, sort_keys=True, default=str))[:32]}.sqlite"
    for old in folder.glob("*.sqlite"):
        with suppress(FileNotFoundError):  # another evaluation has just ended
            if old != path and time.time() - old.stat().st_mtime > _KEPT_S:
                remove(old)
    replies = Replies(path)
    path.touch()
    return replies


def ask(
    endpoint: Endpoint,
    tasks: list[Task],
    engine: Engine,
    evaluate: Evaluate,
    replies: Replies,
    right: IsRight | None = None,
) -> Answers:
    """Answer every item of every task, each `num_runs` times.

    A reply that is kept is not asked again; each that comes is kept.

    Args:
        right: for the progress alone.

    Raises:
        PawlError: a request failed for good, a server died, a prompt does not fit or an answer was
            lost. Nothing partial is returned.
    """
    keys: dict[tuple[int, int, int], bytes] = {}
    for repeat in range(evaluate.num_runs):
        for number, task in enumerate(tasks):
            for index, turns in enumerate(task.conversations):
                keys[repeat, number, index] = key_of(turns, repeat)
    found = kept(replies, keys.values())
    done = sum(key in found for key in keys.values())
    if done:
        print(f"  {done} of {len(keys)} answers are there from a run that was stopped")
    progress = _Progress(len(keys), done)
    model = _model(endpoint, engine, evaluate)
    for repeat in range(evaluate.num_runs):
        places = [place for place, key in keys.items() if place[0] == repeat and key not in found]
        # the longest first: at the end only short ones run, and no long one alone
        places.sort(key=lambda place: -_length(tasks[place[1]].conversations[place[2]]))

        def on_reply(
            number: int, reply: llm.Reply, places: list[tuple[int, int, int]] = places
        ) -> None:
            place = places[number]
            task, index = tasks[place[1]], place[2]
            _check(reply, task.items[index]["item_id"], endpoint, engine, evaluate)
            replies.put(keys[place], reply)
            found[keys[place]] = reply
            is_right = right(task, index, reply) if right else None
            progress.add(reply, is_right and not reply.missing)

        if places:
            asked = [tasks[number].conversations[index] for _, number, index in places]
            options = _options(evaluate, repeat)
            with counted(replies, set(keys.values())):
                llm.ask(model, asked, options, on_reply=on_reply, watch=endpoint.check)
    progress.end()
    answers: Answers = [[[] for _ in tasks] for _ in range(evaluate.num_runs)]
    for (repeat, number, _), key in keys.items():  # in the order of the items
        answers[repeat][number].append(found[key])
    return answers


def kept(replies: Replies, keys: Iterable[bytes]) -> dict[bytes, llm.Reply]:
    """Those of the replies that are in the store."""
    found = {}
    for key in keys:
        if reply := replies.get(key):
            found[key] = reply
    return found


@contextmanager
def counted(replies: Replies, wanted: set[bytes]) -> Iterator[None]:
    """If asking ends early, say how many replies are on disk. They are not paid for again."""
    try:
        yield
    except (PawlError, KeyboardInterrupt, SystemExit) as error:
        count = f"{len(kept(replies, wanted))} of {len(wanted)}"
        told = f"{count} answers are kept, and the next run asks only the rest"
        if isinstance(error, PawlError):
            error.fix = "; ".join(filter(None, (error.fix, told)))
        else:
            print(f"  {told}", flush=True)
        raise


def _model(endpoint: Endpoint, engine: Engine, evaluate: Evaluate) -> LLM:
    return LLM(
        base_url=endpoint.base_url,
        model=endpoint.model,
        api_key_env=endpoint.api_key_env,
        temperature=evaluate.temperature,
        max_output_tokens=evaluate.max_output_tokens,
        concurrency=in_flight(engine, evaluate),
        timeout_s=evaluate.request_timeout_s,
        retries=evaluate.retries,
    )


def _options(evaluate: Evaluate, repeat: int) -> dict[str, object]:
    options: dict[str, object] = {"top_p": evaluate.top_p, "seed": evaluate.seed + repeat}
    if evaluate.top_k:
        options["top_k"] = evaluate.top_k
    if evaluate.template:
        options["chat_template_kwargs"] = dict(evaluate.template)
    return options


def _length(turns: list[dict[str, str]]) -> int:
    return sum(len(turn["content"]) for turn in turns)


def _check(
    reply: llm.Reply, item: str, endpoint: Endpoint, engine: Engine, evaluate: Evaluate
) -> None:
    if engine.kind != "external" and reply.output_tokens == 0:
        # the end token counts, so an empty answer has one token; a failed generation has none
        raise PawlError(
            f"the server generated nothing for item {item}",
            where=endpoint.base_url,
            fix="see the server's log in .pawl/logs, then run again",
        )
    needed = reply.prompt_tokens + evaluate.max_output_tokens
    if not reply.estimated and needed > engine.max_model_len:
        raise PawlError(
            f"item {item} has {reply.prompt_tokens} prompt tokens; with "
            "evaluate.max_output_tokens that is above engine.max_model_len",
            where="engine.max_model_len",
            fix=f"set it to {needed} or more",
        )


class _Progress:
    """Every few seconds: items done, accuracy so far, tokens a second and time left.

    On a terminal it is one line that moves.
    """

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
        state = ""
        if done == self.total:
            state = f", in {spent:.0f} s"
        elif self.done * 10 >= self.total - self.before:  # the first wait for a batch of prompts
            state = f", {left:.0f} s left"
        scored = f", {self.right / self.told_right:.0%} right" if self.told_right else ""
        speed = f"{self.tokens / spent:.0f} tokens/s"
        line = f"  {done} of {self.total} items{scored}, {speed}{state}"
        print(line.ljust(70) if end == "\r" else line, end=end, flush=True)
