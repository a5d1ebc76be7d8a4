"""A line of experiments/looks.jsonl: one look at the validation items, or what belongs to it (see
`stages.common.looks`).
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from stages.common.reports.base import Count, Part, Report

MOST = 10**9


def _hashes(text: str) -> str:
    """A text that base64 reads.

    Raises:
        ValueError: it does not.
    """
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("should be hashes in base64") from None
    return text


Hashes = Annotated[str, AfterValidator(_hashes)]
Number = Annotated[int, Field(ge=1, le=MOST)]


class Look(Part):
    """One look.

    Attributes:
        items: hash of the items; `sketch`: the beginnings of a few of their ids.
        candidate, incumbent: hashes of who was right about which item.
        measure: what of it decides, "" for the accuracy on all items.
        questions: the questions' hashes; in a verdict alone, since the file has them once for each
            set of items.
        look: its number. `experiment`, `n`, `outcome`: what was judged, on how many items, and what
            came of it.
    """

    items: str
    sketch: str
    candidate: str
    incumbent: str
    measure: str = ""
    questions: Hashes = ""
    look: Number = 1
    experiment: str = ""
    n: Count = 0
    outcome: str = ""

    @property
    def judged(self) -> bool:
        """Whether it says what it is that was judged, and its number: a verdict's own look does."""
        return self.model_fields_set >= {"look", "experiment", "n", "outcome"}


class Looked(Report):
    """What holds the looks that it stands for (a list: DVC shows what is in one as no metric); a
    verdict has one.
    """

    remedy = "run 'dvc repro -f judge' to judge again"
    looks: list[Look] = []


class Questions(Part):
    """The hashes of the questions of a set of items."""

    items: str
    questions: Hashes


class Total(Part):
    """How many looks there were, at least."""

    looks: Annotated[int, Field(ge=0, le=MOST)]


def line_of(value: Any) -> Look | Questions | Total:
    """What a line is.

    Raises:
        ValidationError: it is none of these.
    """
    names = value.keys() if isinstance(value, dict) else ()
    if "looks" in names:
        return Total.model_validate(value)
    if "questions" in names and "candidate" not in names:
        return Questions.model_validate(value)
    return Look.model_validate(value)
