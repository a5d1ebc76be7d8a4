"""When a candidate counts as better."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.common.errors import PawlError
from stages.common.schema.llm import LLM
from stages.common.schema.rules import aside, checks, choice, number


@dataclass
class Judge:
    """When a candidate counts as better, and who puts the verdict into words.

    Attributes:
        kind: rules (a template words the evidence) or llm (a language model does, and may veto).
        primary: the benchmark that decides; empty where all items together do.
        metric: what is compared of an item: correct (right or wrong) or score (credit in [0, 1]).
        same_base_model: whether another base model than the incumbent's is a veto.
        seed: draws the wrong answers that the language model is shown.
    """

    name: str = aside()
    kind: str = choice("rules", "llm")
    alpha: float = number(above=0, high=0.5)
    min_effect: float = number(low=0, high=1, unit="accuracy, 0.01 is one point")
    max_truncated: float = number(low=0, high=1)
    primary: str = ""
    metric: str = field(default="correct", metadata={"options": ("correct", "score")})
    max_regression: float = number(0.1, above=0, high=1, unit="accuracy, 0.01 is one point")
    same_base_model: bool = False
    max_error_samples: int = number(12, low=0, high=200, unit="wrong answers")
    seed: int = number(0, low=0)
    llm: LLM = field(default_factory=LLM)


@checks(Judge)
def check_judge(judge: Judge, key: str) -> None:
    if judge.kind == "llm" and not judge.llm.base_url:
        fix = f"set {key}.llm.base_url to an OpenAI-compatible server, or use judge=rules"
        raise PawlError(
            f"{key}.kind is llm, but {key}.llm.base_url is empty",
            where=f"{key}.llm.base_url",
            fix=fix,
        )
