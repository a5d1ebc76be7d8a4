"""From reports to a verdict: evidence, guards, the look that it spends, words, and what a language model has to say."""

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
from stages.common.schema import Experiment, Judge
from stages.common.text import plain
from stages.judge import curve, failure, guards, made, opinion, prompt, words
from stages.judge.evidence import Rule, evidence
from stages.judge.inputs import Inputs, read_failure, read_former, read_inputs, read_items
from stages.judge.leaks import Guard
from stages.judge.pairing import pair
from stages.judge.public import SECTIONS, public_settings
from stages.judge.samples import tally

RULES = 4
METHOD = "exact sign-flip (McNemar) test, Tango or BCa interval, alpha spending 6/(pi k)^2 over the looks at these items"


def judge_reports(
    root: Path,
    judge: Judge,
    experiment: Experiment,
    *,
    max_contamination: float = 1.0,
    settings: dict[str, Any] | None = None,
    more_roots: Iterable[Path] = (),
) -> dict[str, Any]:
    """Judge the reports under `root` and write the verdict beside them; the look is written down there and in `more_roots`.

    Args:
        settings: the sections of params.yaml that a language model is told (see `prompt.public_settings`).
    """
    inputs = read_inputs(root, experiment.incumbent)
    verdict = verdict_on(inputs, judge, experiment, max_contamination, [root, *more_roots])
    verdict["made_of"], settings = made.made_of(root, inputs), settings or {}
    former = read_former(root, experiment.incumbent)
    changes = prompt.differences(former, settings) if former else []
    changes += made.changed(root, experiment.incumbent, verdict["made_of"])
    known = words.facts(verdict, inputs, settings, changes)
    verdict["words"], verdict["words_by"], verdict["opinion"] = words.put_into_words(known), "rules", None
    if judge.kind == "llm":
        said = opinion.opine(root, judge, verdict, known, inputs, settings)
        verdict["opinion"] = {name: value for name, value in said.items() if name != "words"}
        if said["words"]:
            verdict["words"], verdict["words_by"] = said["words"], "llm"
        if said["veto"]:
            verdict["outcome"], verdict["accepted"] = "reject", False
        verdict["words"]["Decision"] = "yes" if verdict["accepted"] else "no"  # what was decided; its own is in the opinion
        known |= {"outcome": verdict["outcome"], "accepted": verdict["accepted"]}
    write_json(root / "reports" / "judge.json", redacted(verdict))
    write_text(root / "reports" / "judge.md", words.page(verdict, known))
    return verdict


def verdict_on(inputs: Inputs, judge: Judge, experiment: Experiment, max_contamination: float, roots: Iterable[Path]) -> dict[str, Any]:
    """The verdict without its words: evidence, guards, outcome. Its look is spent before anyone can read it."""
    checked = guards.check(inputs, judge.max_truncated, max_contamination, judge.same_base_model)
    pairs = pair(inputs.candidate.rows, inputs.incumbent.rows)
    rule = Rule(judge.alpha, judge.min_effect, 1, judge.primary, judge.max_regression, judge.metric)
    found: dict[str, Any] = {}

    def at_look(look: int) -> dict[str, Any]:
        found.update(evidence(pairs, replace(rule, look=look)))
        outcome = found["outcome"] if all(guard["passed"] for guard in checked) else "reject"
        return {"experiment": plain(experiment.name, 120), "n": found["pooled"]["n"], "outcome": outcome}

    questions = {key: item["question"] for key, item in inputs.items.items()}
    look = looks.of_pair(inputs.candidate.rows, inputs.incumbent.rows, questions, judge.primary, judge.metric)
    noted = looks.enter(roots, look, at_look)
    return {
        "experiment": {name: getattr(experiment, name) for name in ("name", "hypothesis", "parent", "incumbent")},
        "outcome": noted["outcome"],
        "accepted": noted["outcome"] == "accept",
        "evidence": found,
        "looks": [look | noted],
        "rule": {name: getattr(judge, name) for name in ("alpha", "min_effect", "primary", "metric", "max_regression", "max_truncated")},
        "guards": checked,
        "truncated": {side: guards.truncated(getattr(inputs, side).rows) for side in ("candidate", "incumbent")},
        "errors": tally(inputs.candidate.rows, inputs.incumbent.rows),
        "curve": curve.read_curve(inputs.losses),
        "versions": _versions(),
    }


def _versions() -> dict[str, Any]:
    import scipy

    return {"rules": RULES, "method": METHOD, "scipy": scipy.__version__}


def explain_failure(root: Path, since: float) -> int:
    """Write the newest failure of a stage as reports/failure.md and say it in a few lines; 0 also where there is none."""
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
        about = {"name": params.experiment.name, "hypothesis": params.experiment.hypothesis}
        try:
            items = list(read_items(root).values())
        except PawlError:  # a broken file of items may be the failure itself: without them, nobody could tell what repeats one
            verdict["failed"] = "not asked: the validation items cannot be read"
        else:
            verdict = failure.ask(verdict, params.judge.llm, public_settings(params), about, Guard(items, [], [], ""))
    failures.explain(root, record, verdict["words"]["Reason"], verdict.get("paid") or {})
    path = root / "reports" / "failure.md"
    write_text(path, failure.page(verdict))
    print(f"judge: {plain(verdict['words']['Reason'], 1500)}\n  more:  {path.relative_to(root)}")
    if paid := verdict.get("paid"):
        print(f"  paid:  {paid['cost']:.9f} for {paid['prompt_tokens']} and {paid['output_tokens']} tokens")
    return 0
