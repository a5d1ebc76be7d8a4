"""No reply is ever silently missing: a fault that a retry mends loses nothing, one that stays is an
error with counts.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from stages.common import completion, llm
from stages.common.errors import PawlError
from stages.common.schema import LLM
from tests.fake_server import FakeServer

MENDABLE = [
    "429",
    "500",
    "hang",
    "cut",
    "shape",
    "html",
    "no_json",
    "no_choices",
    "error_200",
    "drip",
    "drip_headers",
]


def conversations(count: int) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"item {number}"}] for number in range(count)]


def asking(server: FakeServer, **changes: Any) -> LLM:
    usual = {
        "model": "fake",
        "max_output_tokens": 8,
        "timeout_s": 1.0,
        "retries": 2,
        "concurrency": 32,
    }
    return LLM(**{"base_url": server.url, **usual, **changes})


def ask(model: LLM, turns: list[list[dict[str, str]]], **more: Any) -> list[llm.Reply]:
    return llm.ask(model, turns, {"top_p": 1.0, "seed": 0}, **more)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_PAUSE_S", 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("fault", MENDABLE)
def test_no_item_is_lost_where_asking_again_helps(fault: str) -> None:
    failed: set[str] = set()

    def every_third_once(number: int, body: dict) -> str:
        text = body["messages"][0]["content"]
        if int(text.split()[1]) % 3 or text in failed:
            return ""
        failed.add(text)
        return fault

    with FakeServer(fault=every_third_once) as server:
        replies = ask(asking(server), conversations(12))
    assert [reply.text for reply in replies] == [f"ITEM {number}" for number in range(12)]
    assert server.requests == 12 + 4
    assert replies[0] == llm.Reply("ITEM 0", prompt_tokens=2, output_tokens=3, finish_reason="stop")


@pytest.mark.slow
@pytest.mark.parametrize("fault", MENDABLE)
def test_a_fault_that_stays_is_an_error_with_counts(fault: str) -> None:
    with FakeServer(
        fault=lambda number, body: fault if body["messages"][0]["content"] == "item 5" else "",
        hang_s=1.5,
    ) as server:
        with pytest.raises(
            PawlError, match=r"1 of 8 requests failed, \d were answered.*first cause: \S"
        ) as caught:
            ask(asking(server, retries=1, timeout_s=0.5), conversations(8))
    assert server.url in caught.value.where


def test_after_a_final_failure_no_new_request_starts() -> None:
    with FakeServer(fault=lambda number, body: "401") as server:
        with pytest.raises(PawlError, match="of 500 requests failed, 0 were answered"):
            ask(asking(server, concurrency=4), conversations(500))
    assert server.requests <= 4


def test_a_server_that_is_not_there_is_an_error() -> None:
    with FakeServer() as server:
        gone = asking(server)
    with pytest.raises(PawlError, match="requests failed"):
        ask(gone, conversations(3))


def test_retry_after_is_honoured() -> None:
    begun = time.monotonic()
    with FakeServer(
        fault=lambda number, body: "429" if number == 1 else "", retry_after_s="1"
    ) as server:
        ask(asking(server, timeout_s=5.0), conversations(1))
    assert time.monotonic() - begun >= 1


def test_retry_after_holds_back_every_request_to_that_server() -> None:
    times: list[float] = []

    def fault(number: int, body: dict[str, Any]) -> str:
        times.append(time.monotonic())
        return "429" if number == 1 else ""

    with FakeServer(fault=fault, retry_after_s="1") as server:
        with pytest.raises(PawlError, match="slow down"):
            ask(asking(server, retries=0), conversations(1))
        answered = ask(asking(server, concurrency=4, timeout_s=5.0), conversations(8))
    assert len(answered) == 8 and min(times[1:]) - times[0] >= 1


def test_an_empty_answer_is_an_answer() -> None:
    with FakeServer(answer=lambda body: "") as server:
        assert ask(asking(server), conversations(1)) == [llm.Reply("", 2, 1, "stop")]


@pytest.mark.parametrize(
    "fault", ["null", "reasoning", "tool", "refusal", "no_parts", "length_null"]
)
def test_a_reply_without_text_is_an_answer_and_is_not_asked_for_again(fault: str) -> None:
    """It would be so again, and the evaluation would never end; what it cost is counted."""
    with FakeServer(fault=lambda number, body: fault if number == 1 else "") as server:
        if fault == "length_null":
            choice = {
                "message": {"content": None, "reasoning_content": "so"},
                "finish_reason": "length",
            }
            raw = json.dumps(
                {
                    "model": "m",
                    "choices": [choice],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 8},
                }
            ).encode()
            assert completion.read(raw, [], "m", 8) == llm.Reply("", 3, 8, "length", missing=True)
            return
        [reply] = ask(asking(server), conversations(1))
    assert server.requests == 1
    assert reply == llm.Reply("", 2, 3, "tool_calls" if fault == "tool" else "stop", missing=True)


def test_nothing_at_all_is_asked_for_again_and_then_an_answer_without_text() -> None:
    with FakeServer(fault=lambda number, body: "nothing" if number == 1 else "") as server:
        assert [reply.text for reply in ask(asking(server), conversations(1))] == ["ITEM 0"]
    with FakeServer(fault=lambda number, body: "nothing") as server:
        assert [reply.missing for reply in ask(asking(server), conversations(1))] == [True]
    assert server.requests == 3


def test_text_in_parts_is_joined() -> None:
    with FakeServer(fault=lambda number, body: "parts") as server:
        assert ask(asking(server), conversations(1))[0] == llm.Reply("ITEM 0", 2, 3, "stop")


@pytest.mark.parametrize("fault", ["no_usage", "odd_usage"])
def test_a_reply_without_counts_is_kept_and_its_counts_are_estimated(fault: str) -> None:
    with FakeServer(fault=lambda number, body: fault) as server:
        assert ask(asking(server), conversations(1))[0] == llm.Reply(
            "ITEM 0", 2, 2, "stop", estimated=True
        )
    assert server.requests == 1


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ({"prompt_tokens": 3.0, "completion_tokens": "4"}, (3, 4)),
        ({"prompt_tokens": 3, "total_tokens": 7}, (3, 4)),
        ({"prompt_tokens": True, "completion_tokens": 4}, None),
        ({"prompt_tokens": 2**70, "completion_tokens": 4}, None),
        ({"prompt_tokens": float("nan"), "completion_tokens": 4}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": 4}, None),
        ([], None),
    ],
)
def test_counts_that_are_none_are_not_taken_for_some(told: Any, counts: Any) -> None:
    assert completion.usage({"usage": told}) == counts


def test_a_reply_that_does_not_say_why_it_ended_is_kept() -> None:
    with FakeServer(fault=lambda number, body: "no_reason") as server:
        assert ask(asking(server), conversations(1))[0].finish_reason == ""
        assert (
            ask(asking(server, max_output_tokens=3), conversations(1))[0].finish_reason == "length"
        ), "it used all that it may"


class Endless(FakeServer):
    """A body without an end, with a status of its own."""

    status = 200

    def _respond(self, handler: Any, body: dict[str, Any], fault: str) -> None:
        handler.send_response = lambda status: type(handler).send_response(handler, self.status)
        self._go_on(handler, "endless")


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_body_without_an_end_ends_at_the_limit_whatever_its_status(status: int) -> None:
    with Endless(hang_s=20) as server:
        server.status = status
        with pytest.raises(PawlError, match=r"longer than 4,194,816 bytes"):
            ask(asking(server, retries=0, timeout_s=20.0), conversations(1))
    assert server.sent_bytes < 32 * 2**20


def test_no_prompt_and_no_key_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    with (
        FakeServer() as other,
        FakeServer(
            fault=lambda number, body: "redirect", elsewhere=f"{other.url}/chat/completions"
        ) as server,
    ):
        with pytest.raises(PawlError, match="HTTP 307: it redirects to http://127"):
            ask(asking(server, api_key_env="PAWL_TEST_KEY"), conversations(1))
    assert other.requests == 0 and server.requests == 1


OPENAI = {
    "max_tokens": (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
        " 'max_completion_tokens' instead."
    ),
    "temperature": (
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1)"
        " value is supported."
    ),
}


def test_what_a_server_refuses_is_left_out_once_and_said() -> None:
    with FakeServer() as server:
        server.refuses = OPENAI
        replies = ask(asking(server, concurrency=1, retries=0), conversations(5))
        more = ask(asking(server, concurrency=1, retries=0), conversations(5))
    assert {reply.not_sent for reply in replies + more} == {
        ("temperature",)
    } and server.requests == 12
    assert server.bodies[-1]["max_completion_tokens"] == 8 and not {
        "max_tokens",
        "temperature",
    } & set(server.bodies[-1])
    with FakeServer() as server:
        server.refuses = {"seed": "Extra inputs are not permitted: seed"}
        assert ask(asking(server, retries=0), conversations(1))[0].not_sent == ("seed",)


def test_what_is_known_of_a_server_is_not_forgotten_by_a_request_with_fewer_options() -> None:
    with FakeServer() as server:
        server.refuses = OPENAI | {"seed": "Extra inputs are not permitted: seed"}
        for options in ({"seed": 0}, {}, {"seed": 0}):
            llm.ask(asking(server, retries=0), conversations(1), options)
    assert server.requests == 4 + 1 + 1


@pytest.mark.parametrize(
    "told",
    [
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum"
            " context length is 64 tokens."
        ),
        "temperature must be between 0 and 2",
        "the prompt is too long",
    ],
)
def test_a_refusal_of_another_kind_leaves_nothing_out(told: str) -> None:
    with FakeServer() as server, pytest.raises(PawlError, match="1 of 1 requests failed"):
        server.refuses = {"max_tokens": told}
        ask(asking(server), conversations(1))
    assert server.requests == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("given", ["86400", "inf", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_longer_wait_than_is_sensible_ends_at_once_and_is_said(given: str) -> None:
    with FakeServer(fault=lambda number, body: "429", retry_after_s=given) as server:
        for _ in range(2):  # the second is not held back until then
            with pytest.raises(PawlError, match="it asks to wait"):
                ask(asking(server, retries=5), conversations(1))
    assert server.requests == 2


def test_another_model_that_answers_is_named() -> None:
    with FakeServer(fault=lambda number, body: "other_model" if number == 1 else "") as server:
        replies = ask(asking(server, concurrency=1), conversations(2))
    assert [reply.model for reply in replies] == ["somebody-else", ""]


@pytest.mark.parametrize(
    ("asked", "told", "same"),
    [
        ("gpt-x", "gpt-x-2026-01-01", True),
        ("gpt-4", "gpt-4-0613", True),
        ("gpt-4", "gpt-4-turbo", False),
        ("m", "/models/m", True),
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B", True),
        ("base", "adapter", False),
        ("llama3", "llama3:latest", True),
        ("qwen3", "qwen3-8b", False),
        ("claude-x-latest", "claude-x-20261001", True),
        ("/a/base", "/b/adapter", False),
        ("openai/gpt-x", "gpt-x-2026-01-01", True),
        ("Model", "model", True),
        ("adapter", "m", False),
        ("llama-3", "llama-3-1", False),
    ],
)
def test_the_usual_names_of_one_model_are_one(asked: str, told: str, same: bool) -> None:
    assert completion.same_model(asked, told) is same and completion.same_model(told, asked) is same


def test_a_reply_is_data() -> None:
    wild = [
        "\x00\x1b[31m\r\n\u202e",
        "lone \ud800 surrogate",
        "x" * 2**20,
        "{answer} {{ 7*7 }} <script>",
    ]
    with FakeServer(
        answer=lambda body: wild[int(body["messages"][0]["content"].split()[1])]
    ) as server:
        assert [reply.text for reply in ask(asking(server), conversations(4))] == wild


def test_requests_in_flight_stay_within_the_limit_and_all_finish() -> None:
    with FakeServer() as server:
        replies = ask(asking(server, concurrency=3), conversations(40))
    assert len(replies) == 40 and server.most_in_flight <= 3


def test_every_reply_is_reported_once() -> None:
    seen: list[int] = []
    with FakeServer() as server:
        ask(asking(server), conversations(20), on_reply=lambda index, reply: seen.append(index))
    assert sorted(seen) == list(range(20))


def test_what_the_watch_raises_ends_everything() -> None:
    def watch() -> None:
        raise PawlError("the server died")

    with (
        FakeServer(fault=lambda number, body: "hang", hang_s=2) as server,
        pytest.raises(PawlError, match="the server died"),
    ):
        ask(asking(server, timeout_s=30.0), conversations(2), watch=watch)


def test_the_key_goes_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    with FakeServer(fault=lambda number, body: "401") as server, pytest.raises(PawlError) as caught:
        ask(asking(server, api_key_env="PAWL_TEST_KEY"), conversations(1))
    assert server.authorizations == ["Bearer sk-very-secret"]
    assert "wrong key: Bearer [key]" in str(caught.value)
    assert "sk-very-secret" not in str(caught.value) + repr(caught.value)


def test_the_key_is_in_no_reply_and_a_short_one_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, text in (("sk-very-secret", "it is [key]!"), ("EMPTY", "it is EMPTY!")):
        monkeypatch.setenv("PAWL_TEST_KEY", key)
        with FakeServer(answer=lambda body, key=key: f"it is {key}!") as server:  # type: ignore[misc]
            assert (
                ask(asking(server, api_key_env="PAWL_TEST_KEY"), conversations(1))[0].text == text
            )


class Echoing(FakeServer):
    """Sends its answer as the whole body, with a status of its own."""

    status = 200

    def _respond(self, handler, body, fault) -> None:
        handler.send(self.status, self.answer(body).encode())


@pytest.mark.parametrize(
    ("status", "form"),
    [
        (200, "text"),
        (200, "{}"),
        (401, "text"),
        (401, '{"error": ""}'),
    ],
)
def test_no_part_of_a_key_stays_where_an_answer_is_cut(
    monkeypatch: pytest.MonkeyPatch, status: int, form: str
) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-Very-Secret-And-Long")
    for filler in (85, 185, 285):
        echoed = f"{'x' * filler}sk-Very-Secret-And-Long{'y' * 300}"
        whole = (
            echoed
            if form == "text"
            else json.dumps({"echo": echoed, **json.loads(form.replace('""', json.dumps(echoed)))})
        )
        with (
            Echoing(answer=lambda body, whole=whole: whole) as server,
            pytest.raises(PawlError) as caught,
        ):
            server.status = status
            ask(asking(server, api_key_env="PAWL_TEST_KEY", retries=0), conversations(1))
        assert "sk-" not in str(caught.value)


def test_a_key_that_is_wanted_but_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAWL_TEST_KEY", raising=False)
    with FakeServer() as server, pytest.raises(PawlError, match="PAWL_TEST_KEY"):
        ask(asking(server, api_key_env="PAWL_TEST_KEY"), conversations(1))
    assert server.requests == 0


def test_no_proxy_stands_between_us_and_a_server_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeServer() as server:
        assert ask(asking(server, retries=0), conversations(1))[0].text == "ITEM 0"


def test_a_key_of_the_environment_is_not_sent_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with FakeServer() as server:
        ask(asking(server), conversations(1))
    assert server.authorizations == ["Bearer none"]
