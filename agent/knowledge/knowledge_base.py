"""The knowledge base: the Leeroopedia MCP server, spoken to over stdio by the `mcp` client. Cited
as [PageID: x].
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agent.knowledge.cache import Cache
from stages.common.schema.loop import KnowledgeBase

_SERVER = "from leeroopedia_mcp.server import main; main()"
_REFUSED = re.compile(
    r"(authentication error|insufficient credits|rate limit exceeded|search timed out|api"
    r" error|unexpected error|missing required argument"
    r"|unknown tool|no results returned)\b",
    re.IGNORECASE,
)
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


@dataclass(frozen=True)
class Question:
    """A tool's name and its arguments; `about` is the angle that its answers cover: model,
    framework, problem.
    """

    tool: str
    arguments: dict[str, str]
    about: str = "framework"


class Refused(Exception):
    """The knowledge base did not answer; the message never holds the key."""


@dataclass(frozen=True)
class Page:
    """A page that answers cite: its citation, the angles of the questions whose answers cite it,
    and what is known of it.
    """

    citation: str
    angles: frozenset[str]
    text: str


def ask(
    base: KnowledgeBase, questions: Sequence[Question], cache: Cache
) -> tuple[list[Page], list[str]]:
    """The pages that the answers cite, in order, and the failures of single questions; what is in
    the cache is not paid for again.

    Raises:
        Refused: no key, no server, no question answered, or answers that cite no page.
    """
    texts = [cache.get(_name(question)) for question in questions]
    asked = [question for question, text in zip(questions, texts, strict=True) if text is None]
    failures: list[str] = []
    cited = _pages(text for text in texts if text)
    todo = [page for page in cited[: base.pages] if cache.get(_name(_page(page))) is None]
    if asked or todo:
        key = os.environ.get(base.api_key_env, "").strip() if base.api_key_env else ""
        if not key:
            raise Refused(
                f"the environment variable {base.api_key_env or '(none is named)'} holds no key"
            )
        try:
            conversation = _converse(base, key, asked, todo, cited, cache)
            failures = asyncio.run(
                asyncio.wait_for(conversation, base.timeout_s * (len(asked) + base.pages + 1))
            )
        except BaseExceptionGroup as group:  # anyio wraps what went wrong inside its tasks
            raise Refused(_cause(group, key)) from None
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise Refused(_cause(error, key)) from None
    answers = [cache.get(_name(question)) or "" for question in questions]
    if failures and not any(answers):
        raise Refused(failures[0])
    angles = {
        page: frozenset(
            q.about
            for q, answer in zip(questions, answers, strict=True)
            if page in _pages([answer])
        )
        for page in _pages(answers)
    }
    found = [
        Page(f"[PageID: {page}]", angles[page], text)
        for page in angles
        if (text := _text(page, answers, cache))
    ]
    if not found:
        raise Refused("it answered without naming a page, so nothing of it can be cited")
    return found, failures


def _text(page: str, answers: Sequence[str], cache: Cache) -> str:
    """What is known of a page: itself where it was read, and the paragraphs of the answers that
    cite it.
    """
    whole = cache.get(_name(_page(page))) or ""
    paragraphs = [
        part.strip()
        for answer in answers
        for part in answer.split("\n\n")
        if page in _CITED.findall(part)
    ]
    return "\n\n".join(part for part in (whole, *paragraphs) if part)


def _name(question: Question) -> str:
    return f"{question.tool} {sorted(question.arguments.items())}"


def _page(page: str) -> Question:
    return Question("get_page", {"page_id": page})


def _pages(texts: Any) -> list[str]:
    return list(dict.fromkeys(page for text in texts for page in _CITED.findall(text)))


async def _converse(
    base: KnowledgeBase,
    key: str,
    asked: Sequence[Question],
    todo: Sequence[str],
    cited: Sequence[str],
    cache: Cache,
) -> list[str]:
    """Put each answer into the cache as it comes, since each is paid for; return why questions
    failed.
    """
    from mcp import ClientSession, McpError, StdioServerParameters
    from mcp.client.stdio import stdio_client

    env = {name: os.environ[name] for name in _KEPT if name in os.environ} | {
        "LEEROOPEDIA_API_KEY": key
    }
    env["LEEROOPEDIA_POLL_MAX_WAIT"] = str(max(1, int(base.timeout_s)))
    if base.url:
        env["LEEROOPEDIA_API_URL"] = base.url
    failures: list[str] = []
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # its log may repeat the key
        server = StdioServerParameters(command=sys.executable, args=["-c", _SERVER], env=env)
        async with stdio_client(server, errlog=nowhere) as (read, write):
            async with ClientSession(
                read, write, read_timeout_seconds=timedelta(seconds=base.timeout_s + 10)
            ) as session:
                await session.initialize()

                async def one(question: Question) -> str:
                    try:
                        answer = await session.call_tool(question.tool, question.arguments)
                    except McpError as error:
                        failures.append(_line(str(error), key))
                        return ""
                    text = "\n".join(part.text for part in answer.content if part.type == "text")
                    text = _CREDITS.sub("", text).replace(key, "[key]")
                    if answer.isError or _REFUSED.match(text.strip()):
                        # an answer may name a page that does not exist; then no quote of it passes
                        if question.tool != "get_page":
                            failures.append(_line(text, key))
                        return ""
                    if text.strip():
                        cache.put(_name(question), text)
                    return text

                answers = await asyncio.gather(*(one(each) for each in asked))
                pages = [*todo, *(page for page in _pages(answers) if page not in cited)][
                    : base.pages
                ]
                await asyncio.gather(*(one(_page(page)) for page in pages))
    return failures


def _cause(error: BaseException, key: str) -> str:
    """What went wrong, in one line."""
    found = list(_leaves(error))
    if stop := next(
        (each for each in found if isinstance(each, KeyboardInterrupt | SystemExit)), None
    ):
        raise stop
    return _line(f"{type(found[0]).__name__}: {found[0]}", key)


def _line(text: str, key: str) -> str:
    return " ".join(text.replace(key, "[key]").split())[:300]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
