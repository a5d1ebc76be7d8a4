"""The answer in a model's reply: a letter, yes or no, or a number. At most one is read, so a reply
that names them all is not right.

What the rules know was collected from OpenCompass 0.5.4 (utils/text_postprocessors.py: the phrases,
English and Chinese), OpenAI's simple-evals ("Answer: X"), MATH (the last \\boxed{...}; Hendrycks et
al. 2021) and lm-evaluation-harness (GSM8K's flexible-extract: the last number). Unlike theirs no
rule guesses: a capital somewhere in the reply is no answer, neither is the nearest option.
"""
# ruff: noqa: RUF001  full-width letters, quotation marks and signs of multiplication are what is
# read here

from __future__ import annotations

import re
from typing import Any

from stages.common import numerals

KINDS = ("choice", "boolean", "number")
_LONGEST = 20_000  # characters of a reply that are read: its beginning and its end
_AMBIGUOUS = "\0"  # an answer was given, but more than one
_TRUE = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_THOUGHTS = re.compile(
    r"<(think|thinking|thought|reasoning|reflection|seed:think)>.*?(?:</\1>|\Z)|◁think▷.*?(?:◁/think▷|\Z)",
    re.DOTALL | re.I,
)
_THOUGHT_ENDS = re.compile(
    r"</(?:think|thinking|thought|reasoning|reflection|seed:think)>|◁/think▷|<\|channel\|>final<\|message\|>",
    re.I,
)
_NOUN = (
    r"answers?|options?|choices?|solution|answer choice|antwort|lösung|réponse|respuesta|resposta|risposta|ответ|"
    r"答案|答案选项|正确答案|正确选项|正解|答え|解答|정답|답"
)
_IS = r"(?<![^\W_])(?:is|was|are|be|ist|est|es|é|è|would be|should be|must be|will be|seems to be)(?![^\W_])|应该?是|应为|是|为|选|は|는|은"
_CUE = re.compile(
    rf"(?:(?<![^\W_])(?:{_NOUN})(?![^\W\d_\u0900-\uffff])(?P<of>(?:(?!(?:{_NOUN})\b)[^.:：\n?!=]){{0,70}}?)"
    rf"(?:(?:{_IS})\s?[:：]?|[:：=]|->|→|⇒)"
    r"|(?<![^\W_])(?:i(?:'d|'ll| would| will)?|therefore|so|we|let's)\s+(?:choose|pick|select|go with|say|guess|answer)(?=\s)"
    r"|(?:^|[.!?,]\s|\bi (?:think|believe)\s)(?:so |thus |therefore |that )?it(?:['’]s| is| must be)(?=\s)"
    r"|(?:^|[.!\n])[ \t]?(?:choose|pick|select)(?=\s)|故选|所以选|因此选|应选|选择?(?=\s?[A-Z])|####)",
    re.IGNORECASE | re.MULTILINE,
)
_LEAD = re.compile(
    r"(?:[\s\"'“”‘’«»:：,>]|\b(?:therefore|thus|clearly|definitely|most likely|probably|indeed|simply|letter|option|choice|answer|"
    r"the correct one|number|only|would be|is|the)\b|选项)*",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"(?P<open>[(\[{（]?)\s*(?P<letter>[A-Za-z])(?![^\W_]|['’]\w|\.[A-Za-z]\b|[+#])\s*(?P<close>[)\]}）\"'”’»]*)"
)
_JOINED = r"\s*(?:,\s*)?(?:or|and|nor|/|&|oder|und|ou|et|o|y|или|и|或|和|、)\s*(?:also\s+|possibly\s+|maybe\s+|option\s+)?"
_SEVERAL = r"-?\d[\d.]*\s*[,;]\s+(?:(?:or|and)\s+)?-?\d[\d.]*\s*(?:$|\.\s|[,;]|or\b|and\b)"
"""Two numbers or more as an answer."""
_BETWEEN = r"[ \t]*(?:(?:,[ \t]*)?(?:or|and|to|oder|und|bis|ou|et|或|和)|[-–+*×/&,;])?[ \t]*"
"""What stands between numbers of a list, a range or a sum that is not worked out."""
_DOUBT = re.compile(
    r"\s*[,.(]?\s*(?:or|maybe|perhaps|possibly)\s+(?:maybe\s+|perhaps\s+|option\s+)?[(\[]?[A-Z](?![^\W_]|')",
    re.I,
)
_ENDS = re.compile(
    r"\s*(?:$|[.,;:!?。，；：！）)\]}\n|<]|-(?!\w)|[–—(（]|(?:because|since|as|which|for|with|but|so|given|due|if|不|因为|weil|car|porque)(?![^\W_]))",
    re.I,
)
# "B. Paris"
_LABELLED = re.compile(
    r"[\s#>*-]*(?:[Oo]ption\s+)?[(\[（]?([A-Z])[)\]）]?\s*[.:：)、\]）]\s*(?=\S)"
)
_AFTER = re.compile(  # "B is correct"
    r"(?<![^\W_])(?:(?P<pair>(?:or|nor|and|[,/&])\s*(?:option\s+)?)?)[(\[]?(?P<letter>[A-Z])[)\]]?(?:[.:][^.\n]{1,80}?)?\s*(?:is|are)\s+"
    r"(?:therefore |clearly |indeed )?(?:the\s+)?(?:most\s+|only\s+|single\s+)?(?:correct|right|best|accurate|answer)(?![^\W_])"
    r"|(?P<chinese>[A-Z])\s?(?:选项)?(?:是)?正确"
)
_NEGATED = re.compile(
    r"(?:not|never|n't|neither|cannot be|can't be|不是?|不选|wrong|incorrect|nicht|false)\s*$",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"the|my|so|and|final|correct|best|short|therefore|thus|hence|your|is|are|be|answers?|option|choice|solution|response|assistant|ist|est|es|"
    r"antwort|lösung|die|la|réponse|respuesta|resposta|risposta|ответ|(?:正确)?答案[是为]?|答えは?|正解|정답"
)


def kind(golds: list[Any]) -> str:
    """What all answers of a benchmark are: "choice" (one letter), "boolean", "number", or "" where
    they are none of these.
    """
    texts = [gold.strip() if isinstance(gold, str) else "" for gold in golds]
    if not texts or not all(texts):
        return ""
    if all(re.fullmatch(r"\(?[A-Z]\)?", text) for text in texts):
        return "choice"
    if all(text.lower() in _TRUE for text in texts):
        return "boolean"
    return (
        "number"
        if all(
            re.fullmatch(r"[-−]?[\d.,/ ]*\d%?", text) and numerals.number(text) for text in texts
        )
        else ""
    )


def right(kind: str, gold: str, reply: str, question: str = "") -> bool:
    """Whether the one answer that a reply gives is the gold one; a reply without one never is.

    Args:
        question: as the model saw it: the options that it lists may be named by their words.
    """
    if kind == "number":
        wanted, given = numerals.number(gold), number(reply)
        return wanted is not None and given is not None and numerals.equal(wanted, given)
    if kind == "boolean":
        return (
            choice(reply, {word: [word] for word in _TRUE}, letters=False)
            == _TRUE[gold.strip().lower()]
        )
    return (
        choice(reply, {letter: [text] for letter, text in options(question).items()})
        == gold.strip(" ()").upper()
    )


def missing(reply: str, gold: str = "") -> bool:
    """Whether a reply holds no answer: it is empty, thinks only, or is a label without anything
    after it ("Answer:", "\\boxed{}").
    """
    text = re.sub(r"\\boxed|\\text(?:bf)?|<\|?/?\w+\|?>", " ", numerals.fold(visible(reply)))
    # an answer may be made of signs alone, such as brackets
    if not re.search(r"[^\W_]", gold or "x"):
        return not text.strip()
    words = re.findall(r"[^\W_]+", text.casefold())
    return all(_LABEL.fullmatch(word) for word in words) and (
        not gold or text.strip().casefold() != gold.strip().casefold()
    )


def visible(reply: str) -> str:
    """A reply without what it thinks aloud in the tags that are known; thinking that never ends
    leaves nothing.
    """
    if len(reply) > _LONGEST:
        reply = f"{reply[:1000]}\n{reply[1000 - _LONGEST :]}"
    ends = [match.end() for match in _THOUGHT_ENDS.finditer(reply)]
    return _THOUGHTS.sub("", reply[ends[-1] if ends else 0 :])


def options(question: str) -> dict[str, str]:
    """The last list of options in a question, from A on: letter to text. Its lines begin with "A.",
    "A)", "(A)", "A:".
    """
    found: dict[str, str] = {}
    for line in question.splitlines():
        match = re.match(r"\s*\(?([A-Z])[.)、:：．]\s*(\S.*)$", line)
        if match and match[1] == "A":
            found = {"A": match[2].strip()}
        elif match and found and ord(match[1]) == ord("A") + len(found):
            found[match[1]] = match[2].strip()
    return found if len(found) > 1 else {}


def number(reply: str) -> numerals.Number | None:
    """The number that a reply gives: after its last "answer is", in its last box, else its last
    number at all; None for "3 or 4".
    """
    text = numerals.plain(_begun(_boxes(visible(reply))))
    cues = [match for match in _CUE.finditer(text) if not _negated(text, match.start())]
    if cues:
        rest = text[cues[-1].end() :]
        rest = next((line for line in rest.split("\n") if line.strip()), "")
        if re.match(r"\s*not\b", rest):
            return None
        if not rest.strip():
            return None
        clause = re.split(r"[.!?,;](?:\s|$)|\b(?:since|because)\b", rest, maxsplit=1)[0]
        if re.match(rf"[^\d\n=]*{_SEVERAL}", rest):
            return None
        found = (
            numerals.numbers(clause[clause.rfind("=") + 1 :])
            or numerals.numbers(clause)
            or numerals.numbers(rest)
        )
        if found:
            between = (
                clause[clause.rfind("=") + 1 :][found[0].end : found[1].start]
                if len(found) > 1
                else ""
            )
            return (
                None
                if re.fullmatch(r"\s*(?:-|–|or|to|and|&|/|oder|und|ou|et|或|和)\s*", between)
                else found[0]
            )
        if _is_box(text, cues[-1]):
            return None
    found = _affirmed(text)
    if len(found) > 1 and re.fullmatch(_BETWEEN, text[found[-2].end : found[-1].start]):
        return None
    return found[-1] if found else None


def _affirmed(text: str) -> list[numerals.Number]:
    """The numbers of a text without those that it denies: "17, not 18"."""
    return [
        each
        for each in numerals.numbers(text)
        if not re.search(r"\b(?:not|instead of|rather than)\s*$", text[: each.start][-20:])
    ]


def ends_with_number(gold: str, reply: str) -> bool:
    """Whether the last number of a reply is the gold one."""
    wanted, found = numerals.number(gold), _affirmed(numerals.plain(visible(reply)))
    return bool(wanted and found) and not missing(reply) and numerals.equal(wanted, found[-1])  # type: ignore[arg-type]


def choice(reply: str, texts: dict[str, list[str]], *, letters: bool = True) -> str:
    """The one letter (or word, with letters=False) that a reply gives; "" where it gives none, or
    several.

    Args:
        texts: what else names an answer: its option's words.
    """
    text = _unmarked(_begun(_boxes(visible(reply))))
    names = sorted(
        (
            (_squeezed(name), letter)
            for letter, given in texts.items()
            for name in given
            if _squeezed(name)
        ),
        key=lambda pair: -len(pair[0]),
    )
    names = [
        (name, letter) for name, letter in names if sum(name == other for other, _ in names) == 1
    ]
    found = [
        (match.end(), answer)
        for match in _CUE.finditer(text)
        if (answer := _after(text, match, names, letters))
    ]
    if letters:
        for match in _AFTER.finditer(text):
            if not _negated(text, match.start()):
                found.append(
                    (
                        match.start(),
                        _AMBIGUOUS if match["pair"] else match["letter"] or match["chinese"],
                    )
                )
    lines = [(number, line) for number, line in enumerate(text.split("\n")) if line.strip()]
    if lines:
        alone = [
            (start, answer) for start, line in lines if (answer := _bare(line, names, letters))
        ]
        if alone and alone[-1][0] == lines[-1][0]:
            ambiguous = len({answer for _, answer in alone}) > 1 and not found
            found.append((len(text), _AMBIGUOUS if ambiguous else alone[-1][1]))
    answer = max(found)[1] if found else _first(lines, names, letters)
    if answer == _AMBIGUOUS:
        return ""
    return answer if letters else _TRUE.get(answer, answer)


def _after(text: str, cue: re.Match[str], names: list[tuple[str, str]], letters: bool) -> str:
    """The answer that a cue is followed by."""
    if _NEGATED.search(cue["of"] or "") or _negated(text, cue.start()):
        return ""
    rest = text[cue.end() : cue.end() + 1000]
    place = re.match(r"\s*not\b[^.\n]{0,80}?\b(?:but|it is|it's|rather)\s", rest) or re.match(
        "", rest
    )
    assert place
    rest = rest[place.end() :]
    lead = _LEAD.match(rest)
    return _read(rest, names, letters) or _read(rest[lead.end() if lead else 0 :], names, letters)


def _read(rest: str, names: list[tuple[str, str]], letters: bool) -> str:
    """The answer that a text begins with."""
    rest = rest.lstrip()
    if letters and (match := _LETTER.match(rest)):
        after, letter = rest[match.end() :], match["letter"]
        if re.match(rf"{_JOINED}[(\[]?[A-Z](?![^\W_]|')", after) or re.match(
            r"\s*,\s*[(\[]?[A-Z][)\]]?\s*(?:$|[.,;\n]|and|or)", after
        ):
            return _AMBIGUOUS
        words = after.lstrip(" .:)")
        other, length = _name(words, names)
        contradicted = (
            other not in ("", letter.upper())
            and (match["close"] or after[:1] in (".", ":"))
            and _ENDS.match(words[length:])
        )
        if contradicted or _DOUBT.match(after):
            return _AMBIGUOUS
        closed = bool(match["open"] and match["close"])
        certain = closed or _ENDS.match(after) or _name(after, names)[0]
        if certain and (letter.isupper() or closed or re.match(r"[.)]?\s*(?:$|\n)", after)):
            return letter.upper()
        if letter.isupper() and letter not in "AI" and re.match(r"\s", after):
            return letter
    answer, length = _name(rest, names)
    if (
        answer
        and re.match(rf"{_JOINED}(?=\S)", rest[length:])
        and _name(re.sub(rf"^{_JOINED}", "", rest[length:]), names)[0]
    ):
        return _AMBIGUOUS
    return answer if answer and _ENDS.match(rest[length:]) else ""


def _name(text: str, names: list[tuple[str, str]]) -> tuple[str, int]:
    """Whose option's words a text begins with, and how long they are there."""
    words = list(re.finditer(r"[^\W_]+", text[:1000]))
    folded = [word.group().casefold() for word in words]
    for name, letter in names:
        wanted = name.split()
        if folded[: len(wanted)] == wanted and not text[: words[0].start()].strip(" \t\"'“”‘’([$-"):
            return letter, words[len(wanted) - 1].end()
    return "", 0


def _bare(line: str, names: list[tuple[str, str]], letters: bool) -> str:
    """The answer that a line is, and nothing beside it."""
    line = line.strip(" \t#>•-*\"'“”’‘$")
    if letters and (
        match := re.fullmatch(
            r"(?:option\s|choice\s|答案|选项)?[(\[（]?([A-Za-z])[)\]）]?[.。:)!]?", line, re.I
        )
    ):
        return match[1].upper()
    answer, length = _name(line, names)
    return answer if answer and not line[length:].strip(" .!。\"'”)") else ""


def _first(lines: list[tuple[int, str]], names: list[tuple[str, str]], letters: bool) -> str:
    """The answer that a reply begins with ("B. Paris", "Yes, since ..."), or that its last line
    holds; a list of the options is none.
    """
    labelled = [match for _, line in lines if letters and (match := _LABELLED.match(line))]
    if len({match[1] for match in labelled}) > 1:
        return ""
    for _, line in [lines[0], lines[-1]] if lines else []:
        if letters and (match := _LABELLED.match(line)):
            named = _name(line[match.end() :], names)[0]
            return match[1] if named in ("", match[1]) else _AMBIGUOUS
        if answer := _read(line.strip(" \t#>*"), names, letters):
            return answer
    return ""


def _boxes(text: str) -> str:
    r"""Each \boxed{...} as a line of its own that says "answer: ..."; two that "or" joins are
    one.
    """
    text = re.sub(r"\}\$?\s*(?:or|and|,)\s*\$?\\(?:boxed|fbox)\s*\{", " or ", text)
    out, place = [], 0
    for match in re.finditer(r"\\(?:boxed|fbox)\s?\{", text):
        if match.start() < place:
            continue
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            break
        out += [text[place : match.start()], "\nanswer: ", text[match.end() : end - 1], "\n"]
        place = end
    return "".join(out) + text[place:]


def _negated(text: str, place: int) -> bool:
    return bool(_NEGATED.search(text[max(0, place - 20) : place]))


def _is_box(text: str, cue: re.Match[str]) -> bool:
    return text[cue.start() : cue.end()].strip() == "answer:"


def _begun(text: str) -> str:
    """A reply without the next question that a base model goes on to ask itself."""
    cut = re.search(r"\n[ \t]?(?:Question|Q|Human|User|Problem)\s*\d*\s*[:：]", text)
    return text[: cut.start()] if cut and not missing(text[: cut.start()]) else text


def _unmarked(text: str) -> str:
    """A text without Markdown and LaTeX around words."""
    text = numerals.fold(text)
    text = re.sub(
        r"\\(?:text|textbf|mathrm|mathbf|textit|operatorname)\s*\{([^{}]*)\}", r"\1", text
    )
    return re.sub(
        r"\*\*|__|`|\$|\\[()\[\]]|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)|</?(?:b|strong|i|em|answer|u)>|\\[,;:! ]",
        "",
        text,
    )


def _squeezed(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", numerals.fold(text).casefold()))
