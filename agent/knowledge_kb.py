"""The knowledge base: the Leeroopedia MCP server, spoken to over stdio by the `mcp` client. Cited as [PageID: x]."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from agent.knowledge_cache import Cache
from stages.common.errors import PawlError
from stages.common.schema.loop import KnowledgeBase

_SERVER = "from leeroopedia_mcp.server import main; main()"
_REFUSED = re.compile(
    r"(authentication error|insufficient credits|rate limit exceeded|search timed out|api error|unexpected error|missing required argument"
    r"|unknown tool|no results returned)\b", re.IGNORECASE,
)  # fmt: skip
"""How the server words a failure: it answers with text all the same."""
_CREDITS = re.compile(r"\n+---\n\*Credits remaining: [^\n]*\*\s*$")
_CITED = re.compile(r"\[(?:PageID:\s*)?([A-Za-z][\w.-]*/[\w.:-]+)\](?!\()")
_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
)

Question = tuple[str, dict[str, str]]
"""A tool's name and its arguments."""


class Refused(Exception):
    """The knowledge base did not answer; the message never holds the key."""


def ask(base: KnowledgeBase, questions: Sequence[Question], cache: Cache) -> list[tuple[str, str]]:
    """(citation, text) of the pages that the answers cite, in order; what is in the cache is not paid for again.

    Raises:
        Refused: no key, no server, or a question that failed.
    """
    texts = [cache.get(_name(*question)) for question in questions]
    asked = [question for question, text in zip(questions, texts, strict=True) if text is None]
    fetched: dict[str, str] = {}
    cited = _pages(text for text in texts if text)
    todo = [page for page in cited[: base.pages] if cache.get(_name("get_page", {"page_id": page})) is None]
    if asked or todo:
        key = os.environ.get(base.api_key_env, "").strip() if base.api_key_env else ""
        if not key:
            raise Refused(f"the environment variable {base.api_key_env or '(none is named)'} holds no key")
        try:
            fetched = asyncio.run(
                asyncio.wait_for(_converse(base, key, asked, todo, cited), base.timeout_s * (len(asked) + base.pages + 1))
            )
        except Refused:
            raise
        except BaseExceptionGroup as group:  # anyio wraps what went wrong inside its tasks
            raise Refused(_cause(group, key)) from None
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise Refused(_cause(error, key)) from None
    for name, text in fetched.items():
        cache.put(name, text)
    answers = [cache.get(_name(*question)) or "" for question in questions]
    return [(f"[PageID: {page}]", text) for page in _pages(answers) if (text := _text(page, answers, cache))]


def _text(page: str, answers: Sequence[str], cache: Cache) -> str:
    """What is known of a page: itself where it was read, and the paragraphs of the answers that cite it."""
    whole = cache.get(_name("get_page", {"page_id": page})) or ""
    paragraphs = [part.strip() for answer in answers for part in answer.split("\n\n") if page in _CITED.findall(part)]
    return "\n\n".join(part for part in (whole, *paragraphs) if part)


def _name(tool: str, arguments: dict[str, str]) -> str:
    return f"{tool} {sorted(arguments.items())}"


def _pages(texts: Any) -> list[str]:
    return list(dict.fromkeys(page for text in texts for page in _CITED.findall(text)))


async def _converse(base: KnowledgeBase, key: str, asked: Sequence[Question], todo: Sequence[str], cited: Sequence[str]) -> dict[str, str]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    env = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"LEEROOPEDIA_API_KEY": key}
    env["LEEROOPEDIA_POLL_MAX_WAIT"] = str(max(1, int(base.timeout_s)))
    if base.url:
        env["LEEROOPEDIA_API_URL"] = base.url
    found: dict[str, str] = {}
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # its log may repeat the key
        server = StdioServerParameters(command=sys.executable, args=["-c", _SERVER], env=env)
        async with stdio_client(server, errlog=nowhere) as (read, write):
            async with ClientSession(read, write, read_timeout_seconds=timedelta(seconds=base.timeout_s + 10)) as session:
                await session.initialize()

                async def one(tool: str, arguments: dict[str, str]) -> str:
                    answer = await session.call_tool(tool, arguments)
                    text = "\n".join(part.text for part in answer.content if part.type == "text")
                    text = _CREDITS.sub("", text).replace(key, "[key]")
                    if answer.isError or _REFUSED.match(text.strip()):
                        raise Refused(" ".join(text.split())[:300])
                    return text

                answers = await asyncio.gather(*(one(tool, arguments) for tool, arguments in asked))
                found |= {_name(*question): text for question, text in zip(asked, answers, strict=True)}
                pages = [*todo, *(page for page in _pages(answers) if page not in cited)][: base.pages]
                for page, text in zip(pages, await asyncio.gather(*(_page(one, page) for page in pages)), strict=True):
                    found[_name("get_page", {"page_id": page})] = text
    return found


async def _page(one: Any, page: str) -> str:
    try:
        return str(await one("get_page", {"page_id": page}))
    except Refused:
        return ""  # an answer may name a page that there is not; then no quote of it passes


def _cause(error: BaseException, key: str) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    text = error.what if isinstance(error, PawlError) else f"{type(error).__name__}: {error}"
    return " ".join(text.replace(key, "[key]").split())[:300]
