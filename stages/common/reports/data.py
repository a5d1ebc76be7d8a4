"""reports/generate_data.json: where the training rows come from, and what was removed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stages.common.reports.base import Count, Figure, Part, Report, Share


class SourceCounts(Part):
    """What became of the rows of one source; `read` is the sum of the others. `unused`: beyond its
    count, its share or `data.max_rows`.

    `unverified`: the teacher's answer was not shown to be right; `refused`: the teacher's server
    would not answer.
    """

    read: Count = 0
    bad: Count = 0
    refused: Count = 0
    unverified: Count = 0
    empty: Count = 0
    refusal: Count = 0
    format: Count = 0
    language: Count = 0
    duplicates: Count
    near_duplicates: Count = 0
    contaminated: Count
    too_long: Count = 0
    unused: Count = 0
    kept: Count = 0


class Flow(Part):
    """How many rows came to a filter and passed it, and a few that did not: their places and why,
    without their text.
    """

    filter: str
    came: Count = Field(alias="in")
    passed: Count = Field(alias="out")
    examples: list[str] = []


class Tokens(Part):
    """Of the training rows: all, and quantiles of a row."""

    total: Count
    p50: Count
    p90: Count
    p99: Count
    max: Count


class Hits(Part):
    """Rows that overlap with items of a benchmark's split in one way (exact, ngram, short,
    fuzzy).
    """

    benchmark: str
    split: str
    match: str
    rows: Count


class Contamination(Part):
    """The share of different rows that overlap with the benchmark, which were removed, and by what
    they were found.
    """

    fraction: Share
    hits: list[Hits] = []


class Teaching(Part):
    """What the replies of a teacher in use cost when they were made. `odd`: what is not as it
    should be about them, counted.
    """

    model: str
    requests: Count
    prompt_tokens: Count
    output_tokens: Count
    cost: Figure
    odd: dict[str, Count] = {}


class DataReport(Report):
    """The training data.

    Attributes:
        kind: of the rows: sft, dpo, kto or pt.
        positive_control: by task, and for a row of none, which planted overlaps were found; None if
            such a one cannot be planted.
        teacher: by tier.
        remarks: what is wrong with bad rows, and which of their keys were not used.
    """

    remedy = "run 'dvc repro -f generate_data' to make the report again"

    name: str = ""
    kind: str = "sft"
    rows: Count
    eval_rows: Count = 0
    seed: int | None = None
    sources: Annotated[dict[str, SourceCounts], Field(min_length=1)]
    filters: list[Flow] = []
    tokens: Tokens
    contamination: Contamination | None = None
    positive_control: dict[str, dict[str, bool | None]] = {}
    teacher: dict[str, Teaching] = {}
    remarks: list[str] = []

    @property
    def contaminated(self) -> int:
        return sum(source.contaminated for source in self.sources.values())
