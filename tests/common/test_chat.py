"""One JSON object, or one error: whatever a server sends, and however long it takes."""

from __future__ import annotations

import json
import time

import pytest

from stages.common import chat
from stages.common.errors import PawlError
from stages.common.schema import LLM
from tests.fake_server import FakeServer

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "sure": {"type": "number"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
GOOD = json.dumps({"answer": "yes", "sure": 0.5})
ASK = [{"role": "system", "content": "You judge."}, {"role": "user", "content": "Is it?"}]


def llm(server: FakeServer, **changes) -> LLM:
    return LLM(
        **{
            "base_url": server.url,
            "model": "fake",
            "timeout_s": 1.0,
            "retries": 1,
            "max_output_tokens": 64,
            **changes,
        }
    )


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr("stages.common.llm._PAUSE_S", 0.01)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Here you are: {GOOD} I hope that helps. {{}}",
        f'<think>{{"answer": "no", "sure": 1}} or not?</think>\n{GOOD}',
        f'{{"answer": "no", "sure": 1}} I think</think>{GOOD}',
        "{broken {" + GOOD,
    ],
)
def test_the_object_is_found_in_what_models_write_around_it(text):
    with FakeServer(answer=lambda body: text) as server:
        got = chat.structured(llm(server, price_in=1e6, price_out=2e6), ASK, SCHEMA)
    assert (
        got.value == {"answer": "yes", "sure": 0.5}
        and not got.repaired
        and got.raw == text
        and not got.estimated
    )
    assert got.cost == got.prompt_tokens + 2 * got.output_tokens and got.prompt_tokens == 4
    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize(
    "text", ['{"answer": "a\\ud800b", "sure": 1}', '{"answer": "a\ud800b", "sure": 1}']
)
def test_a_lone_surrogate_is_replaced_since_no_report_could_hold_it(text):
    """Half of an emoji, cut off at the output limit, would end the stage after its look was
    spent.
    """
    with FakeServer(answer=lambda body: text) as server:
        assert chat.structured(llm(server), ASK, SCHEMA).value == {"answer": "a?b", "sure": 1}
    with FakeServer(answer=lambda body: GOOD if len(body["messages"]) > 2 else "\ud800") as server:
        assert chat.structured(llm(server), ASK, SCHEMA).repaired, (
            "a repair shows the reply to the model again"
        )


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ("yes, surely", "no JSON object"),
        ("", "no JSON object"),
        ('{"answer": "yes"}', "'sure' is a required property"),
        ('{"answer": "yes", "sure": "very"}', "sure: 'very' is not of type 'number'"),
        ('{"answer": "yes", "sure": NaN}', "no JSON object"),
        ('{"answer": "yes", "sure": 1, "Decision": "yes"}', "'Decision' was unexpected"),
        ("[1, 2]", "no JSON object"),
        ('{"a":' * 3000, "no JSON object"),
    ],
)
def test_one_repair_with_the_parsers_message_and_no_second(first, says):
    with FakeServer(answer=lambda body: GOOD if len(body["messages"]) > 2 else first) as server:
        got = chat.structured(llm(server), ASK, SCHEMA)
    assert got.repaired and server.requests == 2
    assert (
        says in server.bodies[1]["messages"][-1]["content"]
        and server.bodies[1]["messages"][:2] == ASK
    )
    assert (
        got.prompt_tokens > 4
        and got.output_tokens == len(first.split()) + 1 + len(GOOD.split()) + 1
    )
    with (
        FakeServer(answer=lambda body: first) as server,
        pytest.raises(PawlError, match="no valid reply in 2 tries"),
    ):
        chat.structured(llm(server), ASK, SCHEMA)
    assert server.requests == 2


@pytest.mark.parametrize("fault", ["429", "hang", "html"])
def test_a_fault_that_passes_costs_one_more_request_and_one_that_stays_is_an_error_in_bounded_time(
    fault,
):
    with FakeServer(
        answer=lambda body: GOOD,
        fault=lambda number, body: fault if number == 1 else "",
        hang_s=0.6,
    ) as server:
        assert chat.structured(llm(server, timeout_s=0.3), ASK, SCHEMA).value["answer"] == "yes"
        assert server.requests == 2
    begun = time.monotonic()
    with FakeServer(
        answer=lambda body: GOOD, fault=lambda number, body: fault, hang_s=0.6
    ) as server:
        with pytest.raises(PawlError, match=r"fake did not answer: \S") as caught:
            chat.structured(llm(server, timeout_s=0.3), ASK, SCHEMA)
        assert server.requests == 2 and server.url in caught.value.where
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize(
    ("fault", "requests"),
    [("null", 2), ("reasoning", 2), ("tool", 2), ("refusal", 2), ("no_parts", 2)],
)
def test_a_reply_without_text_costs_one_repair_and_all_of_it_is_accounted(fault, requests):
    with (
        FakeServer(answer=lambda body: GOOD, fault=lambda number, body: fault) as server,
        pytest.raises(chat.NoReply) as caught,
    ):
        chat.structured(llm(server, retries=4, price_out=1e6), ASK, SCHEMA)
    assert server.requests == requests, "asked again with what is wrong about it, and no more"
    assert (
        caught.value.output_tokens == caught.value.cost == requests * (len(GOOD.split()) + 1)
        and caught.value.prompt_tokens > 8
    )


class Thinking(FakeServer):
    def _respond(self, handler, body, fault):
        choice = {"message": {"content": None, "reasoning": "Hm"}, "finish_reason": "length"}
        return handler.send(
            200, {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 64}}
        )


def test_thoughts_that_used_up_the_limit_are_not_asked_for_again():
    with (
        Thinking() as server,
        pytest.raises(chat.NoReply, match="raise max_output_tokens") as caught,
    ):
        chat.structured(llm(server), ASK, SCHEMA)
    assert server.requests == 1 and (caught.value.prompt_tokens, caught.value.output_tokens) == (
        5,
        64,
    )


def test_what_a_broken_body_cost_is_accounted():
    with (
        FakeServer(fault=lambda number, body: "no_choices") as server,
        pytest.raises(chat.NoReply) as caught,
    ):
        chat.structured(llm(server), ASK, SCHEMA)
    assert server.requests == 2 and caught.value.prompt_tokens == 8


def test_another_model_and_what_was_not_sent_are_named(capsys):
    with FakeServer(answer=lambda body: GOOD, fault=lambda number, body: "other_model") as server:
        server.refuses = {"temperature": "temperature is not supported"}
        got = chat.structured(llm(server), ASK, SCHEMA)
    assert (got.answered_as, got.not_sent) == ("somebody-else", ("temperature",))
    assert "signed somebody-else" in capsys.readouterr().err


def test_missing_counts_are_estimated_and_said():
    with FakeServer(answer=lambda body: GOOD, fault=lambda number, body: "no_usage") as server:
        got = chat.structured(llm(server), ASK, SCHEMA)
    assert got.estimated and got.prompt_tokens == 6 and got.output_tokens == -(-len(GOOD) // 3)


def test_a_server_without_schemas_is_asked_in_words():
    with FakeServer(answer=lambda body: GOOD) as server:
        server.refuses = {"response_format": "unexpected field"}
        assert chat.structured(llm(server), ASK, SCHEMA).value["sure"] == 0.5
    assert (
        server.requests == 2 and json.dumps(SCHEMA) in server.bodies[1]["messages"][-1]["content"]
    )


def test_options_that_newer_models_refuse_are_left_out_one_by_one():
    with FakeServer(answer=lambda body: GOOD) as server:
        server.refuses = {
            "max_tokens": "Use 'max_completion_tokens' instead.",
            "temperature": "temperature is not supported",
        }
        chat.structured(llm(server), ASK, SCHEMA)
    last = server.bodies[-1]
    assert (
        last["max_completion_tokens"] == 64
        and "max_tokens" not in last
        and "temperature" not in last
        and "response_format" in last
    )


def test_a_refusal_for_another_reason_ends():
    with FakeServer(answer=lambda body: GOOD) as server:
        server.refuses = {"model": "this model does not exist"}
        with pytest.raises(PawlError, match="this model does not exist"):
            chat.structured(llm(server), ASK, SCHEMA)
    assert server.requests <= 3


def test_the_key_is_in_no_error_and_in_no_reply(monkeypatch):
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    with FakeServer(fault=lambda number, body: "401") as server, pytest.raises(PawlError) as caught:
        chat.structured(llm(server, api_key_env="PAWL_TEST_KEY"), ASK, SCHEMA)
    assert "sk-very-secret" not in str(caught.value) and "[key]" in str(caught.value)
    with FakeServer(answer=lambda body: GOOD.replace("yes", "sk-very-secret")) as server:
        assert "secret" not in json.dumps(
            chat.structured(llm(server, api_key_env="PAWL_TEST_KEY"), ASK, SCHEMA).value
        )


def test_without_a_server_it_says_so():
    with pytest.raises(PawlError, match="no language model is configured"):
        chat.structured(LLM(), ASK, SCHEMA)


def test_ten_thousand_braces_or_thoughts_take_no_time():
    begun = time.process_time()
    assert chat.first_object('{"a":[' * 20_000) is None and chat.first_object("{" * 10**6) is None
    assert chat.first_object("</think>" + "<think>" * 10**5) is None
    assert time.process_time() - begun < 10
