"""One JSON object from a language model that helps: asked for by schema, bounded, validated, mended at most `repairs` times.

    structured(llm, [{"role": "user", "content": ...}], {"type": "object", "properties": ..., "required": ...}).value

What comes back is data that fits the schema, and no more than that: whoever uses it still has to check what it says.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stages.common.errors import PawlError
from stages.common.llm import api_key
from stages.common.schema.llm import LLM

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_PAUSE_S = 0.5  # before a body that is no chat completion is asked for again; HTTP errors wait as the client or Retry-After says
_SHOWN = 4000  # characters of a reply that a repair shows to the model again
_CANDIDATES = 1000  # opening braces that are tried for a JSON object


@dataclass(frozen=True)
class Structured:
    """A valid reply.

    Attributes:
        value: the object, valid under the schema.
        prompt_tokens, output_tokens: of all requests of the call, a repair included, as the server counts them.
        cost: of these, in the money of `llm.price_in` and `llm.price_out`.
        repaired: the first reply was not valid.
        raw: the text of the valid reply.
        estimated: the server did not count its tokens; they are one for three characters here, which errs upwards for English and JSON.
    """

    value: dict[str, Any]
    prompt_tokens: int
    output_tokens: int
    cost: float
    repaired: bool
    raw: str
    estimated: bool = False


@dataclass
class _Answer:
    text: str
    prompt_tokens: int
    output_tokens: int
    cut: bool
    estimated: bool


class NoReply(PawlError):
    """No valid reply came; tokens and cost are of what was asked all the same."""

    def __init__(self, error: PawlError, spent: list[int], cost: float) -> None:
        super().__init__(error.what, where=error.where, fix=error.fix)
        self.prompt_tokens, self.output_tokens, self.cost = *spent, cost


class _Malformed(Exception):
    """A body with status 200 that is no chat completion, is too long, or did not end in time.

    It holds what the server sent, whole and with the key: `_failed` removes the key first, and cuts then, so that no part of it stays.
    """


def structured(llm: LLM, messages: list[dict[str, str]], schema: dict[str, Any], *, repairs: int = 1) -> Structured:
    """Ask for one JSON object that fits `schema`.

    The schema goes along as `response_format`; a server that refuses it is asked in words. HTTP errors that may pass (408, 409, 429, 5xx,
    a lost connection, a timeout) and bodies that are no chat completion are asked for again, `llm.retries` times each. A reply that is not
    valid is sent back with what is wrong about it, `repairs` times.

    Raises:
        PawlError: no server is configured.
        NoReply: the server failed for good, or no valid reply came. Never names the key.
    """
    if not llm.base_url:
        raise PawlError("no language model is configured", where="base_url", fix="set base_url and model of the section that asks for it")
    asking, spent, estimated, problem = list(messages), [0, 0], False, ""
    with _Server(llm, schema) as server:
        for attempt in range(repairs + 1):
            try:
                answer = server.ask(asking)
            except PawlError as error:
                raise NoReply(error, spent, _cost(llm, spent)) from None
            spent[0] += answer.prompt_tokens
            spent[1] += answer.output_tokens
            estimated = estimated or answer.estimated
            value, problem = _read(answer, schema)
            if value is not None:
                return Structured(value, spent[0], spent[1], _cost(llm, spent), attempt > 0, answer.text, estimated)
            asking = [*messages, {"role": "assistant", "content": answer.text[:_SHOWN] or "(nothing)"}, _mend(problem, schema)]
    fix = "choose a larger model, or a server that constrains its output to a JSON schema"
    told = PawlError(f"{llm.model} gave no valid reply in {repairs + 1} tries: {problem}", where=llm.base_url, fix=fix)
    raise NoReply(told, spent, _cost(llm, spent))


def _cost(llm: LLM, spent: list[int]) -> float:
    return (spent[0] * llm.price_in + spent[1] * llm.price_out) / 1e6


def first_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply, outside of what the model thought aloud; NaN and Infinity are no JSON."""
    text = re.sub(r"<think>.*?</think>", " ", text, flags=re.DOTALL).rpartition("</think>")[2]
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
    """Text without the lone surrogates that a JSON escape can hold and no file or request can carry."""
    return text.encode("utf-8", "replace").decode()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _read(answer: _Answer, schema: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object of an answer, or what is wrong with it."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    value = first_object(answer.text)
    if value is None:
        return None, "it holds no JSON object" + (", and was cut off at the output limit" if answer.cut else "")
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return value, ""
    at = ".".join(map(str, error.absolute_path))
    return None, f"{f'{at}: ' if at else ''}{' '.join(error.message.split())[-400:]}"


def _mend(problem: str, schema: dict[str, Any]) -> dict[str, str]:
    return {"role": "user", "content": f"That reply cannot be used: {problem}. {_in_words(schema)}"}


def _in_words(schema: dict[str, Any]) -> str:
    return f"Reply with one JSON object and nothing else. It has to be valid under this JSON schema:\n{json.dumps(schema)}"


class _Server:
    """One connection. Remembers what the server does not take, so that it is told once."""

    def __init__(self, llm: LLM, schema: dict[str, Any]) -> None:
        from openai import DefaultHttpxClient, OpenAI

        self.llm, self.schema, self.key = llm, schema, api_key(llm.api_key_env)
        # a proxy of the environment must not be asked for a server on this machine
        transport = DefaultHttpxClient(trust_env=urlsplit(llm.base_url).hostname not in _LOOPBACK)
        self.client = OpenAI(base_url=llm.base_url, api_key=self.key, timeout=llm.timeout_s, max_retries=llm.retries, http_client=transport)
        self.options: dict[str, Any] = {
            "max_tokens": llm.max_output_tokens,
            "temperature": llm.temperature,
            "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}},
        }
        self.limit = 2**16 + 64 * llm.max_output_tokens  # bytes: a token is seldom more than 10 characters, escaped as 6 bytes each

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask(self, messages: list[dict[str, str]]) -> _Answer:
        from openai import APIStatusError, OpenAIError

        malformed = 0
        while True:
            try:
                answer = self._one(messages)
            except APIStatusError as error:
                if not self._give_in(error):
                    raise self._failed(error) from None
            except _Malformed as error:
                malformed += 1
                if malformed > self.llm.retries:
                    raise self._failed(error) from None
                time.sleep(_PAUSE_S)
            except OpenAIError as error:
                raise self._failed(error) from None
            else:
                return answer

    def _one(self, messages: list[dict[str, str]]) -> _Answer:
        options = dict(self.options)
        if "response_format" not in options:
            messages = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{_in_words(self.schema)}"}]
        create: Any = self.client.chat.completions.with_streaming_response.create
        with create(model=self.llm.model, messages=messages, **options) as response:
            body = self._body(response.iter_bytes())
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise _Malformed(f"the reply is no JSON: {body.decode('utf-8', 'replace')}") from None
        return self._answer(answer, messages)

    def _body(self, chunks: Iterator[bytes]) -> bytes:
        """The whole body; a server that never ends it, by size or by time, ends here."""
        from httpx2 import HTTPError  # what the openai package stands on

        ends, parts, size = time.monotonic() + self.llm.timeout_s, [], 0
        try:
            for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > self.limit:
                    raise _Malformed(f"the reply is longer than {self.limit:,} bytes")
                if time.monotonic() > ends:
                    raise _Malformed(f"the reply did not end within {self.llm.timeout_s:g} s")
        except HTTPError as error:
            raise _Malformed(f"the reply broke off: {type(error).__name__} {error}") from None
        return b"".join(parts)

    def _answer(self, answer: Any, messages: list[dict[str, str]]) -> _Answer:
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"]
        except (TypeError, KeyError, IndexError):
            raise _Malformed(f"the reply is no chat completion: {json.dumps(answer, ensure_ascii=False)}") from None
        if not isinstance(text, str):
            raise _Malformed(f"the reply has no text: {json.dumps(answer, ensure_ascii=False)}")
        text = self._without_key(_utf8(text))
        usage = answer.get("usage") or {}
        read, written = (usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens"))
        cut = choice.get("finish_reason") == "length"
        if isinstance(read, int) and isinstance(written, int) and min(read, written) >= 0:
            return _Answer(text, read, written, cut, estimated=False)
        asked = sum(len(message["content"]) for message in messages)
        return _Answer(text, -(-asked // 3), -(-len(text) // 3), cut, estimated=True)

    def _give_in(self, error: Any) -> bool:
        """Leave out the option that a server refuses: True where there was one, and the request is worth another try.

        Some models of OpenAI take max_completion_tokens for max_tokens and no temperature; some servers take no response_format.
        """
        if error.status_code not in (400, 404, 415, 422, 501):
            return False
        told = str(error)
        if "max_completion_tokens" in told and "max_tokens" in self.options:
            self.options["max_completion_tokens"] = self.options.pop("max_tokens")
        elif "temperature" in told and "temperature" in self.options:
            del self.options["temperature"]
        elif "response_format" in self.options and error.status_code != 404:
            del self.options["response_format"]
        else:
            return False
        return True

    def _failed(self, error: Exception) -> PawlError:
        told = self._without_key(" ".join(str(error).split()) or type(error).__name__)[:400]
        fix = "see that the server runs and serves this model, that the key is right, and that timeout_s is long enough"
        return PawlError(f"{self.llm.model} did not answer: {told}", where=self.llm.base_url, fix=fix)

    def _without_key(self, text: str) -> str:
        return text if self.key == "none" else text.replace(self.key, "[key]")
