"""reports/build_benchmark.json: how many items there are of each task, and whether their scoring
works.
"""

from __future__ import annotations

from typing import Any

from stages.common.reports.base import Count, Figure, Part, Report


class TaskCounts(Part):
    """The items of one task.

    Attributes:
        duplicates: questions that occurred more than once; `repeated`: where, in the file that they
            come from.
        in_worked_examples: questions left out, since the task's own worked examples show them.
        spare: questions that no split has: of the train part, and beyond what was asked for.
    """

    val: Count
    test: Count = 0
    duplicates: Count = 0
    licence: str = ""
    repeated: list[Any] = []
    in_worked_examples: Count = 0
    spare: dict[str, Count] = {}


class SelfTest(Part):
    """Who scores a task, and the shares of known replies that were scored right: by OpenCompass
    alone, and by what decides.

    `why` some of them were not tried.
    """

    scored_by: str
    items: Count = 0
    opencompass: dict[str, Figure | None] = {}
    decides: dict[str, Figure | None] = {}
    why: str = ""


class BenchmarkReport(Report):
    """The benchmark; its hashes are of the files of a split."""

    remedy = "run 'dvc repro -f build_benchmark' to make the report again"

    name: str = ""
    seed: int | None = None
    tasks: dict[str, TaskCounts]
    duplicates: Count = 0
    licence: str = ""
    self_test: dict[str, SelfTest] = {}
    val_sha256: str = ""
    test_sha256: str = ""
