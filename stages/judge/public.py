"""What of the configuration and of a failure a judge's provider may read: no address, host, user,
key or path outside the project.
"""

from __future__ import annotations

import functools
import getpass
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stages.common.files import ROOT
from stages.common.redaction import redact

SECTIONS = ("model", "data", "benchmark", "train", "launcher", "engine", "evaluate")
_ELSEWHERE = re.compile(
    r".*(?:base_url|api_key_env|_url|url|address|host|port|user|username|password|token|key_env|secret)|llm"
)
"""Names of keys that only tell where a server is, or who asks it."""
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]]+")
_NUMBERED = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?(?![\w.])")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_NAMED_HOST = re.compile(r"(?i)((?:host(?:name)?|server|address)\s*[=:]\s*['\"]?)[\w.-]+(?::\d+)?")
_PATH = re.compile(r"(?<![\w./~])(?:~|/[\w.@+-]+)(?:/[\w.@+-]+)+")


def public_settings(params: Any) -> dict[str, Any]:
    """The sections of the parameters as plain values, as a provider may read them."""
    shown = {name: asdict(getattr(params, name)) for name in SECTIONS if hasattr(params, name)}
    return {name: public(part) for name, part in shown.items()}


def public(value: Any) -> Any:
    """A value of the configuration without the keys that only tell where a server is, and with
    `anonymous` texts.
    """
    if isinstance(value, dict):
        return {
            name: public(part)
            for name, part in value.items()
            if not _ELSEWHERE.fullmatch(str(name))
        }
    if isinstance(value, list | tuple):
        return [public(part) for part in value]
    return anonymous(value) if isinstance(value, str) else value


def anonymous(text: str) -> str:
    """The text without secrets, addresses, names of hosts and users; of a path outside the project
    its last part stays.
    """
    text = redact(text).replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    text = _MAIL.sub("[mail]", _ADDRESS.sub("[address]", text))
    text = _NAMED_HOST.sub(r"\1[host]", _NUMBERED.sub("[address]", text))
    text = _PATH.sub(lambda found: f".../{found[0].rpartition('/')[2]}", text)
    for name, shown in _ours():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown, text)
    return text


@functools.cache
def _ours() -> list[tuple[str, str]]:
    """This machine's and this user's names, unless they are everyday words."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    names = {
        socket.gethostname(): "[host]",
        socket.getfqdn(): "[host]",
        user: "[user]",
        Path.home().name: "[user]",
    }
    return [
        (name, shown)
        for name, shown in names.items()
        if len(name) > 3 and name not in ("root", "localhost", "user", "home")
    ]
