"""Secrets taken out of whatever text is kept or shown: an error, a log, a report, the journal, a
run in MLflow.

What counts as one: the values of our own environment that are named like one, what stands behind a
name like one, and what is written like one (the patterns of detect-secrets, and a few that it
lacks).
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

REMOVED = "[removed]"
SHORTEST = 6
"""Characters of an environment variable's value below which it is too common a word to be a
secret.
"""
BLOCK = 2**22
"""Characters of a log that are looked at together."""

_NAMES = re.compile(
    r"(?<![A-Z])(?:PAT|DSN|JWT|PWD|SK|CREDS?|SALT|SIGNATURE)(?![A-Z])|KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH(?!OR)|COOKIE|CONNECTION_STRING|WEBHOOK|BEARER"
)
_NO_SECRET = re.compile(
    r"PWD|OLDPWD|.*(?:KEYBOARD|_AUTH_(?:MODE|TYPE|METHOD)|_FILE|_PATH|_DIR|_SOCK)"
)
_KINDS = r"(?:api|access|account|auth|client|db|encryption|master|private|service|signing|storage)[_-]?key"
_TOKENS = "".join(
    f"(?<!{kind}[_-])"
    for kind in ("bos", "eos", "pad", "unk", "mask", "cls", "sep", "image", "special", "max")
)
_VALUE = r"(?!<)[^\s\"',;&\\]{6,}"  # no special token of a tokenizer, such as <|im_end|>
_NAMED = re.compile(
    rf"(?i)((?:{_KINDS}|{_TOKENS}token|secret|(?<![a-z])(?:pg|db|key)?pass|password|passwd|passphrase|(?<![a-z])pwd|credentials?|[_-]pat|[_-]auth"
    rf"|authorization)\b\\*[\"']?\s*(?:[:=]|(?<=[\"'])\s*,)\s*b?\\*[\"']?(?:(?:bearer|basic|token)\s+)?|--[\w-]*(?:key|token|secret|password)[\s=]+|\bbearer\s+(?=\S*\d)){_VALUE}"
)
_QUERY = re.compile(r"(?i)([?&](?:key|sig|signature|code|pw|pass|auth)=)[^\s\"'&#<>]{6,}")
_COOKIE = re.compile(r"(?i)(\b(?:set-)?cookie\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\n\"']{6,}")
_ADDRESS = re.compile(r"(://(?:[^\s/:@]+:)?)[^\s/@]+(?=@)")
_WITH_PASSWORD = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
"""The password in an address that a variable holds, whatever its name: DATABASE_URL, MONGO_URI."""
_SHAPED = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|ya29\.[\w-]{16,}|AKIA[A-Z0-9]{12,}|gsk_[A-Za-z0-9]{16,}|nvapi-[\w-]{16,}|npm_[A-Za-z0-9]{30,}|dop_v1_[a-f0-9]{40,}|r8_[A-Za-z0-9]{30,}|xai-[\w-]{20,}"
    r"|pplx-[\w-]{20,}|tgp_v1_[\w-]{16,}|fw_[A-Za-z0-9]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_LONG = re.compile(r"[\w+/=.-]{12}")
"""Without a run like this, none of the library's patterns can be found."""
_BASE64 = r"(?:\s|\\[nr]|[A-Za-z0-9+/=]{8,}|(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\]*)"
_BEGUN = re.compile(
    rf"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----{_BASE64}*(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----)?"
)
_WHOLE = re.compile(
    r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY[A-Z ]*)-----(?:(?!-----BEGIN)[\s\S]){0,20000}?-----END \1-----"
)
_ENDED = re.compile(
    r"(?:[A-Za-z0-9+/=]{16,}(?:\s|\\[nr])+)+[A-Za-z0-9+/=]*-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
)


def redact(text: str) -> str:
    """The text with every secret in it replaced by [removed]; the name before it, and the user of
    an address, stay.
    """
    if known := _known(tuple(os.environ.items())):
        text = known.sub(REMOVED, text)
    if "PRIVATE KEY" in text:
        text = _ENDED.sub(REMOVED, _BEGUN.sub(REMOVED, _WHOLE.sub(REMOVED, text)))
    for named in (_NAMED, _QUERY, _COOKIE):
        text = named.sub(rf"\1{REMOVED}", text)
    text = _ADDRESS.sub(rf"\1{REMOVED}", _SHAPED.sub(REMOVED, text))
    if _LONG.search(text):
        for pattern in _kept_patterns():
            text = pattern.sub(REMOVED, text)
    return text


def redacted(value: Any) -> Any:
    """The same of every text in a value that goes into a JSON file; names of keys are left
    alone.
    """
    if isinstance(value, dict):
        return {name: redacted(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part) for part in value]
    return redact(value) if isinstance(value, str) else value


def redact_file(path: Path) -> None:
    """The same in a log that nothing writes to any more; a log without a secret is left as it
    is.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            parts = []
            while lines := file.readlines(BLOCK):
                parts.append("".join(lines))
    except OSError:
        return
    clean = [redact(part) for part in parts]
    if clean != parts:
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.writelines(clean)


@functools.lru_cache(maxsize=8)
def _known(environment: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """What matches the secrets of an environment, as they are, line by line, and as an address or
    JSON spells them.
    """
    values = {value for name, value in environment if _secret_name(name) and not _is_path(value)}
    values |= {
        part
        for _, value in environment
        for found in _WITH_PASSWORD.findall(value)
        for part in (found, unquote(found))
    }
    forms = {
        form
        for value in values
        for line in [value, *value.splitlines()]
        for form in (line.strip(), quote(line.strip(), safe=""))
    }
    forms |= {form.replace("\n", "\\n") for form in forms}
    long_enough = sorted(
        (form for form in forms if len(form) >= SHORTEST), key=lambda form: (-len(form), form)
    )
    # a short one counts as a word of its own, so that it is not cut out of longer ones
    written = [
        re.escape(form) if len(form) >= 12 else rf"(?<!\w){re.escape(form)}(?!\w)"
        for form in long_enough
    ]
    return re.compile("|".join(written)) if written else None


@functools.cache
def _secret_name(name: str) -> bool:
    upper = name.upper()
    return bool(_NAMES.search(upper)) and not _NO_SECRET.fullmatch(upper)


def _is_path(value: str) -> bool:
    """Whether a value names a file, which is no secret and is often what an error is about."""
    if not value.startswith(("/", "~/")):
        return False
    path = Path(value)
    return path.parent != Path("/") and (path.suffix != "" or path.parent.exists())


@functools.cache
def _kept_patterns() -> tuple[re.Pattern[str], ...]:
    """The patterns of detect-secrets, but for addresses of machines (no secrets) and what is found
    above in a way that keeps its name.
    """
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    plugins: dict[str, Any] = get_mapping_from_secret_type_to_class()
    others = ("IPPublicDetector", "BasicAuthDetector", "PrivateKeyDetector")
    listed = [
        getattr(plugin, "denylist", ())
        for _, plugin in sorted(plugins.items())
        if plugin.__name__ not in others
    ]
    return tuple(
        pattern for patterns in listed if isinstance(patterns, list | tuple) for pattern in patterns
    )
