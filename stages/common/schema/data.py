"""Training data: sources, filters, limits."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.schema.rules import number
from stages.common.schema.source import Source


@dataclass
class Data:
    """Training data."""

    name: str = MISSING
    seed: int = number(low=0)
    sources: dict[str, Source] = MISSING
    max_rows: int = number(low=0)
    ngram: int = number(low=3, high=50, unit="words")
    max_contamination: float = number(low=0, high=1)
    max_bad_fraction: float = number(low=0, high=1)
