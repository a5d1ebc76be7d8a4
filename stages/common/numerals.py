"""Numbers as people and models write them: 8,000, 9{,}500, -5 with a minus sign, 1.234,56, 1/2, 50
%, 1.5e3, 2 million, other digits.
"""
# ruff: noqa: RUF001  full-width letters, quotation marks and signs of multiplication are what is
# read here

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

_KEPT = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")  # 2⁵ is not 25
_UNSEEN = re.compile("[\u00ad\u200b\u2060\ufeff]")
_GROUPS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}"
_BLANKS = r"\d{1,3}(?:[ '’]\d{3})+(?:[.,]\d+)?"
_BODY = rf"(?:(?:{_GROUPS}|{_BLANKS})(?![\d]|[.,]\d)|\d+\.\d+|(?<!\d,)\d+,\d+(?!,?\d)|\d+|\.\d+)"
_NUMBER = re.compile(
    rf"(?:(?<![\w.)\]])(?P<sign>[-+])|(?<![\w.,])|(?<=\d,))(?:(?P<whole>\d+)\s+(?=\d+\s?/\s?\d))?(?P<body>{_BODY})"
    r"(?:\s?/\s?(?P<below>\d+(?:\.\d+)?)(?![\d/]))?(?:\s*(?:×|\\times|\\cdot|\*|x)\s*10\s*\^\s*\{?(?P<ten>[-+]?\d{1,3})\}?|[eE](?P<e>[-+]?\d{1,3})"
    r"(?![\d.])|\s*\^\s*\{?(?P<power>\d{1,2})\}?)?(?P<unit>[kK]\b|\s*(?:hundred|thousand|million|billion|trillion)\b)?\s*(?P<percent>%)?"
)
_SCALES = {
    "k": 1000,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_UNDER = re.compile(r"(?:√|\\?sqrt\s?[({\[]?|\\pm|±|\+/-)\s?$")
_BESIDE = re.compile(r"\s?(?:\\?(?:pi|sqrt)(?![a-z])|π|√)")
"""What makes another number of the one after or before it: a root, pi, both signs."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_VULGAR = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_WHOLE = re.compile(r"-?[1-9]\d*")
_OTHERWISE = re.compile(
    r"[^\x00-\x7f]|[/^%\\*]|\d\s?[ek]|hundred|thousand|million|billion|trillion", re.IGNORECASE
)
_NO_DIGITS = re.compile(r"\D+")
_LONGEST = 300  # digits of a number that is read


@dataclass(frozen=True)
class Number:
    """A number in a text, and where it stands there."""

    value: Fraction
    start: int
    end: int
    percent: bool = False


def fold(text: str) -> str:
    """The form in which texts are compared: composed, of normal width, the minus sign a hyphen,
    without characters that do not show.

    It is NFKC, except that what is raised, lowered, circled or a fraction stays what it is.
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFC", _UNSEEN.sub("", text)).replace("\u2212", "-")
    if unicodedata.is_normalized("NFKC", composed):
        return composed
    return "".join(
        part
        if unicodedata.decomposition(part).startswith(_KEPT)
        else unicodedata.normalize("NFKC", part)
        for part in composed
    )


def plain(text: str) -> str:
    """A text without what surrounds numbers in LaTeX, Markdown and money, its digits ASCII."""
    text = fold(text)
    text = "".join(
        str(unicodedata.decimal(part)) if part.isdecimal() else part for part in text
    ).translate({0x66B: ".", 0x66C: ","})
    text = re.sub(
        r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: "^" + found.group().translate(_SUPERSCRIPTS), text
    )
    text = re.sub(r"[½¼¾⅓⅔]", lambda found: f" {_VULGAR[found.group()]}", text).replace("⁄", "/")
    text = (
        re.sub(r"\{,\}|\\!,", ",", text).replace("\\!", "").replace("\\%", "%").replace("\\$", "$")
    )
    text = re.sub(r"\\[,;: ]|~", " ", text)
    text = re.sub(r"\\[dt]?frac\s*\{\s*(-?[\d.]+)\s*\}\s*\{\s*([\d.]+)\s*\}", r" \1/\2", text)
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2", text)
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"([-+])\s?(?=[$€£¥₹]\s?\d)", r" \1", text)
    text = re.sub(r"[*_`$€£¥₹]|\\[()\[\]]", "", text)
    text = re.sub(
        r"(?m)(?:^|(?<=[=:(])|(?<=\bis))[ \t]*(?:minus|negative)[ \t]+(?=\d)|(?:(?<=[=:(])|(?<=\bis))[ \t]*-[ \t]+(?=\d)",
        " -",
        text,
    )
    text = re.sub(r"\b(?:USD|EUR|GBP|INR|CNY|RMB|JPY|CHF|US|Rs\.?)\s?(?=\d)", " ", text)
    text = re.sub(r"(?<=[A-Za-z}])\s?\^\s?\{?\d\}?", "", text)  # cm^2
    return re.sub(
        r"(?m)^[ \t]*\d{1,2}[.)]\s+(?=[^\d\s])|\bstep \d+", " ", text, flags=re.IGNORECASE
    )


def numbers(text: str) -> list[Number]:
    """The numbers of a text that `plain` gave, in order. A hyphen after a digit is no sign: 3-5
    holds 3 and 5.
    """
    found = []
    for match in _NUMBER.finditer(text):
        if _UNDER.search(text, max(0, match.start() - 8), match.start()) or _BESIDE.match(
            text, match.end()
        ):
            continue
        if match.end() - match.start() <= _LONGEST and (value := _value(match)) is not None:
            found.append(Number(value, match.start(), match.end(), bool(match["percent"])))
    return found


def absent(gold: str, text: str) -> bool:
    """Whether a text surely does not hold a whole number: its digits stand nowhere in it, and
    nothing there writes numbers in another way.

    It spares reading the text: a million replies are looked through in seconds.
    """
    if not _WHOLE.fullmatch(gold) or _OTHERWISE.search(text):
        return False
    return gold.strip("-") not in _NO_DIGITS.sub("", text)


def number(text: str) -> Number | None:
    """The number that a whole text is, such as a gold answer; None where it is none or more than
    one.
    """
    read = plain(text).strip()
    found = numbers(read)
    return (
        found[0]
        if len(found) == 1 and not (read[: found[0].start] + read[found[0].end :]).strip(" .")
        else None
    )


def equal(gold: Number, other: Number) -> bool:
    """Whether two numbers are one: to a millionth (OpenCompass's Gsm8kEvaluator), and 50 % is 50
    and 0.5.
    """
    wanted = {gold.value, gold.value / 100} if gold.percent else {gold.value}
    given = (
        {other.value, other.value / 100} if other.percent and abs(gold.value) < 1 else {other.value}
    )
    return any(abs(one - two) <= Fraction(1, 10**6) for one in wanted for two in given)


def _value(match: re.Match[str]) -> Fraction | None:
    value = Fraction(_english(match["body"]))
    if match["power"]:
        value = value ** int(match["power"]) if value < 10**6 else value
    if match["below"]:
        below = Fraction(match["below"])
        if not below:
            return None
        value /= below
    value += int(match["whole"] or 0)
    value *= Fraction(10) ** int(match["ten"] or match["e"] or 0)
    value *= _SCALES[match["unit"].strip().lower()] if match["unit"] else 1
    return -value if match["sign"] == "-" else value


def _english(body: str) -> str:
    """A number's digits with a point before its decimals. One comma before three digits groups
    them, before others it is the point.
    """
    body = re.sub("[ '’]", "", body)
    if "," in body and "." in body:
        decimal = max(body.rfind(","), body.rfind("."))
        return re.sub("[.,]", "", body[:decimal]) + "." + body[decimal + 1 :]
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2,}", body):
        return body.replace(".", "")
    if re.fullmatch(r"\d{1,3}(,\d{3})+|\d{1,2}(,\d{2})+,\d{3}", body):
        return body.replace(",", "")
    return body.replace(",", ".")
