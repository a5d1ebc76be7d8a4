"""What `train.extra` may hold: the arguments of the installed LLaMA-Factory, read from its own
classes.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from dataclasses import fields
from enum import Enum
from typing import Any

from stages.common.errors import PawlError
from stages.common.schema import Train
from stages.train.arguments import RENAMED, SYSTEM

REFUSED = 3
"""Exit code of a configuration that is refused before anything is trained."""

_OURS = {name for name in Train.__dataclass_fields__ if name not in ("name", "extra")}


def refuse(what: str, key: str, fix: str) -> PawlError:
    """A configuration that cannot work: which key, and what to do."""
    return PawlError(what, where=key, fix=fix, code=REFUSED)


def argument_types() -> dict[str, Any]:
    """Every argument of a training run and its type. Imports LLaMA-Factory, which takes seconds."""
    from llamafactory.hparams.parser import _TRAIN_ARGS

    found: dict[str, Any] = {}
    for kind in _TRAIN_ARGS:
        hints = typing.get_type_hints(kind)
        found |= {spec.name: hints.get(spec.name, Any) for spec in fields(kind)}
    return found


def check_extra(extra: dict[str, Any]) -> None:
    """Refuse what needs no LLaMA-Factory to know: keys that are ours, and former names.

    Raises:
        PawlError: names the key and what to set instead.
    """
    for name in extra:
        key = f"train.extra.{name}"
        if name in RENAMED:
            new = RENAMED[name]
            raise refuse(f"{key} is called {new} now", key, _instead(new))
        if re.search(r"(_token|_key|_secret)$", name):
            raise refuse(
                f"{key} is a secret, and params.yaml is committed",
                key,
                "leave it out: the trainer works offline",
            )
        if name in SYSTEM:
            raise refuse(f"{key} is set by the pipeline", key, SYSTEM[name] or "leave it out")
        if name in _OURS:
            raise refuse(f"{key} is a parameter of our own", key, f"set train.{name}")


def check_types(extra: dict[str, Any], known: dict[str, Any]) -> None:
    """Refuse unknown keys (naming the nearest) and values of a wrong type, which LLaMA-Factory
    takes as they are from a file.
    """
    for name, value in extra.items():
        key = f"train.extra.{name}"
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known.keys() | _OURS), n=1, cutoff=0.6)
            fix = (
                f"did you mean {_instead(near[0], 'train.extra.')}?"
                if near
                else "see LLaMA-Factory's hparams for what there is"
            )
            raise refuse(
                f"LLaMA-Factory has no argument {name}",
                key,
                fix.replace("did you mean set ", "did you mean "),
            )
        if not _fits(value, known[name]):
            raise refuse(f"{key} is {value!r}", key, f"give {_words(known[name])}")


def _instead(name: str, prefix: str = "") -> str:
    if name in SYSTEM:
        return SYSTEM[name] or f"leave {name} out: the pipeline sets it"
    return f"set train.{name}" if name in _OURS else f"set train.extra.{name}"


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(kind))
    if origin is typing.Literal:
        return value in typing.get_args(kind)
    if origin is not None:
        return isinstance(value, origin)
    if kind is type(None):
        return value is None
    if kind is bool or kind is int:
        return type(value) is kind
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in {part.value for part in kind}
    return isinstance(value, kind) if isinstance(kind, type) else True


def _words(kind: Any) -> str:
    """A type in words: a whole number, one of a list, true or false."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in typing.get_args(kind)))
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(part.value) for part in kind)}"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        type(None): "null",
        dict: "a mapping",
        list: "a list",
    }
    return names.get(kind, names.get(origin, str(kind)))
