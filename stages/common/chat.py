"""One JSON object from a language model that helps: asked for by schema, bounded, validated, mended at most `repairs` times.

    structured(llm, [{"role": "user", "content": ...}], {"type": "object", "properties": ..., "required": ...}).value

What comes back is data that fits the schema, and no more than that: whoever uses it still has to check what it says.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

from stages.common import completion, web
from stages.common.completion import Reply
from stages.common.errors import PawlError
from stages.common.llm import api_key
from stages.common.schema.llm import LLM

_PAUSE_S = 0.5  # before the first retry; doubled for each further one, and at least as long as Retry-After says
_LONGEST_PAUSE_S = 30.0
_MAY_PASS = {408, 409, 425, 429}  # with 5xx: what may be gone when asked again
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
        estimated: the server did not count its tokens, of some request at least (see completion.Reply).
        answered_as: the name that the reply carries, where it is not the model that was asked.
        not_sent: what the server refuses and was left out, such as temperature.
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
    """No valid reply came; tokens and cost are of what was asked all the same."""

    def __init__(self, error: PawlError, spent: list[int], cost: float) -> None:
        super().__init__(error.what, where=error.where, fix=error.fix)
        self.prompt_tokens, self.output_tokens, self.cost = *spent, cost


def structured(llm: LLM, messages: list[dict[str, str]], schema: dict[str, Any], *, repairs: int = 1) -> Structured:
    """Ask for one JSON object that fits `schema`.

    The schema goes along as `response_format`; a server that refuses it is asked in words. HTTP errors that may pass (408, 409, 425, 429,
    5xx, a lost connection, a timeout) and bodies that are no chat completion are asked for again, `llm.retries` times each. A reply that is
    not valid is sent back with what is wrong about it, `repairs` times; one that was cut off before its first word is not, since it would
    be again.

    Raises:
        PawlError: no server is configured.
        NoReply: the server failed for good, or no valid reply came. Never names the key.
    """
    if not llm.base_url:
        raise PawlError("no language model is configured", where="base_url", fix="set base_url and model of the section that asks for it")
    server, asking, tries, problem = _Server(llm, schema), list(messages), 0, ""
    fix = "choose a larger model, or a server that constrains its output to a JSON schema"
    while tries <= repairs:
        tries += 1
        try:
            reply = server.ask(asking)
        except PawlError as error:
            raise NoReply(error, server.spent, _cost(llm, server.spent)) from None
        value, problem = _read(reply, schema)
        if value is not None:
            spent = server.spent
            _tell(llm, reply)
            return Structured(
                value, spent[0], spent[1], _cost(llm, spent), tries > 1, reply.text, server.estimated, reply.model, reply.not_sent
            )
        if reply.missing and reply.finish_reason == "length":
            fix = "raise max_output_tokens: what it thinks counts too"
            break
        asking = [*messages, {"role": "assistant", "content": reply.text[:_SHOWN] or "(nothing)"}, _mend(problem, schema)]
    told = PawlError(f"{llm.model} gave no valid reply in {tries} tries: {problem}", where=llm.base_url, fix=fix)
    raise NoReply(told, server.spent, _cost(llm, server.spent))


def _tell(llm: LLM, reply: Reply) -> None:
    """What the reader has to know of a server that does other than it was asked."""
    if reply.model:
        print(f"note: {llm.model} was asked, and the reply is signed {reply.model}", file=sys.stderr)
    if reply.not_sent:
        print(f"note: {llm.model} does not take {', '.join(reply.not_sent)}: it was asked without", file=sys.stderr)


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


def _read(reply: Reply, schema: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object of a reply, or what is wrong with it."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    value = first_object(reply.text)
    if value is None:
        return None, "it holds no JSON object" + (", and was cut off at the output limit" if reply.finish_reason == "length" else "")
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
    """One server, and what was asked of it so far. Remembers what it does not take, so that it is told once."""

    def __init__(self, llm: LLM, schema: dict[str, Any]) -> None:
        self.llm, self.schema, self.key = llm, schema, api_key(llm.api_key_env)
        self.url = f"{llm.base_url.rstrip('/')}/chat/completions"
        self.wanted: dict[str, Any] = {"max_tokens": llm.max_output_tokens, "temperature": llm.temperature}
        self.form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
        self.takes_form = True
        self.sent = completion.options(llm.base_url, llm.model, self.wanted)
        self.limit = 2**16 + 64 * llm.max_output_tokens  # bytes: a token is seldom more than 10 characters, escaped as 6 bytes each
        self.spent, self.estimated = [0, 0], False

    def ask(self, messages: list[dict[str, str]]) -> Reply:
        """One reply. What bodies that cannot be used cost is in the account too.

        Raises:
            PawlError: it failed for good.
        """
        attempt = 0
        while True:
            asked = messages if self.takes_form else self._worded(messages)
            try:
                reply = self._one(asked)
            except completion.Malformed as error:
                self._pay(*error.spent, estimated=not error.reply)
                if attempt >= self.llm.retries and not error.reply:
                    raise self._failed(error) from None
                if attempt >= self.llm.retries and error.reply:
                    return error.reply
                self._wait(attempt, 0.0)
            except _Passing as error:
                if attempt >= self.llm.retries or error.wait_s > web.LONGEST_WAIT_S:
                    raise self._failed(error) from None
                self._wait(attempt, error.wait_s)
            else:
                if reply is None:
                    continue  # without what the server refused
                self._pay(reply.prompt_tokens, reply.output_tokens, estimated=reply.estimated)
                left = completion.learnt(self.llm.base_url, self.llm.model, self.wanted, self.sent)
                return Reply(
                    self._without_key(_utf8(reply.text)), reply.prompt_tokens, reply.output_tokens, reply.finish_reason, reply.missing,
                    reply.estimated, self._without_key(_utf8(reply.model)), left,
                )  # fmt: skip
            attempt += 1

    def _one(self, messages: list[dict[str, str]]) -> Reply | None:
        """One request; None where it was refused for an option, which is then left out.

        Raises:
            _Passing, completion.Malformed, PawlError
        """
        llm = self.llm
        form = {"response_format": self.form} if self.takes_form else {}
        body = json.dumps({"model": llm.model, "messages": messages, **self.sent, **form}).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            answer = web.fetch("POST", self.url, headers=headers, timeout_s=llm.timeout_s, limit=self.limit, body=body)
        except web.Unusable as error:
            raise _Passing(str(error)) from None
        if answer.status == 200:
            return completion.read(answer.body, messages, llm.model, llm.max_output_tokens)
        cause = f"HTTP {answer.status}: {completion.message_of(answer.body)}"
        if to := web.redirected(answer, self.url):
            raise self._failed(f"HTTP {answer.status}: it redirects to {web.shown(to)}, and a prompt goes to the declared address alone")
        if self._give_in(answer.status, str(answer.body[:20_000], "utf-8", "replace")):
            return None
        if answer.status in _MAY_PASS or (answer.status >= 500 and answer.status != 501):
            raise _Passing(cause, web.retry_after(answer.headers))
        raise self._failed(cause)

    def _give_in(self, status: int, told: str) -> bool:
        """Leave out the option that a server refuses: True where there was one, and the request is worth another try."""
        less = completion.fewer(status, told, self.sent)
        if less is not None:
            self.sent = less
        elif self.takes_form and status in (400, 415, 422, 501):
            self.takes_form = False
        else:
            return False
        return True

    def _worded(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n\n{_in_words(self.schema)}"}]

    def _pay(self, prompt_tokens: int, output_tokens: int, *, estimated: bool) -> None:
        self.spent = [self.spent[0] + prompt_tokens, self.spent[1] + output_tokens]
        self.estimated = self.estimated or estimated

    def _wait(self, attempt: int, wait_s: float) -> None:
        time.sleep(max(min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S), wait_s))

    def _failed(self, error: Exception | str) -> PawlError:
        told = self._without_key(" ".join(str(error).split()))[:400]
        fix = "see that the server runs and serves this model, that the key is right, and that timeout_s is long enough"
        return PawlError(f"{self.llm.model} did not answer: {told}", where=self.llm.base_url, fix=fix)

    def _without_key(self, text: str) -> str:
        return text if self.key == "none" else text.replace(self.key, "[key]")


class _Passing(Exception):
    """A failure that may be gone when asked again, after `wait_s` seconds if the server says so. It may hold the key."""

    def __init__(self, cause: str, wait_s: float = 0.0) -> None:
        asks = f"; it asks to wait {wait_s:g} s" if wait_s > web.LONGEST_WAIT_S else ""
        super().__init__(f"{cause}{asks}")
        self.wait_s = wait_s
