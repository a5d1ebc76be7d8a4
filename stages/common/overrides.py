"""Hydra's overrides as a person writes them: how to quote what cannot be read, which key needs a
plus, what a run is called after.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from stages.common.errors import PawlError
from stages.common.redaction import redact
from stages.common.schema import Config
from stages.common.secrets import is_secret_name, looks_secret

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

SUBJECT = ("model", "data", "benchmark")
"""The sections that a hypothesis is about: with another model, other data or other items it is
another one.
"""
NO_HYPOTHESIS = "no hypothesis given"


def parse(override: str) -> Override:
    """One override as Hydra reads it.

    Raises:
        PawlError: it cannot be read, or it means a sweep; says how to quote its value.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, value = override.partition("=")
    if not key or (not equals and not override.startswith("~")):
        fix = (
            "write section.key=value, such as train.learning_rate=5e-4, or group=option, such as"
            " train=dora"
        )
        raise PawlError("not an override", where=shown(override), fix=fix)
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        what = "the override's value holds a character that Hydra gives a meaning to"
        raise PawlError(what, where=shown(override), fix=_quoted(key, value)) from None
    if parsed.is_sweep_override():
        what = "the override names several values, which one configuration cannot have"
        raise PawlError(
            what,
            where=shown(override),
            fix=f"{_quoted(key, value)}; for one run each: dvc exp run --queue -S {key}=...",
        )
    return parsed


def _quoted(key: str, value: str) -> str:
    """How to write the value so that it is read as this text; checked by reading it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    for quote in ('"', "'"):
        written = f"{key}={quote}{value}{quote}"
        try:
            if OverridesParser.create().parse_override(written).value() == value:
                hidden = shown(written) == key
                return (
                    "quote the value twice, for Hydra and for the"
                    f" shell{'' if hidden else ': ' + shlex.quote(written)}"
                )
        except HydraException:
            continue
    return "write the value into conf/experiment/current.yaml"


def shown(override: str) -> str:
    """An override as it may be printed: of what may be a secret the key alone."""
    key = override.partition("=")[0]
    return (
        key
        if looks_secret(override) or is_secret_name(key.rpartition(".")[2])
        else redact(override)
    )


def is_free(key: str) -> bool:
    """Whether a key lies in a mapping that has no fixed keys, such as train.extra, so that a plus
    before it adds it.
    """
    kind: Any = Config
    for part in key.split(".")[:-1]:
        inside = get_type_hints(kind) if is_dataclass(kind) else {}
        kind = get_args(kind)[1] if get_origin(kind) is dict else inside.get(part)
    return get_origin(kind) is dict


def with_plus(override: str) -> str:
    """An override of a source's column, which Hydra takes with a plus or without one depending on
    what conf/ has, as one for both.
    """
    return (
        f"++{override.lstrip('+')}"
        if re.match(r"\+{0,2}(data\.sources|benchmark\.tasks)\.[^.=]+\.columns\.", override)
        else override
    )


def written_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def name_of(overrides: Sequence[str]) -> str:
    """A run's name after what its overrides change of model, data and benchmark: options by their
    name, files by theirs.
    """
    parts = []
    for override in overrides:
        key, value = written_key(override), override.partition("=")[2].strip("'\"")
        if key in SUBJECT:
            parts.append(value)
        elif key.split(".")[0] in SUBJECT:
            parts.append(Path(value).stem if "/" in value else f"{key.rpartition('.')[2]}-{value}")
    return (
        re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(dict.fromkeys(parts)))[:48].strip("-.")
        or "unnamed"
    )
