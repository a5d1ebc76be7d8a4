"""A reply on disk is whole or not there, whatever it holds and however the process ends."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from stages.common.completion import Reply
from stages.common.errors import PawlError
from stages.common.replies import _BATCH, Replies, remove


def test_any_text_survives_the_cache(tmp_path: Path) -> None:
    wild = ["", "\0\x1b\r\n", "lone \ud800", "x" * 2**20, "'; DROP TABLE replies; --"]
    for _ in range(2):
        with Replies(tmp_path / "r.sqlite") as replies:
            for number, text in enumerate(wild):
                reply = Reply(text, 1, 2, f"stop {text}")
                assert replies.get(bytes([number])) in (None, reply)
                replies.put(bytes([number]), reply)
    with Replies(tmp_path / "r.sqlite") as replies:
        assert [
            found.text for number in range(5) if (found := replies.get(bytes([number])))
        ] == wild


def test_a_reply_that_no_cache_can_hold_is_an_error_and_not_the_end_of_the_cache(
    tmp_path: Path,
) -> None:
    replies = Replies(tmp_path / "r.sqlite")
    replies.put(b"1", Reply("", 2**70, 1, "stop"))
    with pytest.raises(PawlError, match="cannot be used: Python int too large"):
        replies.__exit__(None, None, None)


def test_a_slow_disk_holds_replies_back_so_that_a_kill_loses_few(tmp_path: Path) -> None:
    path, kept = tmp_path / "r.sqlite", []
    numbers = range(5 * _BATCH)
    with Replies(path) as replies:
        disk = sqlite3.connect(path, isolation_level=None)
        disk.execute("BEGIN IMMEDIATE")  # nobody else can write

        def keep() -> None:
            for number in numbers:
                replies.put(str(number).encode(), Reply("x", 1, 1, "stop"))
                kept.append(number)

        teacher = threading.Thread(target=keep, daemon=True)
        teacher.start()
        teacher.join(1)
        assert len(kept) <= 2 * _BATCH
        disk.execute("ROLLBACK")
        disk.close()
        teacher.join(60)
    with Replies(path) as replies:
        assert all(replies.get(str(number).encode()) for number in numbers)


def test_a_damaged_cache_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(PawlError, match="cannot be used") as error:
        Replies(path)
    assert str(path) in error.value.where
    assert path.read_bytes().startswith(b"this is no database")


def test_a_reply_that_the_disk_had_no_room_for_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(
        PawlError, match=r"the disk is full .*: the replies cannot be kept"
    ) as caught:
        with Replies(tmp_path / "r.sqlite") as replies:
            replies.put(b"1", Reply("kept", 1, 1, "stop"))
            while replies._waiting:
                pass
            monkeypatch.setattr(Replies, "_insert", full)
            replies.put(b"2", Reply("lost", 1, 1, "stop"))
            replies._writer.join()
            assert (replies.get(b"1") is None, replies.get(b"2") is None) == (False, True)
    assert str(tmp_path) in caught.value.where


def test_a_store_that_is_removed_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    open_elsewhere = Replies(path)  # its write-ahead log is still there
    open_elsewhere.put(b"1", Reply("x", 1, 1, "stop"))
    remove(path)
    assert not list(tmp_path.iterdir())
