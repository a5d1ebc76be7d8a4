"""Replies of language models on disk, each as it comes: a reply that was paid for is not asked for
again.

    with Replies(path) as replies:
        reply = replies.get(key_of(llm.model, messages))

A store is one SQLite file; several processes may share it. Whoever keeps one says by its path and
its keys which requests are the same, and how long it lives: a teacher's for good, an evaluation's
until its results are written. Only whole replies are kept, never a failure.
"""

from __future__ import annotations

import hashlib
import json
import queue
import sqlite3
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from stages.common.completion import Reply, odd
from stages.common.errors import PawlError, no_room

_COLUMNS = (
    "key BLOB PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, output_tokens"
    " INTEGER NOT NULL, finish_reason TEXT"
)
# what is odd about a reply; a table of its own, which older code does not miss
_ODD = "key BLOB PRIMARY KEY, odd TEXT NOT NULL"
_BATCH = 64
"""Replies in one transaction, and as many may wait for it: so few that a killed run loses little on
a slow disk too.
"""


def key_of(*parts: Any) -> bytes:
    """SHA-256 of all that a reply depends on, in one canonical form."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def remove(path: Path) -> None:
    """Delete a store that has done its work and is closed."""
    for part in (path, *path.parent.glob(f"{path.name}-*")):  # the write-ahead log too
        part.unlink(missing_ok=True)


class Replies:
    """A store of replies. Use it as a context manager; leaving it waits until everything is on
    disk.

    One thread writes, and takes what has come in meanwhile into one transaction. A reply is in the
    file a few milliseconds after `put`, which waits if the disk falls behind. `kill -9` loses at
    most `2 * _BATCH` replies and never damages the file (write-ahead log).
    """

    def __init__(self, path: Path) -> None:
        """Raises PawlError if the file is no such store, or cannot be opened."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._waiting: dict[bytes, Reply] = {}  # put, but not yet in the file
        self._queue: queue.Queue[tuple[bytes, Reply] | None] = queue.Queue(_BATCH)
        self._error: Exception | None = None
        try:
            self._reader = self._open()
            with self._reader:
                self._reader.execute(
                    f"CREATE TABLE IF NOT EXISTS replies ({_COLUMNS}) WITHOUT ROWID"
                )
                self._reader.execute(f"CREATE TABLE IF NOT EXISTS odd ({_ODD}) WITHOUT ROWID")
        except sqlite3.Error as error:
            raise self._explain(error) from None
        self._writer = threading.Thread(target=self._write, name="replies", daemon=True)
        self._writer.start()

    def __enter__(self) -> Replies:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send(None)
        self._writer.join()
        self._reader.close()
        if self._error and not error:
            raise self._explain(self._error)

    def get(self, key: bytes) -> Reply | None:
        """The reply kept under a key; one that could not be written is none."""
        if not self._error and (found := self._waiting.get(key)):
            return found
        try:
            row = self._reader.execute(
                "SELECT text, prompt_tokens, output_tokens, finish_reason, odd FROM replies LEFT"
                " JOIN odd USING (key) WHERE key = ?",
                (key,),
            ).fetchone()
            return (
                Reply(
                    _decode(row[0]),
                    row[1],
                    row[2],
                    _decode(row[3]),
                    **odd(json.loads(row[4] or "{}")),
                )
                if row
                else None
            )
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._explain(error) from None

    def put(self, key: bytes, reply: Reply) -> None:
        """Keep a reply.

        Raises:
            PawlError: an earlier one could not be written: nothing more is paid for that would be
                lost.
        """
        self._waiting[key] = reply
        self._send((key, reply))
        if self._error:
            raise self._explain(self._error)

    def _send(self, item: tuple[bytes, Reply] | None) -> None:
        while not self._error:
            try:
                return self._queue.put(item, timeout=0.1)
            except queue.Full:  # the disk is behind, or the writer is dead
                continue

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        # survives the death of the process; of the machine, up to the last checkpoint
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _write(self) -> None:
        try:
            connection = self._open()
            while (first := self._queue.get()) is not None:
                batch = [first]
                last = False
                while len(batch) < _BATCH and not last:
                    try:
                        more = self._queue.get_nowait()
                    except queue.Empty:
                        break
                    if more is None:
                        last = True
                    else:
                        batch.append(more)
                self._insert(connection, batch)
                if last:
                    break
            connection.close()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            # of a server's odd reply too: a dead writer must be noticed
            self._error = error

    def _insert(self, connection: sqlite3.Connection, batch: list[tuple[bytes, Reply]]) -> None:
        # one statement: the interpreter's lock is given up once for all rows, not once for each
        values = ", ".join(["(?, ?, ?, ?, ?)"] * len(batch))
        flat = [
            value
            for key, reply in batch
            for value in (
                key,
                _encode(reply.text),
                reply.prompt_tokens,
                reply.output_tokens,
                _encode(reply.finish_reason),
            )
        ]
        with connection:
            connection.execute(f"INSERT OR REPLACE INTO replies VALUES {values}", flat)
            told = [
                (key, json.dumps(oddities))
                for key, reply in batch
                if (oddities := reply.oddities())
            ]
            connection.executemany("INSERT OR REPLACE INTO odd VALUES (?, ?)", told)
        for key, _ in batch:
            self._waiting.pop(key, None)

    def _explain(self, error: Exception) -> PawlError:
        if "full" in str(error):
            full = no_room(self.path)
            return PawlError(
                f"{full.what}: the replies cannot be kept", where=full.where, fix=full.fix
            )
        fix = "if it is damaged, move it away: its replies are then asked for, and paid for, again"
        return PawlError(
            f"the store of replies cannot be used: {error}", where=str(self.path), fix=fix
        )


def _encode(text: str) -> str | bytes:
    """Text for SQLite, which takes no lone surrogates; bytes mark a text that has some."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _decode(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")
