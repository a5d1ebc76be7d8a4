"""What a model answers does not depend on who else asks: batches, shared beginnings and padding
change nothing.
"""

from __future__ import annotations

import queue
from typing import Any

import pytest

from stages.evaluate.serve import batching
from stages.evaluate.serve.batching import Request


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Two random layers with a byte-level tokenizer, as the tests' pipeline makes them."""
    from stages.fetch_model.tiny import write

    folder = tmp_path_factory.mktemp("tiny")
    write(folder, "float32")
    return batching.load(str(folder), "float32", "cpu")


def ask(tokens: list[int], **changes: Any) -> Request:
    usual = {"max_tokens": 8, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
    return Request(**{"tokens": tokens, "done": lambda _: None, **usual, **changes})


def answers(tiny: tuple[Any, Any], *batches: list[Request]) -> list[tuple[list[int], str]]:
    for batch in batches:
        batching.generate(*tiny, batch)
    return [(request.output, request.finish_reason) for batch in batches for request in batch]


PROMPTS = [[5 + n for n in range(20)] + [40 + n] * (1 + n * 3) for n in range(5)]


@pytest.mark.e2e
@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 3}]
)
def test_an_answer_is_the_same_alone_and_among_others(
    tiny: tuple[Any, Any], changes: dict[str, Any]
) -> None:
    together = answers(tiny, [ask(prompt, **changes) for prompt in PROMPTS])
    alone = answers(tiny, *[[ask(prompt, **changes)] for prompt in PROMPTS])
    mixed = answers(tiny, [ask(prompt, **changes) for prompt in [*PROMPTS[:2], [7] * 3]])
    assert together == alone and mixed[:2] == alone[:2]


def test_it_generates_what_transformers_generates(tiny: tuple[Any, Any]) -> None:
    import torch

    model, _ = tiny
    for request in (requests := [ask(prompt) for prompt in PROMPTS]):
        whole = model.generate(torch.tensor([request.tokens]), max_new_tokens=8, do_sample=False)
        request.expected = whole[0, len(request.tokens) :].tolist()  # type: ignore[attr-defined]
    answers(tiny, requests)
    for request in requests:
        assert request.output == request.expected[: len(request.output)] and len(request.output) > 0  # type: ignore[attr-defined]


def test_each_answer_has_its_own_limit_and_says_how_it_ended(
    tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answers(
        tiny,
        [
            ask(PROMPTS[0], max_tokens=1),
            ask(PROMPTS[1], max_tokens=4),
            ask(PROMPTS[2], max_tokens=9),
        ],
    )
    assert [len(output) for output, _ in found] == [1, 4, 9] and {
        reason for _, reason in found
    } == {"length"}
    first = found[2][0][2]
    monkeypatch.setattr(batching, "stop_tokens", lambda *_: {first})
    [(output, reason)] = answers(tiny, [ask(PROMPTS[2], max_tokens=9)])
    assert reason == "stop" and output[-1] == first and len(output) <= 3


def test_other_seeds_draw_other_answers_and_top_k_1_is_greedy(tiny: tuple[Any, Any]) -> None:
    drawn = answers(
        tiny, [ask(PROMPTS[0], temperature=1.5, seed=seed, max_tokens=12) for seed in range(6)]
    )
    assert len({tuple(output) for output, _ in drawn}) > 1
    narrow = answers(
        tiny,
        [
            ask(PROMPTS[0], temperature=1.5, top_k=1),
            ask(PROMPTS[0], temperature=1.5, top_p=1e-9),
            ask(PROMPTS[0]),
        ],
    )
    assert narrow[0] == narrow[1] == narrow[2]


@pytest.mark.parametrize(
    ("rows", "shared"),
    [
        ([[1] * 30, [1] * 20 + [2]], 20),
        ([[1] * 30], 0),
        ([[1] * 30, [1] * 30], 29),
        ([[1] * 5, [1] * 6], 0),
    ],
)
def test_what_all_begin_with_is_found_and_leaves_a_token_to_read(
    rows: list[list[int]], shared: int
) -> None:
    assert batching.shared_prefix(rows) == shared


def test_a_batch_fits_and_leaves_nobody_waiting_for_ever() -> None:
    waiting = [ask([1] * length) for length in (5, 90, 6, 7, 80)]
    first, seen = waiting[0], []
    batch = batching.next_batch(waiting, 2, 1000)
    assert first in batch and len(batch) == 2
    while waiting:
        batch = batching.next_batch(waiting, 4, 100)
        seen.append(len(batch))
        assert len(batch) == 1 or len(batch) * max(len(request.tokens) for request in batch) <= 100
    assert sum(seen) == 3


def at_work(tiny: tuple[Any, Any], max_batch: int) -> queue.Queue[Request]:
    import threading

    inbox: queue.Queue[Request] = queue.Queue()
    threading.Thread(target=batching.work, args=(inbox, *tiny, max_batch), daemon=True).start()
    return inbox


def test_an_error_answers_its_batch_and_the_next_batch_is_served(tiny: tuple[Any, Any]) -> None:
    inbox, told = at_work(tiny, 4), queue.Queue[Any]()
    inbox.put(ask([10**9], done=told.put))
    assert isinstance(told.get(timeout=10), IndexError), "no such token"
    inbox.put(ask(PROMPTS[0], done=told.put))
    assert told.get(timeout=30).output


def test_a_batch_too_large_for_the_memory_is_made_again_in_smaller_ones(
    tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, sizes = batching.generate, []

    def narrow(model: Any, tokenizer: Any, batch: list[Request]) -> None:
        sizes.append(len(batch))
        if len(batch) > 2:
            batch[0].output.append(1)
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        usual(model, tokenizer, batch)

    alone = answers(tiny, *[[ask(prompt)] for prompt in PROMPTS])
    monkeypatch.setattr(batching, "generate", narrow)
    told = queue.Queue[Any]()
    requests = [ask(prompt, done=told.put) for prompt in PROMPTS]
    inbox = at_work(tiny, 8)
    for request in requests:
        inbox.put(request)
    for _ in requests:
        assert isinstance(told.get(timeout=30), Request)
    assert [(request.output, request.finish_reason) for request in requests] == alone and max(
        sizes[-2:]
    ) <= 2


def test_a_request_that_nobody_waits_for_is_not_generated(tiny: tuple[Any, Any]) -> None:
    left = ask(PROMPTS[1], max_tokens=500)

    def leave(_: Any) -> None:
        left.closed = True

    answers(tiny, [ask(PROMPTS[0], max_tokens=2, done=leave), left])
    assert 2 <= len(left.output) <= 3, "it leaves the batch at the next token"
    told = queue.Queue[Any]()
    gone = ask(PROMPTS[1], closed=True, done=lambda _: told.put("it was answered"))
    inbox = at_work(tiny, 8)
    inbox.put(gone)
    inbox.put(ask(PROMPTS[0], done=told.put))
    assert isinstance(told.get(timeout=30), Request) and not gone.output


def test_a_conversation_that_the_template_does_not_take_is_refused(
    tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tiny[1], "chat_template", "{{ raise_exception('system turns are not supported') }}"
    )
    body = {"model": "m", "messages": [{"role": "system", "content": "x"}], "max_tokens": 8}
    with pytest.raises(batching.Refused, match="system turns are not supported"):
        batching.parse(body, tiny[1], 64, lambda _: None)


def test_a_prompt_that_does_not_fit_is_refused(tiny: tuple[Any, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 500}], "max_tokens": 8}
    with pytest.raises(batching.Refused, match="more than 64"):
        batching.parse(body, tiny[1], 64, lambda _: None)
