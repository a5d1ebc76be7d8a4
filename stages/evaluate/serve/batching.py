"""Serve causal language models behind an OpenAI-compatible endpoint, many requests at once: the engine `transformers`.

python -m stages.evaluate.serve.batching --port 9100 --dtype float32 --device cpu --max-model-len 1024 [--max-batch 32]

A request names its model by folder, so that one server answers for a base model and for what was made of it. Requests that wait are
generated together: what all prompts begin with is read once, finished rows leave the batch, and each row samples with its own seed.
(`transformers serve` 5.6 attends over the blocks of all requests in one row: 58 tokens/s on 2 cores, where this has about 200.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.common.files import read_json
from stages.common.machine import machine_gib
from stages.common.placement import needed_gib

VERSION = "1"  # part of the fingerprint: raise it when this answers otherwise
_GATHER_S = 0.02  # how long the first request of a batch waits for others
_MODELS = 2  # kept in memory, if they fit: a base and its fine-tuned model
_SHARED = 16  # tokens that all prompts must begin with before reading them once pays
_PADDED = {"cpu": 16_384, "cuda": 131_072}  # tokens of a batch with its padding: bounds the memory that reading the prompts takes


@dataclass
class Request:
    """One conversation as tokens, and what was generated for it. `done` is called once, from the generating thread.

    `closed`: it was answered, or nobody waits for it any more (a client that timed out asks again, and would wait behind itself).
    """

    model: str
    tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    done: Callable[[Any], None]
    output: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    closed: bool = False

    def answer(self, value: Any) -> None:
        self.closed = True
        self.done(value)


class Refused(Exception):
    """A request that cannot be answered, whatever the server does: status 400."""


class Models:
    """Models and tokenizers by folder, the last few of them in memory."""

    def __init__(self, dtype: str, device: str) -> None:
        self.dtype, self.device, self.loaded = dtype, device, {}  # type: ignore[var-annotated]
        self.lock = threading.Lock()

    def get(self, folder: str) -> tuple[Any, Any]:
        """Model and tokenizer of a folder. Raises Refused if there is no model."""
        with self.lock:
            if folder not in self.loaded:
                if not (Path(folder) / "config.json").is_file():
                    raise Refused(f"no model in {folder}")
                import torch
                from transformers import AutoModelForCausalLM, AutoTokenizer

                while len(self.loaded) >= _MODELS or (self.loaded and not fits_beside(Path(folder), self.dtype, self.device)):
                    del self.loaded[next(iter(self.loaded))]
                print(f"loading {folder}", flush=True)
                dtype = "auto" if self.dtype == "auto" else getattr(torch, self.dtype)
                straight = None if self.device == "cpu" else self.device  # onto the GPU, without a copy in the machine's memory
                model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map=straight)
                self.loaded[folder] = model.to(self.device).eval(), AutoTokenizer.from_pretrained(folder)
            self.loaded[folder] = self.loaded.pop(folder)  # the last used is the last to go
            return self.loaded[folder]  # type: ignore[no-any-return]


def fits_beside(folder: Path, dtype: str, device: str) -> bool:
    """Whether a model fits into what is free now, beside others that are in memory."""
    config = read_json(folder / "config.json")
    if device == "cpu":
        free_gib = machine_gib()
    else:
        import torch

        torch.cuda.empty_cache()
        free_gib = torch.cuda.mem_get_info()[0] / 2**30
    return needed_gib(folder, config.get("text_config") or config, dtype, 0) <= free_gib


def stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end an answer: of the generation settings, and the tokenizer's own."""
    ends = model.generation_config.eos_token_id
    found = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    return {int(token) for token in found if token is not None}


def shared_prefix(rows: list[list[int]]) -> int:
    """How many tokens all rows begin with, one less than the shortest at most; 0 where that is too few to pay."""
    if len(rows) < 2:
        return 0
    first, last = min(rows), max(rows)
    length = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), min(len(first), len(last)))
    length = min(length, min(map(len, rows)) - 1)
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
            model(torch.tensor([batch[0].tokens[:prefix]], device=device), past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(batch))
        # prefix, padding, rest: padding is masked, and positions count what is there
        tokens = torch.tensor([[0] * (width - len(row)) + row for row in rest], device=device)
        mask = torch.tensor([[1] * prefix + [0] * (width - len(row)) + [1] * len(row) for row in rest], device=device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, prefix:]
        dice = [torch.Generator(device="cpu").manual_seed(request.seed) for request in batch]
        running = list(range(len(batch)))
        while running:
            out = model(
                tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
            )  # fmt: skip
            chosen = choose(out.logits[:, -1].float(), [batch[index] for index in running], [dice[index] for index in running])
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
    """The next token of each row: the likeliest at temperature 0, else drawn by its own generator. logits: [rows, vocabulary], float32."""
    import torch

    best = logits.argmax(-1).tolist()
    for row, request in enumerate(batch):
        if request.temperature <= 0:
            continue
        scores, order = torch.sort(logits[row].cpu() / request.temperature, descending=True)
        if request.top_k > 0:
            scores = scores[: request.top_k]
        shares = torch.softmax(scores, -1)
        shares = shares[: int((shares.cumsum(-1) - shares < request.top_p).sum())]  # the fewest tokens that hold top_p
        best[row] = int(order[torch.multinomial(shares, 1, generator=dice[row])])
    return [int(token) for token in best]


def next_batch(waiting: list[Request], max_batch: int, max_padded: int) -> list[Request]:
    """Take requests of one model off the list: the oldest decides which, then those of nearly its length join it."""
    first = waiting[0]
    same = sorted((request for request in waiting if request.model == first.model), key=lambda request: -len(request.tokens))
    start = next(place for place, request in enumerate(same) if request is first)
    start = max(0, min(start, len(same) - max_batch))
    taken: list[Request] = []
    for request in same[start:]:
        if len(taken) == max_batch or (taken and (len(taken) + 1) * len(taken[0].tokens) > max_padded):
            break
        taken.append(request)
    if first not in taken:
        taken = [first]
    for request in taken:
        waiting.remove(request)
    return taken


def work(inbox: queue.Queue[Request], models: Models, max_batch: int) -> None:
    """The generating thread, for ever: an error answers its batch; one that is too large for the memory is made again in smaller ones."""
    waiting: list[Request] = []
    padded = _PADDED["cuda" if models.device.startswith("cuda") else "cpu"]
    while True:
        waiting.append(inbox.get()) if not waiting else None
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
            generate(*models.get(batch[0].model), batch)
        except Exception as error:  # noqa: BLE001 - whatever the model raises belongs to these requests
            unanswered = [request for request in batch if not request.closed]
            if "memory" in str(error) and len(batch) > 1:
                max_batch = len(batch) // 2
                print(f"out of memory with {len(batch)} requests at once; from now on at most {max_batch}", flush=True)
                for request in unanswered:
                    request.output.clear()
                waiting = unanswered + waiting
                continue
            for request in unanswered:
                request.answer(error)


def serve(args: argparse.Namespace) -> None:
    from aiohttp import web

    models, inbox = Models(args.dtype, args.device), queue.Queue[Request]()
    if args.model:
        models.get(args.model)
    threading.Thread(target=work, args=(inbox, models, args.max_batch), daemon=True).start()

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in models.loaded]})

    async def chat(http: web.Request) -> web.Response:
        loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def done(value: Any) -> None:
            loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(value))

        try:
            body = json.loads(await http.text())
            _, tokenizer = await loop.run_in_executor(None, models.get, str(body["model"]))
            asked = parse(body, tokenizer, args.max_model_len, done)
        except (Refused, KeyError, TypeError, ValueError) as error:
            return web.json_response({"error": {"message": f"{type(error).__name__}: {error}"}}, status=400)
        inbox.put(asked)
        try:
            request = await answer
        finally:
            asked.closed = True
        if isinstance(request, BaseException):
            return web.json_response({"error": {"message": f"{type(request).__name__}: {request}"}}, status=500)
        text = tokenizer.decode(request.output, skip_special_tokens=True)
        usage = {"prompt_tokens": len(request.tokens), "completion_tokens": len(request.output)}
        return web.json_response({
            "id": "chatcmpl", "object": "chat.completion", "created": int(time.time()), "model": request.model,
            "choices": [{"index": 0, "finish_reason": request.finish_reason, "message": {"role": "assistant", "content": text}}],
            "usage": usage | {"total_tokens": sum(usage.values())},
        })  # fmt: skip

    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.get("/health", health), web.get("/v1/models", listed), web.post("/v1/chat/completions", chat)])
    web.run_app(app, host=args.host, port=args.port, access_log=None, print=None, shutdown_timeout=1.0, handler_cancellation=True)


def parse(body: dict[str, Any], tokenizer: Any, max_model_len: int, done: Callable[[Any], None]) -> Request:
    """A request from its JSON body.

    Raises:
        Refused: the prompt and the answer do not fit into max_model_len tokens, or the model's template does not take the conversation.
    """
    from jinja2 import TemplateError

    template = body.get("chat_template_kwargs") or {}
    try:
        tokens = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=True, return_dict=True, **template)
    except TemplateError as error:  # such as: system turns are not supported
        raise Refused(f"the model's chat template: {error}") from None
    request = Request(
        str(body["model"]), list(tokens["input_ids"]), int(body.get("max_tokens") or 16), float(body.get("temperature") or 0),
        float(body.get("top_p") or 1), int(body.get("top_k") or 0), int(body.get("seed") or 0), done,
    )  # fmt: skip
    if len(request.tokens) + request.max_tokens > max_model_len:
        raise Refused(f"{len(request.tokens)} prompt tokens and {request.max_tokens} for the answer are more than {max_model_len}")
    return request


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.evaluate.serve.batching", description=__doc__)
    parser.add_argument("--model", default="", help="a folder to load before the server is ready")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-batch", type=int, default=32)
    serve(parser.parse_args())


if __name__ == "__main__":
    main()
