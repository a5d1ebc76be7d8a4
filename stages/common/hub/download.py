"""One file over HTTP, onto disk: it goes on where it ended, comes in bounded time, and is what it
was said to be.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from stages.common import web
from stages.common.errors import PawlError, no_room
from stages.common.files import sha256_file
from stages.common.hub import access

_SILENCE_S = 30.0
"""How long a connection may say nothing."""
_WINDOW_S = 120.0
_LEAST_BYTES = 2**20
"""What has to come in each window, and in an attempt that counts as progress."""
_ATTEMPTS = 4
"""Attempts in a row that bring less."""
_WAIT_S = 1.0


@dataclass(frozen=True)
class File:
    """Size in bytes, and the SHA-256 of a large file or Git's SHA-1 of a small one."""

    size: int
    digest: str


@dataclass(frozen=True)
class Download:
    """A file on its way from `url` to `partial`, which may hold its beginning.

    `refuse` raises an error for what the hub's status and headers mean; `came` is told how many
    bytes each piece has.
    """

    pool: Any
    url: str
    partial: Path
    file: File
    refuse: Callable[[int, Mapping[str, str]], None]
    came: Callable[[int], None]

    async def run(self) -> None:
        """Bring the file.

        Raises:
            PawlError: no room, no access, other bytes than listed, or too little came; what came
                stays in `partial`.
        """
        for _ in range(2):
            await self._fill()
            if await asyncio.to_thread(is_whole, self.partial, self.file):
                return
            self.partial.unlink()  # perhaps an earlier run's beginning was damaged
        fix = "run again; if it stays so, the mirror (HF_ENDPOINT) or the cache's disk is at fault"
        raise PawlError(
            "the hub sent other bytes than its listing says, twice",
            where=web.shown(self.url),
            fix=fix,
        )

    async def _fill(self) -> None:
        fruitless = 0
        while True:
            before = self._have()
            try:
                return await self._attempt(before)
            except web.Unusable as error:
                fruitless = 0 if self._have() - before >= _LEAST_BYTES else fruitless + 1
                if fruitless == _ATTEMPTS:
                    fix = (
                        "run again later: it goes on where it ended; or set HF_ENDPOINT to a mirror"
                    )
                    what = f"the download broke off {_ATTEMPTS} times in a row: {error}"
                    raise PawlError(what, where=web.shown(self.url), fix=fix) from None
            await asyncio.sleep(_WAIT_S * 2**fruitless)

    def _have(self) -> int:
        size = self.partial.stat().st_size if self.partial.is_file() else 0
        if size > self.file.size:
            self.partial.unlink()
            return 0
        return size

    async def _attempt(self, have: int) -> None:
        """Append to the `have` bytes that are there until all are.

        Raises:
            web.Unusable: it ended before, too slowly, or not at all.
        """
        import aiohttp

        if have == self.file.size:  # an empty file has no range to ask for
            return self.partial.touch()
        headers = access.headers() | ({"Range": f"bytes={have}-"} if have else {})
        try:
            response, at = await self._answered(headers)
            async with response:
                await self._check(response, at)
                goes_on = response.status == 206
                if goes_on and not response.headers.get("Content-Range", "").startswith(
                    f"bytes {have}-"
                ):
                    raise web.Unusable("it sent another part of the file than was asked for")
                await self._write(response, have if goes_on else 0)
        except TimeoutError:
            raise web.Unusable(f"nothing came for {_SILENCE_S:.0f} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise web.Unusable(
                f"the connection failed: {str(error) or type(error).__name__}"
            ) from None

    async def _answered(self, headers: Mapping[str, str]) -> tuple[Any, str]:
        """The first answer that is no redirect, and its address; the token goes to the hub
        alone.
        """
        import aiohttp
        from yarl import URL

        at = self.url
        limits = aiohttp.ClientTimeout(total=None, connect=_SILENCE_S, sock_read=_SILENCE_S)
        for _ in range(access.HOPS):
            sent = access.headers_for(at, self.url, headers)
            address = URL(at, encoded=True)  # a signed address holds only as it was written
            request = self.pool.get(address, headers=sent, allow_redirects=False, timeout=limits)
            response = await asyncio.wait_for(request, _SILENCE_S)  # headers may come byte by byte
            location = response.headers.get("Location", "")
            if not 300 <= response.status < 400 or not location:
                return response, at
            response.close()
            at = urljoin(at, location)
        raise web.Unusable(f"it redirects more than {access.HOPS} times")

    async def _check(self, response: Any, at: str) -> None:
        """Whether this answer is the file or a part of it."""
        if response.status == 429 or response.status >= 500:
            wait = web.retry_after(response.headers)
            await asyncio.sleep(wait if wait <= web.LONGEST_WAIT_S else 0)
            raise web.Unusable(access.busy(response.status, wait))
        if response.status == 416:
            self.partial.unlink(missing_ok=True)
            raise web.Unusable("it cannot go on in the middle of this file")
        if web.origin(at) == web.origin(self.url):
            self.refuse(response.status, response.headers)
        elif response.status not in (200, 206):
            # of a store of files; an address that it was given may have run out
            raise web.Unusable(f"{web.shown(at)} answers {response.status}")

    async def _write(self, response: Any, have: int) -> None:
        begun, before, now = time.monotonic(), have, have
        with self._open("ab" if have else "wb") as file:
            async for part in response.content.iter_any():
                now += len(part)
                if now > self.file.size:
                    raise web.Unusable(
                        f"it sent more than the {self.file.size:,} bytes that it lists"
                    )
                self._append(file, part)
                self.came(len(part))
                if time.monotonic() - begun > _WINDOW_S:
                    if now - before < _LEAST_BYTES:
                        raise web.Unusable(
                            f"only {now - before:,} bytes came within {_WINDOW_S:.0f} s"
                        )
                    begun, before = time.monotonic(), now
        if now < self.file.size:
            raise web.Unusable(f"it ended after {now:,} of {self.file.size:,} bytes")

    def _open(self, mode: str) -> Any:
        try:
            return open(self.partial, mode, buffering=0)
        except OSError as error:
            raise self._told(error) from None

    def _append(self, file: Any, part: bytes) -> None:
        try:
            while part:
                part = part[file.write(part) :]
        except OSError as error:
            raise self._told(error) from None

    def _told(self, error: OSError) -> Exception:
        """The error for a disk that takes no more, or the one that it was."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return OSError(error.errno, error.strerror, str(self.partial))
        told = no_room(self.partial, quota=error.errno == errno.EDQUOT)
        fix = (
            f"{told.fix}: the download goes on where it ended; or set HF_HOME to a folder on a"
            " larger disk"
        )
        return PawlError(told.what, where=told.where, fix=fix)


def is_whole(path: Path, file: File) -> bool:
    """Whether a path holds the bytes of `file`; they are then on the disk."""
    with open(path, "rb") as opened:
        os.fsync(opened.fileno())
    if len(file.digest) == 64:
        return sha256_file(path) == file.digest
    content = path.read_bytes()
    return (
        hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        == file.digest
    )
