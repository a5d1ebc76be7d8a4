"""What of a failed stage's own words may be shown where the stage saw test items: our sentences,
without what was put into them.

A library quotes what it could not take, and `fix` and `where` are built from values too. So a fix
passes if it is a sentence of our source, its values replaced by "..." unless they are a path, a key
or a number; a place passes word by word on the same terms.
"""

from __future__ import annotations

import ast
import functools
import re

from stages.common.files import ROOT

LONGEST = 600
"""Characters of a message that are looked at."""
_VALUE = re.compile(r"-?\d[\d.,:%]*|[\w.-]*(?:[/_=]|\w\.\w|:\d)[\w./:=,@+-]*")
"""A path, a dotted key, a setting or a number: nothing that a sentence is made of."""
_PLACE = re.compile(r"row|rows|line|lines|item|column|in|and|or|the|override|to|of|file")
_MOST = 6
"""Values in one sentence: more would take long to match."""


def ours(text: str) -> str:
    """The text, where it is a sentence of ours, with what was put into it left out; else
    nothing.
    """
    text = " ".join(text[:LONGEST].split())
    for words, pattern in _sentences():
        if words in text and (found := pattern.fullmatch(text)):
            told, end = "", 0
            for index, value in enumerate(found.groups(), 1):
                told += text[end : found.start(index)] + _safe(value)
                end = found.end(index)
            return told + text[end:]
    return ""


def place(text: str) -> str:
    """Where it was: the words that are a path, a key, a number or one of a few others; each other
    one is "...".
    """
    line = text.strip().splitlines()[0][:LONGEST] if text.strip() else ""
    words = [word if _known(word.strip("()[],;'\"")) else "..." for word in line.split()]
    told = " ".join(
        word for at, word in enumerate(words) if word != "..." or words[at - 1 : at] != ["..."]
    )
    return "" if told == "..." else told


def _known(word: str) -> bool:
    return bool(_VALUE.fullmatch(word) or _PLACE.fullmatch(word))


def _safe(value: str) -> str:
    return value if all(map(_known, value.split())) else ours(value) or "..."


@functools.cache
def _sentences() -> list[tuple[str, re.Pattern[str]]]:
    """The texts of our source with three words or more, the longest first: the longest fixed part,
    and what matches the whole.
    """
    found: dict[str, tuple[str, re.Pattern[str]]] = {}
    for path in sorted((ROOT / "stages").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = _parts(node)
            fixed = [" ".join(part.split()) for part in parts if part is not None]
            longest = max(fixed, key=len, default="")
            if (
                len(re.findall(r"\w+", " ".join(fixed))) >= 3
                and len(longest) >= 6
                and parts.count(None) <= _MOST
                and sum(map(len, fixed)) <= LONGEST
            ):
                pattern = "".join(
                    "(.*?)" if part is None else re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(part))
                    for part in parts
                )
                found[pattern] = (longest, re.compile(pattern))
    return sorted(found.values(), key=lambda each: -len(each[0]))


def _parts(node: ast.AST) -> list[str | None]:
    """The fixed parts of a text in the source, None for each value that is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [str(part.value) if isinstance(part, ast.Constant) else None for part in node.values]
    return []
