"""How a claim names its source, and how a text is taken apart to see whether it does.

[PageID: Workflow/QLoRA]                    a page of the knowledge base
[source](https://host/path)                 a page of the web
[lib: peft==0.18.1 peft.LoraConfig.r]       an installed package, in the version that runs
[experiment: 0002-max-steps-24]             an experiment of ours
[model card]                                what lies beside the base model: its configuration and
its README [situation]                                 the present state: model, data, hardware,
scores, parameters [unverified]                                nothing: a claim from memory
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TAG = re.compile(
    r"\[PageID:\s*(?P<page>[^\]\n]+?)\s*\]|\[[^\]\n]*\]\((?P<url>https?://[^\s)]+)\)|\[lib:\s*(?P<lib>[^\]\n]+?)\s*\]"
    r"|\[experiment:\s*(?P<experiment>[^\]\n]+?)\s*\]|(?P<plain>\[situation\]|\[model"
    r" card\]|\[unverified\])"
)
UNVERIFIED = "[unverified]"
SITUATION = "[situation]"
_PERCENT = re.compile(r" ?(%|per ?cent\b)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?")


def tags(text: str) -> list[str]:
    """The sources that a text names, in order, each in its one form."""
    return [_form(found) for found in _TAG.finditer(text)]


def _form(found: re.Match[str]) -> str:
    if found["page"]:
        return f"[PageID: {found['page']}]"
    if found["url"]:
        return f"[source]({found['url']})"
    if found["lib"]:
        return f"[lib: {' '.join(found['lib'].split())}]"
    return f"[experiment: {found['experiment']}]" if found["experiment"] else found["plain"]


def split(text: str) -> list[tuple[str, str]]:
    """A text in pieces, each with the source that it names, "" where it is prose."""
    parts, end = [], 0
    for found in _TAG.finditer(text):
        parts += [(text[end : found.start()], ""), (found[0], _form(found))]
        end = found.end()
    return [(part, name) for part, name in [*parts, (text[end:], "")] if part]


def tag(citation: str) -> str:
    """The one form of a citation that stands alone; "" where it is none."""
    found = tags(citation)
    return found[0] if len(found) == 1 and not without_tags(citation).strip() else ""


def own(citation: str) -> bool:
    """Whether a citation is of our own state or experiments: facts of ours, and no authority for
    what to do.
    """
    return citation == SITUATION or citation.startswith("[experiment: ")


def without_tags(text: str) -> str:
    return _TAG.sub(" ", text)


def sentences(text: str) -> list[str]:
    """Sentences, each with the tags that follow its end; a line break ends one too. Not a full stop
    within a number, a key or a tag.
    """
    held: list[str] = []

    def hold(found: re.Match[str]) -> str:
        held.append(found[0])
        return f"\0{len(held) - 1}\0"

    masked = _TAG.sub(hold, text)
    parts = re.split(r"(?<=[.!?;])((?:\s*\0\d+\0)*)(?:\s+|$)|\n+", masked)
    whole, k = [], 0
    while k < len(parts):
        after = parts[k + 1] if k + 1 < len(parts) else None
        sentence = f"{parts[k] or ''}{after or ''}".strip()
        if sentence:
            whole.append(re.sub(r"\0(\d+)\0", lambda found: held[int(found[1])], sentence))
        k += 2
    return whole


def readings(text: str) -> list[tuple[float, ...]]:
    """The numbers of a text, each as the values that it may be: 1e-3, 0.001 and 1,000 are read, 5 %
    is 5 and 0.05.

    Digits within a word (SmolLM2, fp16) are none.
    """
    return [values for _, _, values in readings_at(text)]


def readings_at(text: str) -> list[tuple[int, int, tuple[float, ...]]]:
    """The same, each with where it begins and ends."""
    found: list[tuple[int, int, tuple[float, ...]]] = []
    for match in _NUMBER.finditer(text):
        rest = text[match.end() : match.end() + 1]
        if rest.isalpha() or rest == "_":
            continue
        try:
            value = float(match[0].replace(",", ""))
        except ValueError:
            continue  # 1.2.3: a version
        values = (value, value / 100) if _PERCENT.match(text, match.end()) else (value,)
        found.append((match.start(), match.end(), values))
    return found


def numbers(text: str) -> list[float]:
    return [value for values in readings(text) for value in values]


def _joins(character: str) -> bool:
    """Whether a word or a number may go on at this character."""
    return character.isalnum() or (character != "" and character in ".,+-")


def holds(source: str, quote: str) -> bool:
    """Whether a quote stands in a source, word for word and number for number: "a rank of 1" is not
    in "a rank of 16".
    """
    said = normal(quote)
    first, last = said[:1], said[-1:]
    before = r"(?<!\w)" if _joins(first) else ""
    after = r"(?!\w)" if _joins(last) else ""
    if first.isdigit():
        before = r"(?<![\w.+-])"
    if last.isdigit():
        after = r"(?!\w|[.,]\d| ?%)"
    return bool(said) and re.search(before + re.escape(said) + after, normal(source)) is not None


def normal(text: str) -> str:
    """Words and signs in one form, so that a quote is found whatever its line breaks, quotation
    marks and capitals.
    """
    text = text.translate(
        {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "-", 0x00A0: " "}
    )
    return " ".join(text.replace("`", "").replace("*", "").split()).casefold()


def words(text: str) -> int:
    return len(text.split())


def known_numbers(texts: Iterable[str]) -> set[float]:
    return {value for text in texts for value in numbers(text)}
