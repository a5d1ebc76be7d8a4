"""What was answered before a kill, a dead server or a full disk is not asked again."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stages.common.errors import PawlError
from stages.common.llm import Reply
from stages.common.schema import Config
from stages.evaluate import results
from stages.evaluate.journal import Journal, request_key
from tests.evaluate.test_stage import Run
from tests.fake_server import FakeServer


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def test_an_evaluation_that_stopped_goes_on_with_the_items_that_are_missing(run: Run) -> None:
    with FakeServer() as server:
        run(server)
        whole, asked = run.files(), server.requests
    for path in (run.root / "reports").rglob("*.json*"):
        path.unlink()
    with FakeServer(fault=lambda number, body: "401" if number > 20 else "") as server:
        with pytest.raises(PawlError):
            run(server, concurrency=1, retries=0)
        assert run.files() == {}
        server.fault = lambda number, body: ""
        before = server.requests
        run(server)
        assert server.requests - before == asked - 20
    rows = {name: content for name, content in run.files().items() if name.endswith("jsonl")}
    assert rows == {name: content for name, content in whole.items() if name.endswith("jsonl")}
    assert not list((run.root / ".pawl/eval").glob("*.jsonl")), "the results are written: the journal has done its work"


def test_two_splits_of_one_model_at_once_keep_their_own_journals(run: Run) -> None:
    with FakeServer(fault=lambda number, body: "401" if number > 8 else "") as server:
        with pytest.raises(PawlError):
            run(server, "test", concurrency=1, retries=0)
        server.fault = lambda number, body: ""
        run(server, "val")
        [left] = (run.root / ".pawl/eval").glob("*.jsonl")
        assert len(left.read_text().splitlines()) == 8, "what the other has finished is still there"
        before = server.requests
        run(server, "test")
        assert server.requests - before == 14 - 8


@pytest.mark.parametrize("change", ["another model under the same address", "another tokenizer"])
def test_what_shapes_an_answer_from_outside_the_settings_is_asked_anew(run: Run, change: str) -> None:
    with FakeServer(fault=lambda number, body: "401" if number > 8 else "", models=("one",)) as server:
        with pytest.raises(PawlError):
            run(server, concurrency=1, retries=0)
        server.fault = lambda number, body: ""
        before = server.requests
        if change == "another tokenizer":
            base = {"name": "Fake", "weights_sha256": "abc", "files": {"tokenizer.json": {"sha256": "other"}}}
            run.monkeypatch.setattr("stages.evaluate.__main__.base_model", lambda: (base, run.root))
        else:
            server.models = ("two",)
        run(server)
        assert server.requests - before == 38


def test_other_sampling_another_model_or_another_question_is_asked_anew(run: Run) -> None:
    with FakeServer(fault=lambda number, body: "401" if number > 20 else "") as server:
        with pytest.raises(PawlError):
            run(server, concurrency=1, retries=0)
        server.fault = lambda number, body: ""
        before = server.requests
        run(server, max_output_tokens=31)
        assert server.requests - before == 38


@pytest.mark.parametrize("torn", [b'{"key": "x", "text": "4', b"\xff\xfe\n", b'{"key": "k"}\n', b"[]\n"])
def test_a_torn_line_counts_as_missing_and_spoils_no_other(tmp_path: Path, torn: bytes) -> None:
    journal = Journal(tmp_path, {"a": 1})
    journal.add("k", Reply("line\u2028 \ud800", 1, 2, "stop"))
    journal.close()
    with open(journal.path, "ab") as file:
        file.write(torn)
    again = Journal(tmp_path, {"a": 1})
    assert again.replies == {"k": Reply("line\u2028 \ud800", 1, 2, "stop")}
    again.add("l", Reply("next", 1, 2, "length"))
    again.close()
    assert Journal(tmp_path, {"a": 1}).replies.keys() == {"k", "l"}
    assert Journal(tmp_path, {"a": 2}).replies == {}


def test_a_full_disk_is_an_error_with_the_journals_name(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    journal.add("k", Reply("4", 1, 2, "stop"))
    journal._file.close()  # type: ignore[union-attr]
    journal._file = open("/dev/full", "w", encoding="ascii")  # noqa: SIM115
    with pytest.raises(OSError) as caught:
        journal.add("l", Reply("5", 1, 2, "stop"))
    assert caught.value.filename == str(journal.path) and Journal(tmp_path, {}).replies.keys() == {"k"}
    journal._file = None


def test_repeats_are_told_apart() -> None:
    turns = [{"role": "user", "content": "q"}]
    assert request_key(turns, 0) != request_key(turns, 1) and request_key(turns, 0) == request_key(list(turns), 0)


def test_what_nobody_came_back_for_is_forgotten(tmp_path: Path) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text("{}")
    os.utime(old, (1, 1))
    Journal(tmp_path, {})
    assert not old.exists()


def test_a_server_of_others_that_writes_todays_date_has_another_fingerprint_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    def today(kind: str, base: dict[str, str]) -> dict[str, str]:
        return results.clock(cast(Config, SimpleNamespace(engine=SimpleNamespace(kind=kind))), base)

    assert set(today("external", {"date": "2024-07-26"})) == {"template_date"}
    assert today("vllm", {"date": "2024-07-26"}) == today("external", {}) == {}, "older results keep their fingerprint"
    monkeypatch.setattr(results, "date", SimpleNamespace(today=lambda: date(2031, 2, 3)))
    assert today("external", {"date": "2024-07-26"}) == {"template_date": "2031-02-03"}
