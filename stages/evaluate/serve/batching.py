"""The engine `transformers`: a causal language model behind an OpenAI-compatible endpoint.

python -m stages.evaluate.serve.batching --model models/base --port 9100 --max-model-len 1024

Requests that wait are generated together: what all prompts begin with is read once, finished rows
leave the batch, and each row samples with its own seed. (`transformers serve` 5.6 attends over the
blocks of all requests in one row: 58 tokens/s on 2 cores, where this has about 200.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = "1"  # part of the fingerprint: raise it when this answers otherwise
_GATHER_S = 0.02  # how long the first request of a batch waits for others
_SHARED = 16  # tokens that all prompts must begin with before reading them once pays
_PADDED = {"cpu": 16_384, "cuda": 131_072}
"""Tokens of a batch with its padding: bounds the memory that reading the prompts takes."""


@dataclass
class Request:
    """One conversation as tokens, and what was generated for it.

    Attributes:
        done: called once, from the generating thread, with the request or with an exception.
        closed: it was answered, or nobody waits for it any more (a client that timed out asks
            again, and would wait behind itself).
    """

    tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    done: Callable[[Request | Exception], None]
    output: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    closed: bool = False

    def answer(self, value: Request | Exception) -> None:
        self.closed = True
        self.done(value)


class Refused(Exception):
    """A request that cannot be answered, whatever the server does: status 400."""


def load(folder: str, dtype: str, device: str) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"loading {folder}", flush=True)
    precision = "auto" if dtype == "auto" else getattr(torch, dtype)
    straight = None if device == "cpu" else device  # without a copy in the machine's memory
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=precision, device_map=straight)
    return model.to(device).eval(), AutoTokenizer.from_pretrained(folder)


def stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end an answer: of the generation settings, and the tokenizer's own."""
    ends = model.generation_config.eos_token_id
    found = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    return {int(token) for token in found if token is not None}


def shared_prefix(rows: list[list[int]]) -> int:
    """How many tokens all rows begin with: one less than the shortest at most, 0 if too few."""
    if len(rows) < 2:
        return 0
    first, last = min(rows), max(rows)
    most = min(map(len, rows)) - 1
    length = 0
    while length < most and first[length] == last[length]:
        length += 1
    return length if length >= _SHARED else 0


def generate(model: Any, tokenizer: Any, batch: list[Request]) -> None:
    """Answer a batch: fills `output` and `finish_reason` of each request and calls its `done`."""
    import torch
    from transformers import DynamicCache

    device, ends = model.device, stop_tokens(model, tokenizer)
    prefix = shared_prefix([request.tokens for request in batch])
    rest = [request.tokens[prefix:] for request in batch]
    width = max(map(len, rest))
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        if prefix:
            shared = torch.tensor([batch[0].tokens[:prefix]], device=device)
            model(shared, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(batch))
        # prefix, padding, rest: padding is masked, and positions count what is there
        padding = [[0] * (width - len(row)) for row in rest]
        padded = [left + row for left, row in zip(padding, rest, strict=True)]
        seen = [[1] * prefix + left + [1] * (width - len(left)) for left in padding]
        tokens, mask = torch.tensor(padded, device=device), torch.tensor(seen, device=device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, prefix:]
        dice = [torch.Generator(device="cpu").manual_seed(request.seed) for request in batch]
        running = list(range(len(batch)))
        while running:
            out = model(
                tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            asked = [batch[index] for index in running]
            thrown = [dice[index] for index in running]
            chosen = choose(out.logits[:, -1].float(), asked, thrown)
            kept = []
            for place, (index, token) in enumerate(zip(running, chosen, strict=True)):
                request = batch[index]
                request.output.append(token)
                if token in ends:
                    request.finish_reason = "stop"
                if token in ends or len(request.output) >= request.max_tokens:
                    request.answer(request)
                elif not request.closed:
                    kept.append(place)
            if not kept:
                break
            if len(kept) < len(running):
                places = torch.tensor(kept, device=device)
                cache.batch_select_indices(places)
                mask, positions = mask[places], positions[places]
                running = [running[place] for place in kept]
            tokens = torch.tensor([[batch[index].output[-1]] for index in running], device=device)
            mask = torch.cat([mask, mask.new_ones(len(running), 1)], dim=1)
            positions = positions[:, -1:] + 1


def choose(logits: Any, batch: list[Request], dice: list[Any]) -> list[int]:
    """The next token of each row: the likeliest at temperature 0, else drawn by its generator.

    Args:
        logits: [rows, vocabulary], float32.
        dice: the generators, one for each row.
    """
    import torch

    best = logits.argmax(-1).tolist()
    for row, request in enumerate(batch):
        if request.temperature <= 0:
            continue
        scores, order = torch.sort(logits[row].cpu() / request.temperature, descending=True)
        if request.top_k > 0:
            scores = scores[: request.top_k]
        shares = torch.softmax(scores, -1)
        fewest = int((shares.cumsum(-1) - shares < request.top_p).sum())  # that hold top_p
        shares = shares[:fewest]
        best[row] = int(order[torch.multinomial(shares, 1, generator=dice[row])])
    return [int(token) for token in best]


def next_batch(waiting: list[Request], max_batch: int, max_padded: int) -> list[Request]:
    """Take requests off the list: the oldest, and those of nearly its length."""
    first = waiting[0]
    longest = sorted(waiting, key=lambda request: -len(request.tokens))
    start = next(place for place, request in enumerate(longest) if request is first)
    start = max(0, min(start, len(longest) - max_batch))
    taken: list[Request] = []
    for request in longest[start : start + max_batch]:
        if taken and (len(taken) + 1) * len(taken[0].tokens) > max_padded:
            break
        taken.append(request)
    if first not in taken:
        taken = [first]
    for request in taken:
        waiting.remove(request)
    return taken


def work(inbox: queue.Queue[Request], model: Any, tokenizer: Any, max_batch: int) -> None:
    """The generating thread, which never ends.

    An error answers its batch; a batch too large for the memory is made again in smaller ones.
    """
    waiting: list[Request] = []
    padded = _PADDED["cpu" if model.device.type == "cpu" else "cuda"]
    while True:
        if not waiting:
            waiting.append(inbox.get())
        until = time.monotonic() + _GATHER_S
        while (left := until - time.monotonic()) > 0:
            try:
                waiting.append(inbox.get(timeout=left))
            except queue.Empty:
                break
        waiting = [request for request in waiting if not request.closed]
        if not waiting:
            continue
        batch = next_batch(waiting, max_batch, padded)
        try:
            generate(model, tokenizer, batch)
        except Exception as error:  # noqa: BLE001 - whatever the model raises is these requests'
            unanswered = [request for request in batch if not request.closed]
            if "memory" in str(error) and len(batch) > 1:
                max_batch = len(batch) // 2
                told = f"out of memory with {len(batch)} requests at once"
                print(f"{told}; from now on at most {max_batch}", flush=True)
                for request in unanswered:
                    request.output.clear()
                waiting = unanswered + waiting
                continue
            for request in unanswered:
                request.answer(error)


def serve(args: argparse.Namespace) -> None:
    from aiohttp import web

    model, tokenizer = load(args.model, args.dtype, args.device)
    inbox = queue.Queue[Request]()
    working = (inbox, model, tokenizer, args.max_batch)
    threading.Thread(target=work, args=working, daemon=True).start()

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    async def listed(_: web.Request) -> web.Response:
        known = [{"id": args.model, "object": "model"}]
        return web.json_response({"object": "list", "data": known})

    def refused(error: BaseException, status: int) -> web.Response:
        told = {"message": f"{type(error).__name__}: {error}"}
        return web.json_response({"error": told}, status=status)

    async def chat(http: web.Request) -> web.Response:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Request | Exception] = loop.create_future()

        def give(value: Request | Exception) -> None:
            if not answer.done():
                answer.set_result(value)

        def done(value: Request | Exception) -> None:
            loop.call_soon_threadsafe(give, value)

        try:
            body = json.loads(await http.text())
            if body["model"] != args.model:
                raise Refused(f"the model here is {args.model}, not {body['model']}")
            asked = parse(body, tokenizer, args.max_model_len, done)
        except (Refused, KeyError, TypeError, ValueError) as error:
            return refused(error, 400)
        inbox.put(asked)
        try:
            request = await answer
        finally:
            asked.closed = True
        if isinstance(request, Exception):
            return refused(request, 500)
        text = tokenizer.decode(request.output, skip_special_tokens=True)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": request.finish_reason, "message": message}
        usage = {"prompt_tokens": len(request.tokens), "completion_tokens": len(request.output)}
        return web.json_response(
            {
                "id": "chatcmpl",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": args.model,
                "choices": [choice],
                "usage": usage | {"total_tokens": sum(usage.values())},
            }
        )

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", listed)
    app.router.add_post("/v1/chat/completions", chat)
    web.run_app(
        app,
        host=args.host,
        port=args.port,
        access_log=None,
        print=None,
        shutdown_timeout=1.0,
        handler_cancellation=True,
    )


def parse(
    body: Mapping[str, Any],
    tokenizer: Any,
    max_model_len: int,
    done: Callable[[Request | Exception], None],
) -> Request:
    """A request from its JSON body.

    Raises:
        Refused: the prompt and the answer do not fit into max_model_len tokens, or the model's
            template does not take the conversation.
    """
    from jinja2 import TemplateError

    template = body.get("chat_template_kwargs") or {}
    try:
        tokens = tokenizer.apply_chat_template(
            body["messages"],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **template,
        )
    except TemplateError as error:  # such as: system turns are not supported
        raise Refused(f"the model's chat template: {error}") from None
    request = Request(
        list(tokens["input_ids"]),
        int(body.get("max_tokens") or 16),
        float(body.get("temperature") or 0),
        float(body.get("top_p") or 1),
        int(body.get("top_k") or 0),
        int(body.get("seed") or 0),
        done,
    )
    if len(request.tokens) + request.max_tokens > max_model_len:
        both = f"{len(request.tokens)} prompt tokens and {request.max_tokens} for the answer"
        raise Refused(f"{both} are more than {max_model_len}")
    return request


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.evaluate.serve.batching", description=__doc__
    )
    parser.add_argument("--model", required=True, help="its folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-batch", type=int, default=32)
    serve(parser.parse_args())


if __name__ == "__main__":
    main()
