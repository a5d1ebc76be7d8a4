"""Validation and test items."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.schema.rules import number
from stages.common.schema.source import Source


@dataclass
class Benchmark:
    """Validation and test items. A task name is the `benchmark` column of the per-item rows."""

    name: str = MISSING
    seed: int = number(low=0)
    tasks: dict[str, Source] = MISSING
    val_items: int = number(low=1, unit="items a task")
    test_items: int = number(low=1, unit="items a task")
    evaluator: str = MISSING
    postprocessor: str = ""
