"""Training data: sources, teacher, filters, limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.llm import LLM
from stages.common.schema.rules import aside, checks, number
from stages.common.schema.source import Source

FILTERS = (
    "empty",
    "refusal",
    "format",
    "language",
    "duplicates",
    "near_duplicates",
    "decontamination",
    "too_long",
)


@dataclass
class Teacher:
    """The language models that write or mend training rows, and what one run may spend on them."""

    strong: LLM = field(default_factory=LLM)
    weak: LLM = field(default_factory=LLM)
    max_tokens: int = number(0, low=0, unit="tokens a run, prompt and output; 0: no limit")
    max_cost: float = number(0.0, low=0, unit="money a run; 0: no limit")


@dataclass
class Data:
    """Training data.

    Attributes:
        filters: which filters a row passes, in this order; decontamination cannot be left out.
        stratify: "category" or "difficulty": samples (count, weight, max_rows) take as much of each
            as it has of the whole, or "category=even", "difficulty=even": as much of each as of
            every other.
        eval_fraction: of the rows, for the loss on held-out rows; never trained on.
        think_tags: put a row's reasoning into <think> tags before its answer.
        required_tags: text that every answer must hold.
        languages: ISO 639-1 codes that a row may be in ([]: any).
        near_duplicates: Jaccard similarity from which two rows are one (0: off).
        ngram, fuzzy: words in a row that a training row may not share with an item; similarity of a
            question to an item's, numbers aside.
    """

    name: str = aside()
    seed: int = number(low=0)
    sources: dict[str, Source] = MISSING
    teacher: Teacher = field(default_factory=Teacher)
    max_rows: int = number(low=0)
    stratify: str = ""
    eval_fraction: float = number(0.0, low=0, high=0.5)
    think_tags: bool = False
    filters: list[str] = field(
        default_factory=lambda: ["empty", "duplicates", "decontamination", "too_long"]
    )
    required_tags: list[str] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    near_duplicates: float = number(0.0, low=0, high=1, unit="Jaccard similarity")
    ngram: int = number(low=3, high=50, unit="words")
    fuzzy: float = number(0.6, low=0.3, high=1, unit="Jaccard similarity")
    max_contamination: float = number(low=0, high=1, shapes=False)
    max_bad_fraction: float = number(low=0, high=1, shapes=False)


@checks(Data)
def check_data(data: Data, key: str) -> None:
    _check_filters(data, key)
    if data.stratify not in ("", "category", "difficulty", "category=even", "difficulty=even"):
        fix = "choose category or difficulty, each perhaps with =even, or nothing"
        raise PawlError(f"{key}.stratify is {data.stratify!r}", where=f"{key}.stratify", fix=fix)
    weights = [source.weight for source in data.sources.values()]
    if any(weights) and not all(weights):
        fix = "give each source a weight, or none"
        raise PawlError(
            "some sources have a weight and some have none", where=f"{key}.sources", fix=fix
        )
    for name, source in data.sources.items():
        if source.recipe and not getattr(data.teacher, source.tier).model:
            at = f"{key}.teacher.{source.tier}"
            raise PawlError(
                f"{key}.sources.{name}.recipe needs a teacher",
                where=f"{at}.model",
                fix=f"set {at}.base_url and {at}.model",
            )
        if (
            source.recipe
            and data.teacher.max_cost
            and not max((tier := getattr(data.teacher, source.tier)).price_in, tier.price_out)
        ):
            at = f"{key}.teacher.{source.tier}"
            what = (
                f"{key}.teacher.max_cost is set, but {at} has no price, so that no reply would"
                " count"
            )
            raise PawlError(
                what,
                where=f"{at}.price_out",
                fix=f"set {at}.price_in and price_out, or limit {key}.teacher.max_tokens",
            )
        if (
            source.recipe
            and source.candidates > 1
            and not getattr(data.teacher, source.tier).temperature
        ):
            at = f"{key}.teacher.{source.tier}.temperature"
            raise PawlError(
                f"{at} is 0, so that {source.candidates} candidates would be one",
                where=at,
                fix=f"raise it, or set {key}.sources.{name}.candidates to 1",
            )
        if source.kind == "procedural" and source.weight and not data.max_rows and not source.count:
            what = f"{key}.sources.{name} has a weight but no end"
            raise PawlError(
                what,
                where=f"{key}.max_rows",
                fix=f"set {key}.max_rows, or {key}.sources.{name}.count",
            )


def _check_filters(data: Data, key: str) -> None:
    where = f"{key}.filters"
    for name in data.filters:
        if name not in FILTERS or data.filters.count(name) > 1:
            what = "twice" if name in FILTERS else "unknown"
            raise PawlError(
                f"the filter {name!r} is {what}",
                where=where,
                fix=f"choose from: {', '.join(FILTERS)}",
            )
    if "decontamination" not in data.filters:
        raise PawlError(
            "decontamination cannot be left out",
            where=where,
            fix="put 'decontamination' into the list, where it is to run",
        )
    if ("language" in data.filters) != bool(data.languages):
        raise PawlError(
            f"{key}.languages and the filter 'language' belong together",
            where=f"{key}.languages",
            fix="set both or neither",
        )
    if ("near_duplicates" in data.filters) != bool(data.near_duplicates):
        fix = "set both or neither"
        raise PawlError(
            f"{key}.near_duplicates and the filter of that name belong together",
            where=f"{key}.near_duplicates",
            fix=fix,
        )
