"""No reply is ever silently missing: a fault that a retry mends loses nothing, one that stays is an error with counts."""

from __future__ import annotations

import json
import time

import pytest

from stages.common import llm
from stages.common.errors import PawlError
from tests.fake_server import FakeServer

MENDABLE = ["429", "500", "hang", "cut", "shape", "html", "no_json", "no_usage", "null", "no_choices", "error_200"]


def conversations(count: int) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"item {number}"}] for number in range(count)]


def asking(server: FakeServer, **changes: object) -> llm.Asking:
    return llm.Asking(**{"base_url": server.url, "model": "fake", "max_output_tokens": 8, "timeout_s": 1.0, "retries": 2, **changes})


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_PAUSE_S", 0.01)


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
        replies = llm.ask(asking(server), conversations(12))
    assert [reply.text for reply in replies] == [f"ITEM {number}" for number in range(12)]
    assert server.requests == 12 + 4
    assert replies[0] == llm.Reply("ITEM 0", prompt_tokens=2, output_tokens=3, finish_reason="stop")


@pytest.mark.parametrize("fault", MENDABLE)
def test_a_fault_that_stays_is_an_error_with_counts(fault: str) -> None:
    with FakeServer(fault=lambda number, body: fault if body["messages"][0]["content"] == "item 5" else "", hang_s=1.5) as server:
        with pytest.raises(PawlError, match=r"1 of 8 requests failed, \d were answered.*first cause: \S") as caught:
            llm.ask(asking(server, retries=1, timeout_s=0.5), conversations(8))
    assert server.url in caught.value.where


def test_after_a_final_failure_no_new_request_starts() -> None:
    with FakeServer(fault=lambda number, body: "401") as server:
        with pytest.raises(PawlError, match="of 500 requests failed, 0 were answered"):
            llm.ask(asking(server, concurrency=4), conversations(500))
    assert server.requests <= 4


def test_a_server_that_is_not_there_is_an_error() -> None:
    with FakeServer() as server:
        gone = asking(server)
    with pytest.raises(PawlError, match="requests failed"):
        llm.ask(gone, conversations(3))


def test_retry_after_is_honoured() -> None:
    begun = time.monotonic()
    with FakeServer(fault=lambda number, body: "429" if number == 1 else "", retry_after_s="1") as server:
        llm.ask(asking(server, timeout_s=5.0), conversations(1))
    assert time.monotonic() - begun >= 1


def test_an_empty_answer_is_an_answer() -> None:
    with FakeServer(answer=lambda body: "") as server:
        assert llm.ask(asking(server), conversations(1)) == [llm.Reply("", 2, 1, "stop")]


def test_a_thought_that_was_cut_off_before_the_answer_is_an_empty_answer_that_was_cut_off() -> None:
    """A server with a reasoning parser gives no text then; asked again it would give none again, and the evaluation would never end."""
    choice = {"message": {"content": None, "reasoning_content": "so"}, "finish_reason": "length"}
    usage = {"prompt_tokens": 3, "completion_tokens": 8}
    assert llm._reply(json.dumps({"choices": [choice], "usage": usage}).encode()) == llm.Reply("", 3, 8, "length")


def test_a_reply_is_data() -> None:
    wild = ["\x00\x1b[31m\r\n\u202e", "lone \ud800 surrogate", "x" * 2**20, "{answer} {{ 7*7 }} <script>"]
    with FakeServer(answer=lambda body: wild[int(body["messages"][0]["content"].split()[1])]) as server:
        assert [reply.text for reply in llm.ask(asking(server), conversations(4))] == wild


def test_requests_in_flight_stay_within_the_limit_and_all_finish() -> None:
    with FakeServer() as server:
        replies = llm.ask(asking(server, concurrency=3), conversations(40))
    assert len(replies) == 40 and server.most_in_flight <= 3


def test_every_reply_is_reported_once() -> None:
    seen: list[int] = []
    with FakeServer() as server:
        llm.ask(asking(server), conversations(20), on_reply=lambda index, reply: seen.append(index))
    assert sorted(seen) == list(range(20))


def test_what_the_watch_raises_ends_everything() -> None:
    def watch() -> None:
        raise PawlError("the server died")

    with FakeServer(fault=lambda number, body: "hang", hang_s=2) as server, pytest.raises(PawlError, match="the server died"):
        llm.ask(asking(server, timeout_s=30.0), conversations(2), watch=watch)


def test_the_key_goes_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    with FakeServer(fault=lambda number, body: "401") as server, pytest.raises(PawlError) as caught:
        llm.ask(asking(server, api_key_env="PAWL_TEST_KEY"), conversations(1))
    assert server.authorizations == ["Bearer sk-very-secret"]
    assert "wrong key: Bearer [key]" in str(caught.value)
    assert "sk-very-secret" not in str(caught.value) + repr(caught.value)


class Echoing(FakeServer):
    """Sends its answer as the whole body, with a status of its own."""

    status = 200

    def _respond(self, handler, body, fault) -> None:
        handler.send(self.status, self.answer(body).encode())


@pytest.mark.parametrize(("status", "form"), [(200, "text"), (200, "{}"), (401, "text"), (401, '{"error": ""}')])
def test_no_part_of_a_key_stays_where_an_answer_is_cut(monkeypatch: pytest.MonkeyPatch, status: int, form: str) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-Very-Secret-And-Long")
    for filler in (85, 185, 285):
        echoed = f"{'x' * filler}sk-Very-Secret-And-Long{'y' * 300}"
        whole = echoed if form == "text" else json.dumps({name: echoed for name in json.loads(form) or ["echo"]})
        with Echoing(answer=lambda body, whole=whole: whole) as server, pytest.raises(PawlError) as caught:
            server.status = status
            llm.ask(asking(server, api_key_env="PAWL_TEST_KEY", retries=0), conversations(1))
        assert "sk-" not in str(caught.value)


def test_a_key_that_is_wanted_but_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAWL_TEST_KEY", raising=False)
    with FakeServer() as server, pytest.raises(PawlError, match="PAWL_TEST_KEY"):
        llm.ask(asking(server, api_key_env="PAWL_TEST_KEY"), conversations(1))
    assert server.requests == 0


def test_a_key_of_the_environment_is_not_sent_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with FakeServer() as server:
        llm.ask(asking(server), conversations(1))
    assert server.authorizations == ["Bearer none"]
