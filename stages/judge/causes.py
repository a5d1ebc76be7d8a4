"""The failures that are recognised (causes.yaml): what they look like in an error, a trace or a
log, why they happen, and what to do.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

import yaml


class Cause(NamedTuple):
    """A failure that is recognised. `pattern` is looked for in single lines."""

    label: str
    name: str
    why: str
    fix: str
    pattern: re.Pattern[str]


@functools.cache
def causes() -> tuple[Cause, ...]:
    """All of them, in the order in which they are tried."""
    listed = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8"))
    return tuple(
        Cause(
            each["label"],
            each["name"],
            each["why"],
            each["fix"],
            re.compile("|".join(each["patterns"]), re.IGNORECASE),
        )
        for each in listed
    )
