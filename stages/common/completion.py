"""What a chat completion says, with nothing taken for granted; and which options of a request a
server takes.

A reply that was paid for is kept, whatever is odd about it: without text it is an empty answer,
without counts they are estimated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MOST = 2**31  # tokens; a count above it is none
_REFUSING = {400, 404, 415, 422, 501}
_UNSUPPORTED = re.compile(
    r"unsupported|(?:not|n't) (?:be"
    r" )?(?:support|permit|allow|accept)|unrecogni[sz]ed|unknown|unexpected|extra"
    r" (?:inputs|fields)|deprecated"
    r"|instead|only \S+ (?:is|are)|only the default|cannot both|must be (?:set to )?1\b",
    re.IGNORECASE,
)
_VERSION = re.compile(
    r"[-@_:.](?:preview-|exp-)?v?(?:\d{3,4}|\d{6,8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:-\d{4})?)"
)
_PLAIN = re.compile(r"(?::latest|-latest|\.gguf)$")


@dataclass(frozen=True)
class Reply:
    """One answer. `text` may be empty: a model may stop at once. Token counts are the server's.

    Attributes:
        finish_reason: "" where the server does not say why it ended.
        missing: there is no text at all, but thoughts, a call of a tool, a refusal or nothing.
        estimated: the server did not count its tokens; they are one for three characters, which
            errs upwards for English and JSON.
        model: the name that the reply carries, where it is not the one that was asked (see
            `same_model`).
        not_sent: what the request was to carry and the server refuses, such as temperature.
    """

    text: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    missing: bool = False
    estimated: bool = False
    model: str = ""
    not_sent: tuple[str, ...] = ()

    def oddities(self) -> dict[str, Any]:
        """What is not as it should be: by field, nothing of a usual reply."""
        told = {
            "missing": self.missing,
            "estimated": self.estimated,
            "model": self.model,
            "not_sent": list(self.not_sent),
        }
        return {name: value for name, value in told.items() if value}


def odd(known: Any) -> dict[str, Any]:
    """`oddities` as they were written down, for Reply(..., **odd(known)); TypeError where they are
    none.
    """
    if not isinstance(known, dict):
        raise TypeError("no oddities")
    return {
        "missing": known.get("missing") is True,
        "estimated": known.get("estimated") is True,
        "model": str(known.get("model", "")),
        "not_sent": tuple(map(str, known.get("not_sent", ()))),
    }


class Malformed(Exception):
    """A body with status 200 that is no chat completion. It holds what the server sent, whole and
    with the key.

    Attributes:
        spent: prompt and output tokens that it may have cost all the same.
        reply: what it is taken for where asking again does not help: an answer without text (None:
            it is no answer).
    """

    def __init__(self, cause: str, spent: tuple[int, int], reply: Reply | None = None) -> None:
        super().__init__(cause)
        self.spent, self.reply = spent, reply


def read(raw: bytes, messages: Sequence[dict[str, Any]], asked: str, most_tokens: int) -> Reply:
    """The reply in a body that nobody has checked yet.

    Args:
        asked: the model that was asked.
        most_tokens: the output limit, by which a reply that does not say why it ended is known to
            be cut off.

    Raises:
        Malformed: it is no chat completion.
    """
    told = str(raw, "utf-8", "replace")
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        raise Malformed(
            f"the server's answer is no JSON: {told}", estimate(messages, told[: 3 * most_tokens])
        ) from None
    answer = answer if isinstance(answer, dict) else {}
    counted = usage(answer)
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        what = "text" if isinstance(choice, dict) else "choices"
        raise Malformed(f"the server's answer has no {what}: {told}", counted or (0, 0))
    assert isinstance(choice, dict)
    given, text = choice.get("finish_reason"), text_of(message)
    reason = given if isinstance(given, str) else ""
    thought = next(
        (
            message[key]
            for key in ("reasoning_content", "reasoning")
            if isinstance(message.get(key), str)
        ),
        "",
    )
    prompt_tokens, output_tokens = counted or estimate(messages, thought + (text or ""))
    if not reason and counted and output_tokens >= most_tokens:
        reason = "length"
    model = answer.get("model")
    other = model[:200] if isinstance(model, str) and model and not same_model(asked, model) else ""
    reply = Reply(
        text or "", prompt_tokens, output_tokens, reason, text is None, counted is None, other
    )
    made = (
        thought
        or message.get("tool_calls")
        or message.get("function_call")
        or message.get("refusal")
        or (counted and counted[1])
    )
    # nothing says that a model wrote anything: it may do so when asked again
    if text is None and not made and reason in ("", "stop"):
        raise Malformed(
            f"the server's answer has no text (finish_reason {given!r}): {told}",
            counted or (0, 0),
            reply,
        )
    return reply


def text_of(message: dict[str, Any]) -> str | None:
    """The text of a message, of its parts joined; None where there is none."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        found = [part for part in parts if isinstance(part, str)]
        return "".join(found) if found else None
    return content if isinstance(content, str) else None


def usage(answer: dict[str, Any]) -> tuple[int, int] | None:
    """Prompt and output tokens as the server counts them; None where it does not, or where they are
    no counts.
    """
    told = answer.get("usage")
    if not isinstance(told, dict):
        return None
    prompt, output, total = (
        _count(told.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if output is None and prompt is not None and total is not None and total >= prompt:
        output = total - prompt
    return None if prompt is None or output is None else (prompt, output)


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < _MOST
        or value != int(value)
    ):
        return None
    return int(value)


def estimate(messages: Sequence[dict[str, Any]], text: str) -> tuple[int, int]:
    asked = sum(len(str(message.get("content") or "")) for message in messages)
    return -(-asked // 3), -(-len(text) // 3)


def same_model(asked: str, told: str) -> bool:
    """Whether a reply's `model` is the one that was asked: itself, a dated version of it, or its
    name with or without a path.
    """
    one, other = (_PLAIN.sub("", name.strip().lower().rstrip("/")) for name in (asked, told))
    if one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}"):
        return True
    if "/" not in one or "/" not in other:
        one, other = one.rpartition("/")[2], other.rpartition("/")[2]
    short, long = sorted((one, other), key=len)
    return (
        bool(short)
        and long.startswith(short)
        and _VERSION.fullmatch(long[len(short) :]) is not None
    )


# --- which options a server takes

_REFUSED: dict[tuple[str, str], tuple[str, ...]] = {}
"""By address and model, what is not sent any more; learnt once, in this process."""


def options(url: str, model: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """What is sent of the options that are wanted."""
    sent = dict(wanted)
    for name in _REFUSED.get((url, model), ()):
        sent = _without(name, sent)
    return sent


def fewer(status: int, told: str, sent: dict[str, Any]) -> dict[str, Any] | None:
    """The options without the one that a server refuses in these words; None where it refuses none
    of them.

    Some models of OpenAI take max_completion_tokens for max_tokens and only their own temperature;
    some servers know no seed.
    """
    if status not in _REFUSING or not _UNSUPPORTED.search(told):
        return None
    if "max_tokens" in sent and "max_completion_tokens" in told:
        return _without("max_tokens", sent)
    named = next(
        (
            name
            for name in ("top_p", "seed", "temperature")
            if name in sent and re.search(rf"\b{name}\b", told)
        ),
        "",
    )
    return _without(named, sent) if named else None


def learnt(url: str, model: str, wanted: dict[str, Any], sent: dict[str, Any]) -> tuple[str, ...]:
    """Remember what was left out of a request that was then answered. Returns what was not sent in
    any form.
    """
    left = tuple(name for name in wanted if name not in sent)
    known = _REFUSED.get((url, model), ())
    if new := tuple(name for name in left if name not in known):
        _REFUSED[url, model] = known + new
    return tuple(name for name in left if name != "max_tokens")


def _without(name: str, sent: dict[str, Any]) -> dict[str, Any]:
    less = {key: value for key, value in sent.items() if key != name}
    return (
        less | {"max_completion_tokens": sent["max_tokens"]}
        if name == "max_tokens" and name in sent
        else less
    )


def message_of(raw: bytes) -> str:
    """What an error's body says, if it is of the usual form; else its beginning."""
    try:
        error = json.loads(raw)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return str(raw, "utf-8", "replace")
