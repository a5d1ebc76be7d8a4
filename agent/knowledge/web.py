"""Pages of the registry `agent.web.sources`, and no others: fetched once, their readable text kept
on disk. Cited as [source](URL).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from urllib.parse import quote

from agent.knowledge.cache import Cache
from stages.common import web as http
from stages.common.schema.loop import Web

_AGENT = "pawl-agent (reads documentation pages; one request a page and month)"
_HEADERS = {"User-Agent": _AGENT, "Accept": "text/html, text/plain"}
_REDIRECTS = 10


@dataclass(frozen=True)
class Fetched:
    """A page: what it is about (model, framework, problem), its address, its readable text and the
    day it was fetched; or why not.
    """

    about: str
    url: str
    text: str
    day: str
    failure: str = ""


def addresses(web: Web, repository: str, reported: str) -> list[tuple[str, str]]:
    """(about, url) of the pages that fit: those with {model} need a repository, those with
    {problem} a report.
    """
    found = []
    for page in web.sources.values():
        if ("{model}" in page.url and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository)) or (
            "{problem}" in page.url and not reported.strip()
        ):
            continue
        problem = quote(" ".join(re.findall(r"\w+", reported)[:8]), safe="")
        found.append(
            (
                page.about,
                page.url.replace("{model}", quote(repository, safe="/")).replace(
                    "{problem}", problem
                ),
            )
        )
    return found


def fetch(web: Web, wanted: Sequence[tuple[str, str]], cache: Cache) -> list[Fetched]:
    """Fetch pages side by side; each is bounded in time and size, and a redirect leads to no origin
    outside of the registry.
    """
    origins = {http.origin(page.url) for page in web.sources.values()}
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda page: _one(web, page[0], page[1], origins, cache), wanted))


def _one(
    web: Web, about: str, url: str, origins: set[tuple[str, str, int]], cache: Cache
) -> Fetched:
    text, day = cache.dated(url)
    if text is None:
        try:
            text = readable(_body(web, url, origins))
        except (OSError, ValueError, LookupError, RecursionError) as error:
            # LookupError: a charset that there is not
            return Fetched(
                about, url, "", "", " ".join(str(error).split())[:200] or type(error).__name__
            )
        if not text:
            return Fetched(about, url, "", "", "no readable text")
        cache.put(url, text)
        text, day = cache.dated(url)
    return Fetched(about, url, text or "", day)


def _body(web: Web, url: str, origins: set[tuple[str, str, int]]) -> str:
    ends, limit = time.monotonic() + web.timeout_s, int(web.max_mib * 2**20)
    for _ in range(_REDIRECTS):
        # for the whole page, its headers and its redirects too
        left = max(ends - time.monotonic(), 0.01)
        try:
            answer = http.fetch("GET", url, headers=_HEADERS, timeout_s=left, limit=limit)
        except http.Unusable as error:
            raise ValueError(f"{error}") from None
        to = http.redirected(answer, url)
        if not to:
            break
        if http.origin(to) not in origins:
            raise ValueError(f"redirected to {http.shown(to)}, which is not in the registry")
        url = to
    else:
        raise ValueError(f"more than {_REDIRECTS} redirects")
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status}")
    kind = Message()
    kind["Content-Type"] = answer.headers.get("Content-Type", "")
    return answer.body.decode(kind.get_content_charset() or "utf-8", "replace")


def readable(html: str) -> str:
    """The main text of a page, without navigation, scripts and markup; a text that is no HTML comes
    back as it is.
    """
    if "<" not in html[:2000]:
        return html.strip()
    import trafilatura

    text = trafilatura.extract(
        html, include_tables=True, include_comments=True, include_links=False, favor_recall=True
    )
    return (text or "").strip()
