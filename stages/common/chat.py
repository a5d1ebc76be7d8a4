"""One JSON object from a language model that helps: asked for by schema, validated, repaired at
most `repairs` times.

    structured(llm, [{"role": "user", "content": ...}], {"type": "object", "properties": ...,
    "required": ...}).value

The value is data that fits the schema, and no more than that: whoever uses it still has to check
what it says.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from stages.common.completion import Reply
from stages.common.errors import PawlError
from stages.common.llm import Client, Failed, Messages
from stages.common.schema.llm import LLM

_SHOWN = 4000  # characters of a reply that a repair shows to the model again
_CANDIDATES = 1000  # opening braces that are tried for a JSON object
_NO_SCHEMAS = {400, 415, 422, 501}
"""With one of these a server may refuse `response_format`: it is then asked in words."""


@dataclass(frozen=True)
class Structured:
    """A valid reply.

    Attributes:
        value: the object, valid under the schema.
        prompt_tokens, output_tokens: of all requests of the call, a repair included, as the server
            counts them.
        cost: of these, in the money of `llm.price_in` and `llm.price_out`.
        repaired: the first reply was not valid.
        raw: the text of the valid reply.
        estimated: the server did not count the tokens of some request (see completion.Reply).
        answered_as: the name that the reply carries, if it is not the model that was asked.
        not_sent: options that the server refuses and that were left out, such as temperature.
    """

    value: dict[str, Any]
    prompt_tokens: int
    output_tokens: int
    cost: float
    repaired: bool
    raw: str
    estimated: bool = False
    answered_as: str = ""
    not_sent: tuple[str, ...] = ()


class NoReply(PawlError):
    """No valid reply came; tokens and cost are of all that was asked."""

    def __init__(self, what: str, fix: str, client: Client) -> None:
        super().__init__(what, where=client.llm.base_url, fix=fix)
        self.prompt_tokens, self.output_tokens = client.spent
        self.cost = client.llm.cost(*client.spent)


def structured(
    llm: LLM, messages: Messages, schema: dict[str, Any], *, repairs: int = 1
) -> Structured:
    """Ask for one JSON object that fits `schema`.

    The schema goes along as `response_format`; a server that refuses it is asked in words. Faults
    that may pass are asked for again (see llm.Client). A reply that is not valid is sent back with
    what is wrong about it, `repairs` times; one that was cut off before its first word is not,
    since it would be again.

    Raises:
        PawlError: no server is configured, or its key is not set.
        NoReply: the server failed for good, or no valid reply came. Never names the key.
    """
    if not llm.base_url:
        fix = "set base_url and model of the section that asks for it"
        raise PawlError("no language model is configured", where="base_url", fix=fix)
    return asyncio.run(_structured(Client(llm), messages, schema, repairs))


async def _structured(
    client: Client, messages: Messages, schema: dict[str, Any], repairs: int
) -> Structured:
    llm, asked, tries, by_schema = client.llm, list(messages), 0, True
    fix = "choose a larger model, or a server that constrains its output to a JSON schema"
    async with client:
        while True:
            tries += 1
            try:
                reply, by_schema = await _one(client, asked, schema, by_schema)
            except Failed as error:
                why = (
                    "see that the server runs and serves this model, that the key is right, and"
                    " that timeout_s is long enough"
                )
                raise NoReply(f"{llm.model} did not answer: {error}", why, client) from None
            text = _utf8(reply.text)
            value, problem = _read(text, reply.finish_reason == "length", schema)
            if value is not None:
                _tell(llm, reply)
                return Structured(
                    value,
                    *client.spent,
                    llm.cost(*client.spent),
                    tries > 1,
                    text,
                    client.estimated,
                    _utf8(reply.model),
                    reply.not_sent,
                )
            thought_only = reply.missing and reply.finish_reason == "length"
            if thought_only:
                fix = "raise max_output_tokens: what it thinks counts too"
            if thought_only or tries > repairs:
                told = f"{llm.model} gave no valid reply in {tries} tries: {problem}"
                raise NoReply(told, fix, client)
            shown = {"role": "assistant", "content": text[:_SHOWN] or "(nothing)"}
            asked = [*messages, shown, _repair(problem, schema)]


async def _one(
    client: Client, messages: Messages, schema: dict[str, Any], by_schema: bool
) -> tuple[Reply, bool]:
    """One reply, and whether the server takes schemas."""
    if by_schema:
        named = {"name": "reply", "strict": True, "schema": schema}
        form = {"type": "json_schema", "json_schema": named}
        try:
            return await client.complete(messages, response_format=form), True
        except Failed as error:
            if error.status not in _NO_SCHEMAS:
                raise
    last = messages[-1]
    worded = {**last, "content": f"{last['content']}\n\n{_in_words(schema)}"}
    return await client.complete([*messages[:-1], worded]), False


def _tell(llm: LLM, reply: Reply) -> None:
    """Say on standard error what the server did other than it was asked."""
    if reply.model:
        print(
            f"note: {llm.model} was asked, and the reply is signed {reply.model}", file=sys.stderr
        )
    if reply.not_sent:
        left_out = ", ".join(reply.not_sent)
        print(f"note: {llm.model} does not take {left_out}: it was asked without", file=sys.stderr)


def first_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply, outside of what the model thought aloud; NaN and Infinity
    are no JSON.
    """
    thoughts, end, said = text.rpartition("</think>")
    # each <think> in the first part has its end there, so that none is looked for in vain
    before = re.sub(r"<think>.*?</think>", " ", thoughts + end, flags=re.DOTALL)
    text = before.rpartition("</think>")[2] + said
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    for tried, brace in enumerate(re.finditer(r"\{", text)):
        if tried == _CANDIDATES:
            break
        try:
            value, _ = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        return dict(json.loads(_utf8(json.dumps(value, ensure_ascii=False))))
    return None


def _utf8(text: str) -> str:
    """Text without the lone surrogates that a JSON escape can hold and no file or request can
    carry.
    """
    return text.encode("utf-8", "replace").decode()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _read(text: str, cut_off: bool, schema: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object in a text, or the problem with it."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    value = first_object(text)
    if value is None:
        at_limit = ", and was cut off at the output limit" if cut_off else ""
        return None, f"it holds no JSON object{at_limit}"
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return value, ""
    at = ".".join(map(str, error.absolute_path))
    message = " ".join(error.message.split())[-400:]
    return None, f"{at}: {message}" if at else message


def _repair(problem: str, schema: dict[str, Any]) -> dict[str, str]:
    told = f"That reply cannot be used: {problem}. {_in_words(schema)}"
    return {"role": "user", "content": told}


def _in_words(schema: dict[str, Any]) -> str:
    return (
        "Reply with one JSON object and nothing else. It has to be valid under this JSON schema:\n"
        + json.dumps(schema)
    )
