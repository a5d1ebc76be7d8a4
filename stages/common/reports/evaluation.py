"""What an evaluation leaves: one row an item (SPLIT.jsonl), and the summary that is computed from
them (SPLIT.json).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from stages.common.files import read_jsonl, write_jsonl
from stages.common.reports.base import Count, Figure, Part, Report


class Answer(Report):
    """What one model answered to one item, of either split.

    Attributes:
        item_id: hash of the item's content (see `items.item_id`), the same for base, incumbent and
            candidate.
        correct: the benchmark's own strict verdict; it decides.
        score: credit in [0, 1]; equals `correct` if the benchmark gives no partial credit.
        prediction: the reply as generated, before any post-processing.
        prompt_tokens, output_tokens: as counted by the server.
        truncated: the reply hit the output limit before it ended.
        repeat: 0 for the first run over the items, 1 for the second, ...
        fingerprint: hash of what the answers depend on (model, template, engine, sampling), as the
            summary's spells it out.
    """

    model_config = ConfigDict(extra="forbid")
    remedy = "evaluate it again: 'dvc repro -f' on its stage"

    item_id: str
    benchmark: str
    split: str
    correct: bool
    score: Annotated[float, Field(ge=0, le=1)]
    prediction: str
    gold: str
    prompt_tokens: Count
    output_tokens: Count
    truncated: bool
    repeat: Count = 0
    fingerprint: str = ""


class Row(Answer):
    """An answer to a validation item. Its split is what makes it one: an answer to a test item is
    refused.
    """

    split: Literal["val"]


class Scores(Part):
    """Scores of a benchmark, or of all items together.

    Attributes:
        n: answers; `items`: the items behind them, if each was asked several times.
        accuracy_low, accuracy_high: 95 % interval, that of Wilson.
        pass_at_k: by k, the chance that one of k answers to an item is right.
        opencompass: OpenCompass's own figure, if ours decides; `overruled`: answers that it took
            for right and that hold none; `folded`: answers that are right in another form of
            Unicode.
    """

    n: Count
    accuracy: Figure
    accuracy_low: Figure
    accuracy_high: Figure
    lenient: Figure
    score: Figure
    truncated: Count
    output_tokens: Count
    prompt_tokens: Count
    items: Count | None = None
    pass_at_k: dict[str, Figure] = {}
    opencompass: Figure | None = None
    overruled: Count = 0
    folded: Count = 0


class Unanswered(Part):
    """Replies without text, by the server's reason."""

    n: Count
    finish_reasons: dict[str, Count] = {}


class Oddities(Part):
    """What is odd about replies, counted; what is not odd is absent.

    Attributes:
        answered_as: replies signed by another model than the one asked, by its name.
        estimated_token_counts: replies whose tokens the server did not count.
        not_sent: options of the sampling that the server refuses.
    """

    unanswered: Unanswered | None = None
    answered_as: dict[str, Count] = {}
    estimated_token_counts: Count = 0
    not_sent: list[str] = []


class Summary(Oddities, Report):
    """An evaluation of one split.

    Attributes:
        items_sha256: of the ids of the items; `rows_sha256`: of the file of rows (None in results
            from before it was stated).
        fingerprint: what the answers depend on. Any key may be in it: what is not known to be
            harmless is compared.
        settings: how was asked and scored, as configured.
        thinking: replies with thoughts, their characters, and thoughts that never ended.
        engine_judge: the same oddities of the language model that judged the answers.
        model, opencompass, runtime_s: whose answers, the version that scored them, and how long it
            took.
    """

    remedy = "run 'dvc repro' to evaluate it again"

    split: str
    overall: Scores
    benchmarks: dict[str, Scores]
    items_sha256: str | None = None
    rows_sha256: str | None = None
    fingerprint: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    thinking: dict[str, Count] = {}
    engine_judge: Oddities | None = None
    model: str = ""
    opencompass: str = ""
    runtime_s: Figure | None = None


class EvalSummary(Summary):
    """An evaluation of the validation split."""

    split: Literal["val"]


Kind = TypeVar("Kind", bound=Answer)


def write_rows(path: Path | str, rows: Iterable[Answer]) -> None:
    write_jsonl(path, (row.model_dump() for row in rows))


def read_rows(path: Path | str, kind: type[Kind]) -> list[Kind]:
    """Per-item results.

    Raises:
        PawlError: a missing or broken file, or a row that is none of this kind; with its number and
            the first column that is wrong.
    """
    return [
        kind.check(value, f"{path}, row {number}")
        for number, value in enumerate(read_jsonl(path), 1)
    ]
