"""What a teacher answered is paid for once and comes in order; a budget stops cleanly; a fault
costs retries, never rows.
"""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stages.common import llm
from stages.common.errors import PawlError
from stages.common.llm import Reply
from stages.common.replies import Replies
from stages.common.schema import LLM
from stages.generate_data.teacher import Budget, Refused, Teacher, request_key
from tests.fake_server import FakeServer

FAULTS = [
    "429",
    "500",
    "hang",
    "cut",
    "shape",
    "html",
    "no_json",
    "nothing",
    "no_choices",
    "error_200",
    "drip",
]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_PAUSE_S", 0.01)


def requests(count: int, start: int = 0) -> Any:
    return (
        (number, [{"role": "user", "content": f"item {number}"}], 0)
        for number in range(start, count)
    )


def ask(
    server: FakeServer,
    folder: Path,
    count: int,
    *,
    budget: Budget | None = None,
    start: int = 0,
    **changes: Any,
) -> list[Any]:
    settings = {
        "base_url": server.url,
        "model": "fake",
        "concurrency": 8,
        "timeout_s": 1.0,
        "retries": 3,
        "price_out": 1e6,
    } | changes
    with (
        Replies(folder / "replies.sqlite") as replies,
        Teacher(LLM(**settings), replies, budget or Budget()) as teacher,
    ):
        return list(teacher.answers(requests(count, start)))


def texts(results: list[Any]) -> list[tuple[int, str]]:
    return [(number, reply.text) for number, reply in results]


WANTED = [(number, f"ITEM {number}") for number in range(40)]


def test_answers_come_in_the_order_of_the_requests_and_are_paid_for_once(tmp_path: Path) -> None:
    with FakeServer() as server:
        assert texts(ask(server, tmp_path, 40)) == WANTED
        assert texts(ask(server, tmp_path, 40, concurrency=1)) == WANTED
    assert server.requests == 40
    assert server.most_in_flight <= 8


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_a_retry_and_never_a_row(fault: str, tmp_path: Path) -> None:
    with FakeServer(
        fault=lambda number, body: fault if number % 10 == 3 else "", hang_s=1.5
    ) as server:
        assert texts(ask(server, tmp_path, 20, timeout_s=0.5)) == WANTED[:20]
    assert server.requests > 20


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("no_usage", "with tokens that are estimated"),
        ("odd_usage", "with tokens that are estimated"),
        ("no_reason", ""),
        ("reasoning", "without text"),
        ("other_model", "signed somebody-else"),
    ],
)
def test_a_reply_that_was_paid_for_is_kept_whatever_is_odd_about_it_and_the_report_says_so(
    fault: str, told: str, tmp_path: Path
) -> None:
    reports = []
    with FakeServer(fault=lambda number, body: fault if number == 3 else "") as server:
        for _ in range(2):
            settings = LLM(
                base_url=server.url, model="fake", concurrency=1, timeout_s=1.0, price_out=1e6
            )
            with (
                Replies(tmp_path / "r.sqlite") as replies,
                Teacher(settings, replies, Budget()) as teacher,
            ):
                results = list(teacher.answers(requests(5)))
                reports.append(teacher.usage.report())
            assert all(isinstance(reply, Reply) for _, reply in results)
    assert server.requests == 5, "nothing is paid for twice"
    assert reports[0] == reports[1] and reports[0]["requests"] == 5 and reports[0]["cost"] >= 14
    assert reports[0].get("odd", {}) == ({told: 1} if told else {})


def test_what_stays_failed_stops_the_rest_and_keeps_what_was_answered(tmp_path: Path) -> None:
    broken = True
    with FakeServer(
        fault=lambda number, body: "500" if broken and "item 25" in str(body) else ""
    ) as server:
        with pytest.raises(
            PawlError,
            match=r"1 requests to the teacher failed for good, \d+ requests were answered",
        ) as error:
            ask(server, tmp_path, 40, retries=1)
        assert server.url in error.value.where
        answered, broken = server.requests - 2, False
        assert texts(ask(server, tmp_path, 40)) == WANTED
    assert server.requests == 42, (
        "the failed one was sent twice; nothing that was answered is asked for again"
    )
    assert answered >= 25


def test_a_request_that_the_server_refuses_costs_its_row_alone(tmp_path: Path) -> None:
    with FakeServer(
        fault=lambda number, body: "400" if "item 3" in str(body["messages"]) else ""
    ) as server:
        results = ask(server, tmp_path, 4)
    assert isinstance(results[3][1], Refused)
    assert "too long" in results[3][1].reason
    assert texts(results[:3]) == WANTED[:3]


def test_a_wrong_key_ends_everything_at_once_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    with FakeServer(fault=lambda number, body: "401") as server, pytest.raises(PawlError) as error:
        ask(server, tmp_path, 500, api_key_env="PAWL_TEST_KEY")
    assert server.requests <= 8
    assert "sk-very-secret" not in str(error.value)
    assert all(b"sk-very-secret" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("limit", [{"max_tokens": 60}, {"max_cost": 36.0}])
def test_a_budget_stops_cleanly_and_another_run_goes_on(
    limit: dict[str, Any], tmp_path: Path
) -> None:
    # a reply has 2 prompt and 3 output tokens, at 1 of money an output token
    with FakeServer() as server:
        with pytest.raises(
            PawlError, match=r"budget for one run is used up: 12 requests were answered"
        ):
            ask(server, tmp_path, 40, budget=Budget(**limit), concurrency=2)
        assert server.requests == 12
        with pytest.raises(PawlError, match="used up"):
            ask(server, tmp_path, 40, budget=Budget(**limit), concurrency=2)
        assert server.requests == 24
        assert texts(ask(server, tmp_path, 40, budget=Budget(max_tokens=80))) == WANTED, (
            "exactly enough for the rest"
        )
    assert server.requests == 40


@pytest.mark.parametrize("limit", [{"max_tokens": 60}, {"max_cost": 36.0}])
def test_a_budget_holds_before_the_first_reply_too(limit: dict[str, Any], tmp_path: Path) -> None:
    with FakeServer() as server, pytest.raises(PawlError, match="used up"):
        ask(server, tmp_path, 40, budget=Budget(**limit), concurrency=40, max_output_tokens=12)
    assert server.requests <= 16


def test_one_request_twice_is_sent_once(tmp_path: Path) -> None:
    same = [{"role": "user", "content": "same"}]
    with FakeServer() as server, Replies(tmp_path / "r.sqlite") as replies:
        with Teacher(LLM(base_url=server.url, model="fake"), replies, Budget()) as teacher:
            results = list(teacher.answers((number, same, 0) for number in range(30)))
            assert teacher.usage.requests == 30 and teacher.budget.requests == 1
    assert [reply.text for _, reply in results] == ["SAME"] * 30
    assert server.requests == 1


def test_requests_are_read_as_they_are_needed(tmp_path: Path) -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            yield read, [{"role": "user", "content": f"item {read}"}], 0
            read += 1

    with FakeServer() as server, Replies(tmp_path / "r.sqlite") as replies:
        with Teacher(
            LLM(base_url=server.url, model="fake", concurrency=4), replies, Budget()
        ) as teacher:
            answers = teacher.answers(endless())
            assert [next(answers)[0] for _ in range(50)] == list(range(50))
            answers.close()
            assert read <= 50 + 16
    assert server.requests <= 50 + 16


@pytest.mark.timeout(20)
def test_a_reader_that_stops_takes_nothing_from_another(tmp_path: Path) -> None:
    with FakeServer() as server, Replies(tmp_path / "r.sqlite") as replies:
        with Teacher(
            LLM(base_url=server.url, model="fake", concurrency=2), replies, Budget()
        ) as teacher:
            outer = teacher.answers(requests(30))
            next(outer)
            assert list(teacher.answers(requests(0))) == []
            same = teacher.answers(requests(40, 3))
            next(same)
            same.close()
            assert texts(list(outer)) == WANTED[1:30]
            assert texts(list(teacher.answers(requests(40)))) == WANTED, (
                "what was not sent for the one is sent for the next"
            )
    assert server.requests == 40


def test_no_more_is_sent_ahead_than_a_reader_allows(tmp_path: Path) -> None:
    with FakeServer() as server, Replies(tmp_path / "r.sqlite") as replies:
        with Teacher(
            LLM(base_url=server.url, model="fake", concurrency=8), replies, Budget()
        ) as teacher:
            answers = teacher.answers(requests(40), ahead=2)
            next(answers)
            answers.close()
    assert server.requests == 2


def test_without_a_server_the_cache_alone_answers(tmp_path: Path) -> None:
    with FakeServer() as server:
        ask(server, tmp_path, 10)
    assert texts(ask(server, tmp_path, 10, base_url="")) == WANTED[:10]
    with pytest.raises(PawlError, match="not in the cache, and no teacher is configured"):
        ask(server, tmp_path, 11, base_url="")


def test_a_reply_depends_on_model_messages_and_sampling_alone() -> None:
    def key(
        model: str = "m", limit: int = 10, messages: Any = None, seed: int = 0, **other: Any
    ) -> bytes:
        asked = messages or [{"role": "user", "content": "x"}]
        return request_key(LLM(model=model, max_output_tokens=limit, **other), asked, seed)

    elsewhere = {
        "base_url": "http://b/v1",
        "timeout_s": 1.0,
        "retries": 9,
        "concurrency": 1,
        "price_in": 2.0,
    }
    assert key() == key(messages=[{"content": "x", "role": "user"}], **elsewhere)
    twice = [{"role": "user", "content": "x"}] * 2
    others = [key("n"), key(limit=11), key(seed=1), key(temperature=0.5), key(messages=twice)]
    assert len({key(), *others}) == 6


def test_replies_that_were_paid_for_long_ago_are_still_found() -> None:
    """A stored key of an earlier version: another form of it would pay for every reply again."""
    found = request_key(
        LLM(model="m", max_output_tokens=10, temperature=0.5),
        [{"role": "user", "content": "x é"}],
        3,
    )
    assert found.hex() == "7482942ef4c31d31728811e29e650ee5c6ae200e83874b6e7c2fab999dd59f15"


def test_a_reply_that_cannot_be_kept_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Replies, "_insert", full)
    with FakeServer() as server, pytest.raises(PawlError, match="the disk is full"):
        ask(server, tmp_path, 40)
    assert server.requests < 40


@pytest.mark.timeout(20)
def test_the_last_reply_that_cannot_be_kept_is_seen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise PawlError("the disk is full")

    monkeypatch.setattr(Replies, "put", full)
    with FakeServer() as server, pytest.raises(PawlError, match="the disk is full"):
        ask(server, tmp_path, 1)
