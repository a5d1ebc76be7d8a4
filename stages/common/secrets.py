"""No secret reaches params.yaml, which is committed: nothing in conf/ can ask the environment, and
what looks like a secret is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from omegaconf.basecontainer import BaseContainer

from stages.common.errors import PawlError
from stages.common.redaction import redact

_NAME = re.compile(
    r"(?i)(.*[_-])?(token|secret|password|passwd|passphrase|credentials?|pat|auth|cookie"
    r"|(api|access|private|secret|auth|account)[_-]?key)"
)
_RANDOM = re.compile(
    r"(?<![A-Za-z0-9+])(?=[A-Za-z0-9+]*[0-9])(?=[A-Za-z0-9+]*[a-z])(?=[A-Za-z0-9+]*[A-Z])[A-Za-z0-9+]{32,}"
)
_DISTINCT = 18
"""A random text of 32 letters and digits has 25 different ones on average; a name made of words has
fewer.
"""
FIX = (
    "put it into an environment variable or .env, and the variable's name into the api_key_env of"
    " what uses it"
)


class _Closed(dict[str, Any]):
    """OmegaConf's table of resolvers, empty for good: Hydra registers its own again before each
    composition.
    """

    def __setitem__(self, name: str, resolver: Any) -> None:
        """Take none."""


def close_resolvers() -> None:
    """Let no resolver run in this process (oc.env, oc.decode, hydra), however it is spelled. ${a.b}
    still means the key a.b.
    """
    BaseContainer._resolvers = _Closed()


def refuse_secrets(tree: Any, key: str = "") -> None:
    """Refuse a composed configuration with a secret in it, told by its key or by its value.

    Raises:
        PawlError: names the key, and never the value.
    """
    looks = functools.cache(looks_secret)  # most values of a configuration are the same few
    for name, value in _leaves(tree, key):
        last = name.rpartition(".")[2]
        if is_secret_name(last) and value not in (None, "", True, False):
            raise PawlError(
                f"{name} is named like a secret, and params.yaml is committed", where=name, fix=FIX
            )
        if looks(str(value)):
            raise PawlError(
                f"{name} looks like a secret, and params.yaml is committed", where=name, fix=FIX
            )
        if looks(last):
            above = name.rpartition(".")[0]
            raise PawlError(
                f"a key in {above} looks like a secret, and params.yaml is committed",
                where=above,
                fix=FIX,
            )


def is_secret_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def looks_secret(text: str) -> bool:
    """Whether a text holds what `redact` takes out of logs, or a long run of random letters and
    digits.
    """
    return redact(text) != text or any(
        len(set(found)) >= _DISTINCT for found in _RANDOM.findall(text)
    )


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, part in node.items():
            yield from _leaves(part, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for part in node:
            yield from _leaves(part, key)
    else:
        yield key, node
