"""The turns of a conversation, however a row writes them: {role, content}, {from, value}, text, or
parts of text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stages.common.fields import Unused, is_empty, left_out, text_of

_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "developer": "system",
}
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class Turn:
    """One turn; `thoughts` before what an assistant says, `unused` its keys that change nothing."""

    role: str
    content: str
    thoughts: str = ""
    unused: tuple[str, ...] = field(default=(), compare=False)


def turns_of(value: Any, name: str, role: str) -> list[Turn]:
    """Text, one message or a list of messages.

    Args:
        role: of a text without one.

    Raises:
        ValueError: no messages, an empty turn, parts that are no text, a key of a turn that would
            be lost.
    """
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return [Turn(role, text_of(value, name))]
    if not value or not all(isinstance(message, dict) for message in value):
        raise ValueError(f"{name} is not a list of messages")
    return [_turn(message, f"{name}[{number}]") for number, message in enumerate(value)]


def _turn(message: dict[str, Any], where: str) -> Turn:
    ours = {
        "role": "role" if "role" in message else "from",
        "content": "content" if "content" in message else "value",
    }
    given = message.get(ours["role"])
    role = str(given).strip().lower()
    role = _ROLES.get(role, role)
    content = _joined(message.get(ours["content"]), where)
    thoughts = next((name for name in _THOUGHTS if not is_empty(message.get(name))), "")
    try:
        unused = left_out(message, {*ours.values(), *_THOUGHTS}, turn=role)
    except Unused as error:
        raise Unused(error.key, f"{where}: {error}") from None
    said = text_of(content, f"{where} ({role}): content")
    return Turn(role, said, text_of(message[thoughts], thoughts) if thoughts else "", tuple(unused))


def _joined(content: Any, where: str) -> Any:
    """Parts of text as one text, a line each, as vLLM shows them to a model that reads text
    alone.
    """
    if not isinstance(content, list) or not content:
        return content
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise Unused(
                str(kind),
                f"{where}: content holds a part of the type {kind!r:.40}, and training is on text",
            )
        texts.append(text)
    return "\n".join(texts)


def in_order(turns: list[Turn]) -> None:
    """Refuse what is not user and assistant in turn.

    Raises:
        ValueError: another order or role; thoughts that no later turn of training could show.
    """
    roles = [turn.role for turn in turns]
    if roles[:1] == ["system"]:
        roles = roles[1:]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        odd = next((role for role in roles if role not in ("user", "assistant")), "")
        found = f"; found the role {odd!r:.40}" if odd else ""
        raise ValueError(
            "messages must be user and assistant in turn, ending with assistant, after at most one"
            f" system message{found}"
        )
    if any(turn.thoughts for turn in turns[:-1]):
        raise ValueError("a turn before the last one has thoughts of its own, which would be lost")


def led(turns: list[Turn], system: Any) -> list[Turn]:
    """Turns after the row's own system prompt, where it has one beside them."""
    if is_empty(system):
        return turns
    said = text_of(system, "system")
    if turns[:1] and turns[0].role == "system":
        if turns[0].content.strip() != said.strip():
            raise ValueError("system beside the messages is not their system turn: keep one")
        return turns
    return [Turn("system", said), *turns]
