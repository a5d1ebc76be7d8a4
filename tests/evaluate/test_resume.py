"""What was answered before a kill, a dead server or a full disk is not asked again."""

from __future__ import annotations

import os
import sqlite3
import time
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stages.common.errors import PawlError
from stages.common.llm import Reply
from stages.common.replies import Replies
from stages.common.schema import Config
from stages.evaluate import infer, results
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
    assert not list((run.root / ".pawl/eval").iterdir()), (
        "the results are written: another evaluation is another measurement"
    )


def test_two_splits_of_one_model_at_once_keep_their_own_replies(run: Run) -> None:
    with FakeServer(fault=lambda number, body: "401" if number > 8 else "") as server:
        with pytest.raises(PawlError):
            run(server, "test", concurrency=1, retries=0)
        server.fault = lambda number, body: ""
        run(server, "val")
        assert run.kept() == 8, "the other's are still there"
        before = server.requests
        run(server, "test")
        assert server.requests - before == 14 - 8


@pytest.mark.parametrize("change", ["another model under the same address", "another tokenizer"])
def test_what_shapes_an_answer_from_outside_the_settings_is_asked_anew(
    run: Run, change: str
) -> None:
    with FakeServer(
        fault=lambda number, body: "401" if number > 8 else "", models=("one",)
    ) as server:
        with pytest.raises(PawlError):
            run(server, concurrency=1, retries=0)
        server.fault = lambda number, body: ""
        before = server.requests
        if change == "another tokenizer":
            base = {
                "name": "Fake",
                "weights_sha256": "abc",
                "files": {"tokenizer.json": {"sha256": "other"}},
            }
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


def test_what_nobody_came_back_for_is_forgotten(tmp_path: Path) -> None:
    for name, age_s in {
        "old.sqlite": 8 * 86400,
        "old.sqlite-wal": 8 * 86400,
        "new.sqlite": 0,
    }.items():
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    with infer.store(tmp_path, {"a": 1}) as replies:
        path = replies.path
    assert {left.name for left in tmp_path.iterdir()} == {"new.sqlite", path.name}
    os.utime(path, (1, 1))
    infer.store(tmp_path, {"a": 1}).__exit__(None, None, None)
    infer.store(tmp_path, {"a": 2}).__exit__(None, None, None)
    assert path.exists(), "it was used again"


def test_a_full_disk_ends_an_evaluation_and_says_how_much_is_kept(run: Run) -> None:
    def full(
        self: Replies, connection: sqlite3.Connection, batch: list[tuple[bytes, Reply]]
    ) -> None:
        if run.kept() >= 5:
            raise sqlite3.OperationalError("database or disk is full")
        insert(self, connection, batch)

    insert = Replies._insert
    run.monkeypatch.setattr(Replies, "_insert", full)
    with (
        FakeServer() as server,
        pytest.raises(
            PawlError, match=r"the disk is full .*: the replies cannot be kept"
        ) as caught,
    ):
        run(server, concurrency=1)
    assert run.files() == {} and f"{run.kept()} of 38 answers are kept" in caught.value.fix
    assert server.requests < 38


def test_a_server_of_others_that_writes_todays_date_has_another_fingerprint_each_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def today(kind: str, base: dict[str, str]) -> dict[str, str]:
        return results.clock(cast(Config, SimpleNamespace(engine=SimpleNamespace(kind=kind))), base)

    assert set(today("external", {"date": "2024-07-26"})) == {"template_date"}
    assert today("vllm", {"date": "2024-07-26"}) == today("external", {}) == {}, (
        "older results keep their fingerprint"
    )
    monkeypatch.setattr(results, "date", SimpleNamespace(today=lambda: date(2031, 2, 3)))
    assert today("external", {"date": "2024-07-26"}) == {"template_date": "2031-02-03"}
