"""HTTP with the limits that a foreign server needs: its answer ends by size and by time, errors
too, and no redirect is followed.

A redirect is an answer like another: a prompt or a key goes to the address that was declared, and
to no other.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

LONGEST_WAIT_S = 600.0
"""What Retry-After may ask for. A server that names a longer time is not asked again."""
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Answer:
    """A whole answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unusable(Exception):
    """No whole answer came; the message says why."""


def session(url: str, headers: Mapping[str, str], timeout_s: float, connections: int = 1) -> Any:
    """A connection pool, to be used as an async context manager. `timeout_s` is for a whole
    request: connection, headers and body.
    """
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers=dict(headers),
        # a proxy of the environment must not be asked for a server on this machine
        trust_env=urlsplit(url).hostname not in _LOOPBACK,
    )


async def exchange(pool: Any, method: str, url: str, body: bytes | None, limit: int) -> Answer:
    """One request and its answer of at most `limit` bytes.

    Raises:
        Unusable: no connection, no end in time, or an answer that is too long or broke off.
    """
    import aiohttp

    try:
        async with pool.request(method, url, data=body, allow_redirects=False) as response:
            parts, size = [], response.content_length or 0
            try:
                if size > limit:
                    raise Unusable(f"the answer is longer than {limit:,} bytes")
                size = 0
                # by pieces: without a Content-Length nothing else bounds it
                async for part in response.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        raise Unusable(f"the answer is longer than {limit:,} bytes")
            except Unusable:
                response.close()
                raise
            return Answer(response.status, response.headers, b"".join(parts))
    except TimeoutError:
        raise Unusable(f"the answer did not end within {pool.timeout.total:.3g} s") from None
    except aiohttp.ClientPayloadError as error:
        raise Unusable(f"the answer broke off: {error}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unusable(f"connection failed: {str(error) or type(error).__name__}") from None


def fetch(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    limit: int,
    body: bytes | None = None,
) -> Answer:
    """One request on a connection of its own. Raises Unusable as `exchange` does."""

    async def alone() -> Answer:
        async with session(url, headers, timeout_s) as pool:
            return await exchange(pool, method, url, body, limit)

    return asyncio.run(alone())


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address. Raises ValueError where it has none."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if not usual or not parts.hostname:
        raise ValueError("no address of a web page")
    return parts.scheme, parts.hostname, parts.port or usual


def redirected(answer: Answer, url: str) -> str:
    """Where an answer sends the client ("": nowhere)."""
    to = answer.headers.get("Location", "")
    return urljoin(url, to) if 300 <= answer.status < 400 and to else ""


def shown(url: str) -> str:
    """An address without user and query, which may be secrets."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"[:200]


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that Retry-After asks for, given as a number or as a date; 0 where it says
    nothing.
    """
    given = headers.get("Retry-After", "")
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(given).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
