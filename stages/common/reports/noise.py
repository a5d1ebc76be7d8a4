"""How many verdicts change when the same weights are evaluated twice: reports/noise/KEY.json (see
`stages.common.noise`).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from stages.common.reports.base import Count, Part, Report


class Counts(Part):
    """Answers that were given twice, verdicts that changed (`flips`), texts that changed."""

    answers: Count
    flips: Count
    texts: Count = 0

    @model_validator(mode="after")
    def _of_answers(self) -> Self:
        if not 0 <= self.flips <= self.answers or not self.answers:
            raise ValueError("flips should be at most the number of answers")
        return self


class NoiseReport(Counts, Report):
    """Two evaluations of the same items.

    Attributes:
        concurrency: requests in flight, of both runs.
        fingerprint, items_sha256: of the configuration that was measured, as in an evaluation's
            summary.
    """

    remedy = "measure it again: python -m stages.evaluate --noise"

    benchmarks: dict[str, Counts] = {}
    model: str = ""
    concurrency: list[Count] = []
    fingerprint: dict[str, Any] = {}
    items_sha256: str | None = None
