"""What a verdict has to carry before anybody acts on it."""

from __future__ import annotations

from typing import Any


def accepted(verdict: Any) -> bool:
    """Whether a verdict (see `stages.judge`) is an acceptance: it says so twice, and has guards that all passed."""
    if not isinstance(verdict, dict) or verdict.get("outcome") != "accept" or verdict.get("accepted") is not True:
        return False
    guards = verdict.get("guards")
    return isinstance(guards, list) and bool(guards) and all(isinstance(each, dict) and each.get("passed") is True for each in guards)
