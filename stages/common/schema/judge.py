"""When a candidate counts as better."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.schema.rules import choice, number


@dataclass
class Judge:
    """When a candidate counts as better."""

    name: str = MISSING
    kind: str = choice("rules")
    alpha: float = number(above=0, high=0.5)
    min_effect: float = number(low=0, high=1, unit="accuracy, 0.01 is one point")
    max_truncated: float = number(low=0, high=1)
