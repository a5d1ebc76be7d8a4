"""From reports to a verdict: evidence, guards, the look that it spends, words, and what a language
model has to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.common import failure as failures
from stages.common import looks
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import write_json, write_text
from stages.common.redaction import redacted
from stages.common.reports.look import Look
from stages.common.reports.verdict import (
    About,
    CutOff,
    Evidence,
    Judged,
    Metric,
    Thresholds,
    Verdict,
    Versions,
)
from stages.common.schema import Experiment, Judge
from stages.common.text import plain
from stages.judge import curve, failure, guards, made, prompt, words
from stages.judge.evidence import Rule, evidence
from stages.judge.inputs import Inputs, read_failure, read_former, read_inputs, read_items
from stages.judge.leaks import Guard
from stages.judge.opinion import opine
from stages.judge.pairing import pair
from stages.judge.public import SECTIONS, public_settings
from stages.judge.samples import tally

RULES = 4
METHOD = (
    "exact sign-flip (McNemar) test, Tango or BCa interval, alpha spending 6/(pi k)^2 over the"
    " looks at these items"
)


def judge_reports(
    root: Path,
    judge: Judge,
    experiment: Experiment,
    *,
    max_contamination: float = 1.0,
    settings: dict[str, Any] | None = None,
    more_roots: Iterable[Path] = (),
) -> Verdict:
    """Judge the reports under `root` and write the verdict beside them; the look is written down
    there and in `more_roots`.

    Args:
        settings: the sections of params.yaml that a language model is told (see
            `prompt.public_settings`).
    """
    inputs, settings = read_inputs(root, experiment.incumbent), settings or {}
    judged = verdict_on(inputs, judge, experiment, max_contamination, [root, *more_roots])
    made_of = made.made_of(root, inputs)
    former = read_former(root, experiment.incumbent)
    changes = prompt.differences(former, settings) if former else []
    changes += made.changed(root, experiment.incumbent, made_of)
    known = words.facts(judged, inputs, settings, changes)
    said, said_by, opinion = words.put_into_words(known), "rules", None
    if judge.kind == "llm":
        its_words, opinion = opine(root, judge, judged, known, inputs, settings)
        if its_words:
            said, said_by = its_words, "llm"
        if opinion.veto:
            judged = judged.model_copy(update={"outcome": "reject", "accepted": False})
        decided = "yes" if judged.accepted else "no"  # what was decided; its own is in the opinion
        said = said.model_copy(update={"decision": decided})
        known |= {"outcome": judged.outcome, "accepted": judged.accepted}
    verdict = Verdict(
        **dict(judged), made_of=made_of, words=said, words_by=said_by, opinion=opinion
    )
    write_json(root / "reports" / "judge.json", redacted(verdict.plain()))
    write_text(root / "reports" / "judge.md", words.page(verdict, known))
    return verdict


def verdict_on(
    inputs: Inputs,
    judge: Judge,
    experiment: Experiment,
    max_contamination: float,
    roots: Iterable[Path],
) -> Judged:
    """The verdict without its words: evidence, guards, outcome. Its look is spent before anyone can
    read it.
    """
    checked = guards.check(inputs, judge.max_truncated, max_contamination, judge.same_base_model)
    pairs = pair(inputs.candidate.rows, inputs.incumbent.rows)
    metric: Metric = "score" if judge.metric == "score" else "correct"
    rule = Rule(judge.alpha, judge.min_effect, 1, judge.primary, judge.max_regression, metric)
    found: list[Evidence] = []

    def at_look(look: int) -> dict[str, Any]:
        found.append(evidence(pairs, replace(rule, look=look)))
        outcome = found[-1].outcome if all(guard.passed for guard in checked) else "reject"
        return {
            "experiment": plain(experiment.name, 120),
            "n": found[-1].pooled.n,
            "outcome": outcome,
        }

    questions = {key: item["question"] for key, item in inputs.items.items()}
    look = looks.of_pair(
        inputs.candidate.rows, inputs.incumbent.rows, questions, judge.primary, judge.metric
    )
    noted = looks.enter(roots, look, at_look)
    return Judged(
        experiment=About(**{name: getattr(experiment, name) for name in About.model_fields}),
        outcome=noted["outcome"],
        accepted=noted["outcome"] == "accept",
        evidence=found[-1],
        looks=[Look.model_validate(look | noted)],
        rule=Thresholds(**{name: getattr(judge, name) for name in Thresholds.model_fields}),
        guards=checked,
        truncated=CutOff(
            candidate=guards.truncated(inputs.candidate.rows),
            incumbent=guards.truncated(inputs.incumbent.rows),
        ),
        errors=tally(inputs.candidate.rows, inputs.incumbent.rows),
        curve=curve.read_curve(inputs.losses),
        versions=_versions(),
    )


def _versions() -> Versions:
    import scipy

    return Versions(rules=RULES, method=METHOD, scipy=scipy.__version__)


def explain_failure(root: Path, since: float) -> int:
    """Write the newest failure of a stage as reports/failure.md and say it in a few lines; 0 also
    where there is none.
    """
    record = read_failure(root, since)
    if record is None:
        print("judge: no stage left a record of a failure" + (" in this run" if since else ""))
        return 0
    try:
        params = read_params("judge", "experiment", *SECTIONS)
    except PawlError:  # a broken params.yaml may be the failure itself
        params = None
    verdict = failure.explain(record, params.experiment.hypothesis if params else "", root)
    if params and params.judge.kind == "llm":
        try:
            items = list(read_items(root).values())
        except PawlError:
            # a broken file of items may be the failure itself: without them, nobody could tell what
            # repeats one
            verdict["failed"] = "not asked: the validation items cannot be read"
        else:
            verdict = failure.ask(
                verdict,
                params.judge.llm,
                public_settings(params),
                params.experiment,
                Guard(items, [], [], ""),
            )
    failures.explain(root, record, verdict["words"]["Reason"], verdict.get("paid") or {})
    path = root / "reports" / "failure.md"
    write_text(path, failure.page(verdict))
    print(f"judge: {plain(verdict['words']['Reason'], 1500)}\n  more:  {path.relative_to(root)}")
    if paid := verdict.get("paid"):
        print(
            f"  paid:  {paid['cost']:.9f} for {paid['prompt_tokens']} and {paid['output_tokens']}"
            " tokens"
        )
    return 0
