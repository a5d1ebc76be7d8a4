"""How a declared parameter is bounded: a range with its unit, a choice, a check of a whole
section.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from typing import Any

from omegaconf import MISSING

from stages.common.errors import PawlError

CHECKS: dict[type, Callable[[Any, str], None]] = {}
"""What one field alone cannot say of a section: called with the section and its dotted key, raises
PawlError.
"""


def number(
    default: Any = MISSING,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    unit: str = "",
    shapes: bool = True,
) -> Any:
    """A number in a range. `shapes`: it decides what comes out (see
    `stages.common.keys.shapes_result`).
    """
    return field(
        default=default,
        metadata={"low": low, "above": above, "high": high, "unit": unit, "shapes": shapes},
    )


def choice(*options: str) -> Any:
    """One of `options`."""
    return field(default=MISSING, metadata={"options": options})


def aside(default: Any = MISSING) -> Any:
    """A value that shapes no result: a name, a licence, the variable of a key."""
    return field(default=default, metadata={"shapes": False})


def checks(section: type) -> Callable[[Callable[[Any, str], None]], Callable[[Any, str], None]]:
    """Register a check of a section."""

    def register(check: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        CHECKS[section] = check
        return check

    return register


def need_set(section: Any, key: str, chosen_by: str, names: tuple[str, ...]) -> None:
    """Refuse a section in which one of `names` is empty although its `chosen_by` asks for it."""
    for name in names:
        if not getattr(section, name):
            given = getattr(section, chosen_by)
            raise PawlError(
                f"{key}.{name} is empty, but {key}.{chosen_by} is {given!r}",
                where=f"{key}.{name}",
                fix=f"set {key}.{name}",
            )


def validate(value: Any, key: str) -> None:
    """Check the bounds and choices of a dataclass and of everything in it; types were checked when
    it was made.

    Raises:
        PawlError: the first value out of range; `where` is its dotted key.
    """
    if isinstance(value, dict):
        for name, part in value.items():
            validate(part, f"{key}.{name}")
    if not is_dataclass(value):
        return
    for spec in fields(value):
        name, given, rule = f"{key}.{spec.name}", getattr(value, spec.name), spec.metadata
        validate(given, name)
        if "options" in rule and given not in rule["options"]:
            raise PawlError(
                f"{name} is {given!r}",
                where=name,
                fix=f"choose one of: {', '.join(rule['options'])}",
            )
        if "low" in rule and not _in_range(given, rule):
            raise PawlError(
                f"{name} is {given!r}, out of range", where=name, fix=f"choose {_range(rule)}"
            )
    check = CHECKS.get(type(value))
    if check:
        check(value, key)


def _in_range(given: float, rule: Any) -> bool:
    if given != given:  # NaN compares false with everything, so it must be refused first
        return False
    low, above, high = rule["low"], rule["above"], rule["high"]
    return (
        (low is None or given >= low)
        and (above is None or given > above)
        and (high is None or given <= high)
    )


def _range(rule: Any) -> str:
    parts = [
        f"{word} {rule[name]:g}"
        for name, word in (("low", "at least"), ("above", "above"), ("high", "at most"))
        if rule[name] is not None
    ]
    return " and ".join(parts) + (f" ({rule['unit']})" if rule["unit"] else "")
