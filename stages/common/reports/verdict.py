"""reports/judge.json: is the candidate better than the incumbent, by which evidence, and in which
words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from stages.common.reports.base import Count, Figure, Part
from stages.common.reports.look import Looked

Outcome = Literal["accept", "reject", "inconclusive"]
Metric = Literal["correct", "score"]
Shape = Literal["diverging", "too short", "oscillating", "flat", "falling", "converged"]
Rate = Literal["", "too high", "too low"]


class Sided(Part):
    """One side's accuracy with its 95 % interval, lenient accuracy and mean score (absent in
    verdicts from before it was stated).
    """

    accuracy: Figure
    low: Figure
    high: Figure
    lenient: Figure
    score: Figure | None = None

    def measured(self, metric: Metric) -> float:
        """What is compared: the accuracy, or the mean score."""
        return self.score if metric == "score" and self.score is not None else self.accuracy


class Figures(Part):
    """The evidence of one set of pairs.

    Attributes:
        n: items; `repeats`: how often each was asked, of candidate and incumbent.
        difference: of the metric; `low`, `high`: its 95 % interval, by the method `interval`.
        p_better, p_two_sided: exact p-values; the one-sided one decides.
        candidate_only, incumbent_only: items on which that side alone was right (with repeats or
            scores: did better).
        gain, loss: sums of the positive and of the negative differences; `spread`: their standard
            deviation.
        within: the part of their variance that repeats average out; None if each item was asked
            once.
    """

    n: Count
    repeats: list[Count] = [1, 1]
    candidate: Sided
    incumbent: Sided
    difference: Figure
    low: Figure
    high: Figure
    interval: str = ""
    lenient_difference: Figure
    score_difference: Figure = 0.0
    p_better: Figure
    p_two_sided: Figure
    candidate_only: Count
    incumbent_only: Count
    gain: Figure
    loss: Figure
    spread: Figure = 0.0
    within: Figure | None = None


class Guarded(Part):
    """A benchmark that may not lose more than a margin: the interval of its difference, and whether
    it kept its level.
    """

    benchmark: str
    low: Figure
    high: Figure
    margin: Figure
    verdict: Literal["kept", "lost", "unknown"]


class Further(Part):
    """How many more items, or repeats of the present ones, would decide at the observed rates; ""
    stands for all items together.
    """

    benchmark: str = ""
    towards: Literal["accept", "reject"]
    items: Count
    repeats: Count | None = None
    power: Figure


@dataclass(frozen=True)
class Deciding:
    """What the verdict is about: `benchmark` is "" for all items together, `before` and `after` are
    of the measure.
    """

    benchmark: str
    measure: str
    before: float
    after: float
    figures: Figures


class Evidence(Part):
    """Figures of each benchmark and of all items, and what they decide before any veto.

    Attributes:
        look, level: the number of this look at the items, and the level of its test; `alpha` is of
            all looks together.
        metric, primary: what is measured, and the benchmark that decides ("": all items together).
        further_items: what would decide, if it is inconclusive.
    """

    alpha: Figure
    look: Count = 1
    level: Figure | None = None
    min_effect: Figure
    metric: Metric = "correct"
    primary: str = ""
    outcome: Outcome
    why: str
    pooled: Figures
    benchmarks: dict[str, Figures]
    guarded: list[Guarded] = []
    further_items: Further | None = None

    @model_validator(mode="after")
    def _has_its_primary(self) -> Self:
        if self.primary and self.primary not in self.benchmarks:
            raise ValueError("primary should be one of the benchmarks")
        return self

    @property
    def deciding(self) -> Deciding:
        """The figures that decided. Nothing else knows which these are."""
        figures = self.benchmarks[self.primary] if self.primary else self.pooled
        measure = "mean score" if self.metric == "score" else "strict accuracy"
        before, after = (
            side.measured(self.metric) for side in (figures.incumbent, figures.candidate)
        )
        return Deciding(self.primary, measure, before, after, figures)


class About(Part):
    """The experiment that is judged, and what it is compared with."""

    name: str
    hypothesis: str = ""
    parent: str = ""
    incumbent: str


class Thresholds(Part):
    """The thresholds that were applied, under their names in params.yaml."""

    alpha: Figure
    min_effect: Figure
    primary: str = ""
    metric: Metric = "correct"
    max_regression: Figure
    max_truncated: Figure


class Guard(Part):
    """A check besides the evidence; one that did not pass is a veto. `detail` says what was
    found.
    """

    guard: str
    passed: bool
    detail: str = ""


class CutOff(Part):
    """The share of answers that were cut off at the output limit."""

    candidate: Figure
    incumbent: Figure


class ErrorKind(CutOff):
    """The share of all answers that are wrong in one way, and whether it grew by more than chance
    would.
    """

    grew: bool


class Curve(Part):
    """What the training loss says (see `stages.judge.curve`), in words that a proposer may read: no
    text of others is among them.
    """

    shape: Shape
    learning_rate: Rate = ""
    overfitting: bool
    logged: Count = 0


class Versions(Part):
    """Of the rules, their method and scipy."""

    rules: Count
    method: str
    scipy: str


class Ingredient(Part):
    """What a candidate was made of besides its parameters, as a hash; "" if it is not there."""

    what: str
    sha256: str


class Words(Part):
    """The verdict for people."""

    summary: str = Field(alias="Code Summary")
    reason: str = Field(alias="Reason")
    decision: Literal["yes", "no"] = Field(alias="Decision")


class Leaks(Part):
    """Sentences that repeated benchmark content: found in the first reply, cut from the last
    one.
    """

    found: Count
    cut: Count


class Opinion(Part):
    """What a language model said; it can veto and cannot accept.

    Attributes:
        failed: why it has no words; "" if it has.
        disagreement: it says otherwise than the evidence.
        answered_as, not_sent: the name that its reply was signed with, and options that its server
            refused.
    """

    model: str
    decision: str
    veto: bool
    disagreement: bool
    failed: str
    leaks: Leaks
    repaired: bool = False
    prompt_tokens: Count
    output_tokens: Count
    cost: Figure
    answered_as: str = ""
    not_sent: list[str] = []


class Judged(Looked):
    """A verdict without its words.

    Attributes:
        accepted: the same as the outcome "accept". An acceptance has guards, and all of them
            passed.
        errors: by kind of wrong answer.
    """

    experiment: About
    outcome: Outcome
    accepted: bool
    evidence: Evidence
    rule: Thresholds | None = None
    guards: list[Guard]
    truncated: CutOff | None = None
    errors: dict[str, ErrorKind] = {}
    curve: Curve | None = None
    versions: Versions | None = None

    @model_validator(mode="after")
    def _carries_what_it_says(self) -> Self:
        if self.accepted != (self.outcome == "accept"):
            raise ValueError("outcome and accepted contradict each other")
        if self.accepted and not (self.guards and all(guard.passed for guard in self.guards)):
            raise ValueError("it is an acceptance whose guards did not all pass, or that has none")
        if self.accepted and self.evidence.outcome != "accept":
            raise ValueError("it is an acceptance that its evidence does not carry")
        return self


class Verdict(Judged):
    """A whole verdict.

    Attributes:
        made_of: absent in verdicts from before it was recorded.
        words_by: rules or llm.
        opinion: None without a language model.
    """

    made_of: list[Ingredient] | None = None
    words: Words
    words_by: str = "rules"
    opinion: Opinion | None = None
