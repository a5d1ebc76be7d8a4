"""What a language model is told of an experiment: the prompts of prompts/judge/, filled in.
Validation results alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from stages.common.files import ROOT, flatten
from stages.common.reports.base import Part
from stages.common.reports.data import DataReport
from stages.common.reports.verdict import Judged
from stages.common.text import plain
from stages.judge.inputs import Inputs
from stages.judge.public import anonymous, public
from stages.judge.words import BENCHMARK, IMPLEMENTATION, environment

PROMPTS = ROOT / "prompts" / "judge"
FIRST_AND_LAST = 30
"""Training losses shown of each end of a history of more than twice as many; evaluation losses are
all shown.
"""
SEEN_ALIKE = ("name", "seed", "licence", "sha256")
"""Last parts of the keys in which a difference from the incumbent changes nothing that is
learnt.
"""


def experiment(
    judged: Judged,
    known: dict[str, Any],
    inputs: Inputs,
    settings: dict[str, Any],
    former: dict[str, Any],
    samples: list[Any],
) -> list[dict[str, str]]:
    """The messages about a finished experiment; the last line of each holds no text of others.

    Args:
        settings: the sections of params.yaml that a reader wants to see.
        former: the incumbent's, empty where none are recorded.
        samples: wrong answers (see `stages.judge.samples.draw`).
    """
    incumbent = judged.experiment.incumbent
    train = [[loss.step, loss.epoch, loss.loss] for loss in inputs.losses if loss.split == "train"]
    left_out = max(0, len(train) - 2 * FIRST_AND_LAST)
    shown = [*train[:FIRST_AND_LAST], *train[-FIRST_AND_LAST:]] if left_out else train
    context = {
        **about(settings, judged.experiment.name, judged.experiment.hypothesis),
        "incumbent": plain(incumbent, 120),
        "has_incumbent": incumbent.startswith("experiments/"),
        "benchmark_label": BENCHMARK,
        "implementation_label": IMPLEMENTATION,
        "think": thinks(settings),
        "former": bool(former),
        "diff": known["changes"],
        "metrics": _short(_numbers(inputs.training)),
        "warnings": [plain(line, 300) for line in inputs.training.warnings[:20]],
        "run_time": f"{inputs.training.runtime_s:,.0f} s",
        "losses": _short(shown),
        "left_out": left_out,
        "held_out": _short(
            [[loss.step, loss.epoch, loss.loss] for loss in inputs.losses if loss.split == "eval"]
        ),
        "data": _short(statistics(inputs.data)),
        "templates": generation_prompts(settings),
        "scores": _short(_scores(known)),
        "outcome": judged.outcome,
        "why": known["why"],
        "vetoes": known["vetoes"],
        "evidence": _short(judged.evidence.plain()),
        "errors": _short({name: kind.plain() for name, kind in judged.errors.items()}),
        "curve": judged.curve.plain() if judged.curve else None,
        "samples": samples,
        "fence": fence(samples),
    }
    return messages("llm", context)


def failure(
    record: dict[str, Any],
    by_rule: dict[str, str],
    settings: dict[str, Any],
    name: str,
    hypothesis: str,
) -> list[dict[str, str]]:
    """The messages about a failed stage."""
    told = {
        name: anonymous(value) if isinstance(value, str) else value
        for name, value in record.items()
    }
    rule = {name: anonymous(value) for name, value in by_rule.items()}
    context = {
        **about(settings, name, hypothesis),
        "failure": told,
        "by_rule": rule,
        "fence": fence(told),
    }
    return messages("failure", context)


def again(leaking: list[str]) -> dict[str, str]:
    return {
        "role": "user",
        "content": environment(PROMPTS / "llm").get_template("again.j2").render(leaking=leaking),
    }


def messages(folder: str, context: dict[str, Any]) -> list[dict[str, str]]:
    """The system and the user message of a folder of prompts/judge/; an undefined name is an
    error.
    """
    found = environment(PROMPTS / folder)
    return [
        {"role": role, "content": found.get_template(f"{role}.j2").render(context).strip()}
        for role in ("system", "user")
    ]


def about(settings: dict[str, Any], experiment_name: str, hypothesis: str) -> dict[str, Any]:
    """Scenario, hypothesis, task and settings."""
    name, tasks = (
        settings.get("model", {}).get("name", "an open model"),
        sorted(settings.get("benchmark", {}).get("tasks", {})),
    )
    train, evaluator = (
        settings.get("train", {}),
        settings.get("benchmark", {}).get("evaluator", "").rpartition(".")[2],
    )
    scenario = (
        f"{plain(name, 120)} is fine-tuned ({plain(train.get('finetuning_type', 'lora'), 20)},"
        f" {plain(train.get('stage', 'sft'), 20)}) with LLaMA-Factory, in declared experiments of"
        " one change each. OpenCompass measures each candidate item by item on"
        f" {plain(', '.join(tasks), 400)} (scored by {plain(evaluator, 80)}), through the same"
        " engine and settings as its incumbent. A candidate replaces the incumbent where paired"
        " evidence from validation items shows it to be better."
    )
    evaluate = settings.get("evaluate", {})
    task = (
        f"Experiment {plain(experiment_name, 120)}: raise accuracy on"
        f" {plain(', '.join(tasks), 400)} without losing any of them."
    )
    limits = {
        name: evaluate[name] for name in ("max_output_tokens", "temperature") if name in evaluate
    }
    described = {"tasks": settings.get("benchmark", {}).get("tasks", {}), "answers": limits}
    return {
        "scenario": scenario,
        "hypothesis": plain(hypothesis, 2000),
        "task": task,
        "described": public(described),
        "settings": public(settings),
    }


def thinks(settings: dict[str, Any]) -> tuple[str, str]:
    """The tags around what the candidate thinks aloud, which the evaluation takes off; empty where
    it does not think.
    """
    evaluate = settings.get("evaluate", {})
    if evaluate.get("think_close"):
        return str(evaluate.get("think_open", "")), str(evaluate["think_close"])
    return ("<think>", "</think>") if settings.get("data", {}).get("think_tags") else ("", "")


def statistics(data: DataReport) -> dict[str, Any]:
    """Numbers of the training data: never its hits or examples, which may quote the benchmark."""
    return {
        **_numbers(data),
        "tokens": _numbers(data.tokens),
        "sources": {plain(name, 80): _numbers(source) for name, source in data.sources.items()},
        "filters": {plain(flow.filter, 40): _numbers(flow) for flow in data.filters},
    }


def _numbers(part: Part) -> dict[str, Any]:
    return {
        name: value
        for name, value in part.plain().items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def generation_prompts(settings: dict[str, Any]) -> dict[str, str]:
    """The templates that a teacher was asked with, by name; none where no source has a recipe."""
    sources = settings.get("data", {}).get("sources", {})
    recipes = {str(source["recipe"]) for source in sources.values() if source.get("recipe")}
    names = sorted({*recipes, "answer"}) if recipes else []
    folder = environment(ROOT / "prompts" / "generate_data")
    known = set(folder.list_templates())
    return {
        name: folder.loader.get_source(folder, f"{name}.j2")[0]
        for name in names
        if f"{name}.j2" in known
    }


def differences(former: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """What changed since the incumbent, one 'key: old -> new' each."""
    before = flatten(public({name: former.get(name, {}) for name in settings}))
    after = flatten(public(settings))
    keys = sorted(
        key
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key) and key.rpartition(".")[2] not in SEEN_ALIKE
    )
    return [
        plain(f"{key}: {before.get(key, '(none)')} -> {after.get(key, '(none)')}", 300)
        for key in keys[:60]
    ]


def fence(data: Any) -> str:
    """A mark that the data cannot hold, since it is their own hash."""
    return hashlib.sha256(
        json.dumps(data, sort_keys=True).encode("utf-8", "surrogatepass")
    ).hexdigest()[:24]


def _scores(known: dict[str, Any]) -> dict[str, Any]:
    parts = [{"name": "all", **dict(known["pooled"])}, *known["benchmarks"]]
    return {
        side: {part["name"]: part[side].plain() for part in parts}
        for side in ("candidate", "incumbent")
    }


def _short(value: Any) -> Any:
    """The same with four significant digits; what JSON has no number for (NaN, infinity) is written
    as a word.
    """
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_short(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    return value
