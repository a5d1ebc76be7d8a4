"""Text that others wrote, made safe to show: names, hypotheses and labels are data on a page, in
Markdown, in a log.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from stages.common.redaction import redact

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that a reader cannot see, or that reorder what is seen (control, format,
surrogate, private, separators).
"""

_JOINERS = "\u200c\u200d"
"""Format characters that words of some scripts, and families of emoji, are spelt with."""


_LONGEST_SECRET = 4000
"""Characters looked at beyond what is shown: of a secret that is cut in two, no half could be
recognised.
"""


def visible(value: object, limit: int = 2000) -> str:
    """Text of at most `limit` characters in which every blank is a space, every unseen character is
    shown as U+FFFD, and no secret is.
    """
    text = redact(str(value)[: limit + _LONGEST_SECRET])[: limit + 1]
    if not text.isprintable():  # nearly every text is, and then holds neither
        text = "".join(map(_seen, text))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _seen(character: str) -> str:
    if character.isspace():
        return " "
    unseen = unicodedata.category(character) in _UNSEEN and character not in _JOINERS
    return "\N{REPLACEMENT CHARACTER}" if unseen else character


def plain(value: object, limit: int = 2000) -> str:
    """The same in one line, blanks collapsed and none at its ends."""
    return visible(" ".join(str(value)[: 4 * limit + _LONGEST_SECRET].split()), limit)


def markdown(value: object, limit: int = 2000) -> str:
    """Text as Markdown shows it unchanged: no HTML, link, emphasis, code or table cell begins
    inside it.
    """
    escaped = "".join(f"\\{c}" if c in "\\`*_[]|#~$!{}" else c for c in plain(value, limit))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def readable(value: Any) -> str:
    """A value as one line of JSON for a prompt: `<`, quotes and letters of every script as they
    are, what nobody sees as an escape.

    No text in it can end its own string or its line; a fence around it has to be a mark that it
    cannot hold.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return "".join(
        _escaped(c) if unicodedata.category(c) in _UNSEEN and c not in _JOINERS else c for c in text
    )


def _escaped(c: str) -> str:
    return json.dumps(c)[1:-1]
