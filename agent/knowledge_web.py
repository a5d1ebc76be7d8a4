"""Pages of the registry `agent.web.sources`, and no others: fetched once, their readable text kept on disk. Cited as [source](URL)."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from agent.knowledge_cache import Cache
from stages.common.schema.loop import Web

_AGENT = "pawl-agent (reads documentation pages; one request a page and month)"
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Fetched:
    """A page: what it is about (model, framework, problem), its address, its readable text and the day it was fetched; or why not."""

    about: str
    url: str
    text: str
    day: str
    failure: str = ""


def addresses(web: Web, repository: str, reported: str) -> list[tuple[str, str]]:
    """(about, url) of the pages that fit: those with {model} need a repository, those with {problem} a report."""
    found = []
    for page in web.sources.values():
        if ("{model}" in page.url and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository)) or (
            "{problem}" in page.url and not reported.strip()
        ):
            continue
        problem = quote(" ".join(re.findall(r"\w+", reported)[:8]), safe="")
        found.append((page.about, page.url.replace("{model}", quote(repository, safe="/")).replace("{problem}", problem)))
    return found


def fetch(web: Web, wanted: Sequence[tuple[str, str]], cache: Cache) -> list[Fetched]:
    """Fetch pages side by side; each is bounded in time and size, and a redirect leads to no host outside of the registry."""
    hosts = {urlsplit(page.url).hostname or "" for page in web.sources.values()}
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda page: _one(web, page[0], page[1], hosts, cache), wanted))


def _one(web: Web, about: str, url: str, hosts: set[str], cache: Cache) -> Fetched:
    text, day = cache.dated(url)
    if text is None:
        try:
            text = readable(_body(web, url, hosts))
        except (OSError, ValueError, LookupError, HTTPException, RecursionError) as error:  # LookupError: a charset that there is not
            return Fetched(about, url, "", "", " ".join(str(error).split())[:200] or type(error).__name__)
        if not text:
            return Fetched(about, url, "", "", "no readable text")
        cache.put(url, text)
        text, day = cache.dated(url)
    return Fetched(about, url, text or "", day)


class _SameRegistry(urllib.request.HTTPRedirectHandler):
    def __init__(self, hosts: set[str]) -> None:
        self.hosts = hosts

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).hostname not in self.hosts or urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"redirected to {urlsplit(newurl).hostname}, which is not in the registry")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _body(web: Web, url: str, hosts: set[str]) -> str:
    handlers: list[Any] = [_SameRegistry(hosts)]
    if urlsplit(url).hostname in _LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT, "Accept": "text/html, text/plain"})
    limit = int(web.max_mib * 2**20)
    ends, body = time.monotonic() + web.timeout_s, b""
    with opener.open(request, timeout=web.timeout_s) as answer:
        while part := answer.read1(2**16):  # by pieces: the opener's own timeout is for each of them
            body += part
            if len(body) > limit:
                raise ValueError(f"longer than {web.max_mib:g} MiB")
            if time.monotonic() > ends:
                raise TimeoutError(f"did not end within {web.timeout_s:g} s")
        if answer.length:  # by pieces, a connection that breaks off is no error
            raise ValueError(f"broke off, {answer.length} bytes before its end")
        return str(body.decode(answer.headers.get_content_charset() or "utf-8", "replace"))


def readable(html: str) -> str:
    """The main text of a page, without navigation, scripts and markup; a text that is no HTML comes back as it is."""
    if "<" not in html[:2000]:
        return html.strip()
    import trafilatura

    text = trafilatura.extract(html, include_tables=True, include_comments=True, include_links=False, favor_recall=True)
    return (text or "").strip()
