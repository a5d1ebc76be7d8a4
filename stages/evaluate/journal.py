"""Finished replies on disk as they arrive, so that an evaluation that was killed asks only what is missing.

.pawl/eval/<key>.jsonl, one reply a line; the key is a hash of everything that shapes an answer but the question, and each line has a
hash of its conversation and repeat. Removed once the results are written; what a killed run left is kept for a week.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import IO, Any

from stages.common.completion import Reply, odd
from stages.common.files import sha256_text

_KEPT_S = 7 * 24 * 3600


def request_key(messages: list[dict[str, str]], repeat: int) -> str:
    return sha256_text(json.dumps([messages, repeat], ensure_ascii=True, sort_keys=True))[:32]


class Journal:
    """The replies of one evaluation; opened for appending with the first new one."""

    def __init__(self, folder: Path, shaping: dict[str, Any]) -> None:
        self.path = folder / f"{sha256_text(json.dumps(shaping, sort_keys=True, default=str))[:32]}.jsonl"
        self.replies = self._read()
        self._file: IO[str] | None = None
        for old in folder.glob("*.jsonl") if folder.is_dir() else ():
            if old != self.path and time.time() - old.stat().st_mtime > _KEPT_S:
                old.unlink(missing_ok=True)

    def _read(self) -> dict[str, Reply]:
        """What an earlier run got; a line that a kill or a full disk cut short counts as missing."""
        found: dict[str, Reply] = {}
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return found
        for line in lines:
            try:
                row = json.loads(line)
                counts = int(row["prompt_tokens"]), int(row["output_tokens"])
                reply = Reply(str(row["text"]), *counts, str(row["finish_reason"]), **odd(row.get("odd", {})))
                found[str(row["key"])] = reply
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, key: str, reply: Reply) -> None:
        """Write a reply down before anything else is done with it.

        Raises:
            OSError: the disk is full.
        """
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a", encoding="ascii")  # noqa: SIM115 - closed with the journal
            self._file.write("\n" if self.replies else "")  # the last line may be torn
        row = {"key": key, "text": reply.text, "prompt_tokens": reply.prompt_tokens, "output_tokens": reply.output_tokens}
        more = {"odd": oddities} if (oddities := reply.oddities()) else {}
        try:
            self._file.write(json.dumps({**row, "finish_reason": reply.finish_reason, **more}) + "\n")
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise
        self.replies[key] = reply

    def close(self) -> None:
        if self._file:
            try:
                self._file.close()
            finally:
                self._file = None

    def remove(self) -> None:
        """The results are written: the journal has done its work."""
        self.close()
        self.path.unlink(missing_ok=True)
