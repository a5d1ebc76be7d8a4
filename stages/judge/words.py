"""The verdict in words: the three fields that a researcher reads, filled in from aggregates by
prompts/judge/rules/.

Nothing here sees an item's text, a prediction or a single item's result: the templates get only
what `facts` gives.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from stages.common import noise
from stages.common.files import ROOT
from stages.common.reports.data import DataReport
from stages.common.reports.verdict import Figures, Judged, Verdict, Words
from stages.common.text import markdown, plain, readable
from stages.judge.guards import QUALITY
from stages.judge.inputs import Inputs

FIELDS = {"Code Summary": "code_summary", "Reason": "reason", "Decision": "decision"}
BENCHMARK, IMPLEMENTATION = "[Benchmark Performance Issue]", "[Implementation Quality Issue]"
KINDS = {"lora": "LoRA", "oft": "OFT", "full": "all weights", "freeze": "some layers"}
STAGES = {
    "sft": "supervised fine-tuning",
    "pt": "continued pretraining",
    "dpo": "preference tuning",
    "kto": "preference tuning (KTO)",
    "rm": "reward modelling",
}
FORM_SHARE = 0.5
"""A strict gain of which at least this share is missing from the lenient score is called mostly
form.
"""


def facts(
    judged: Judged, inputs: Inputs, settings: dict[str, Any], changes: list[str]
) -> dict[str, Any]:
    """What the templates may say, from the verdict without its words, the reports, settings and
    changes.
    """
    found = judged.evidence
    failed = [guard for guard in judged.guards if not guard.passed]
    known = {
        "experiment": {name: plain(value, 600) for name, value in dict(judged.experiment).items()},
        "outcome": judged.outcome,
        "accepted": judged.accepted,
        **{
            name: getattr(found, name)
            for name in ("why", "alpha", "look", "level", "min_effect", "metric", "pooled")
        },
        "further": found.further_items,
        "decisive": found.deciding.figures,
        "primary": plain(found.primary, 80),
        "lost": [plain(each.benchmark, 80) for each in found.guarded if each.verdict == "lost"],
        "unknown": [
            plain(each.benchmark, 80) for each in found.guarded if each.verdict == "unknown"
        ],
        "max_regression": judged.rule.max_regression if judged.rule else None,
        "benchmarks": [
            {"name": plain(name, 80), **dict(part)}
            for name, part in sorted(found.benchmarks.items())
        ],
        "vetoes": [plain(guard.detail, 400) for guard in failed],
        "veto_names": [guard.guard for guard in failed],
        "form": form_share(found.pooled),
        "cut_off": judged.truncated.candidate if judged.truncated else None,
        "method": method(settings.get("train", {})),
        "changes": changes,
        "errors": judged.errors,
        "curve": judged.curve,
        "train": inputs.training,
        "data": _data(inputs.data),
        "noisy": noise.may_differ(inputs.candidate.stated.fingerprint),
    }
    return {**known, "label": label(known), "next": next_component(known)}


def method(train: dict[str, Any]) -> str:
    """How it was trained, in a few words: 'LoRA (rank 16) and supervised fine-tuning, learning rate
    0.001'; empty where it is not told.
    """
    kind, stage = train.get("finetuning_type"), train.get("stage")
    if not kind or not stage:
        return ""
    rank = f" (rank {train['lora_rank']})" if kind == "lora" and train.get("lora_rank") else ""
    rate = (
        f", learning rate {train['learning_rate']:g}"
        if isinstance(train.get("learning_rate"), int | float)
        else ""
    )
    return (
        f"{KINDS.get(kind, plain(kind, 20))}{rank} and {STAGES.get(stage, plain(stage, 20))}{rate}"
    )


def label(known: dict[str, Any]) -> str:
    """What a rejection's reason opens with: whether the scores or the making is at fault; empty
    where it is the measurement, or neither.
    """
    if known["accepted"]:
        return ""
    if set(known["veto_names"]) & set(QUALITY) or (
        not known["veto_names"] and known["curve"].shape == "diverging"
    ):
        return IMPLEMENTATION
    return BENCHMARK if known["outcome"] == "reject" and not known["veto_names"] else ""


def form_share(figures: Figures) -> float | None:
    """The share of the strict gain that the lenient score does not show, 0 to 1: what was learnt of
    form alone. None without a gain.
    """
    gain = figures.difference
    return None if gain <= 0 else min(1.0, max(0.0, (gain - figures.lenient_difference) / gain))


def next_component(known: dict[str, Any]) -> str:
    """The part of the experiment to work on next: the first rule that applies, from what
    invalidates the result to what refines it.
    """
    decisive, curve, vetoes = known["decisive"], known["curve"], set(known["veto_names"])
    grew = {name for name, kind in known["errors"].items() if kind.grew}
    rules = [
        ("evaluation", bool(vetoes - set(QUALITY))),
        ("data", "contamination" in vetoes),
        ("base model", "same base model" in vetoes),
        ("output length", "truncation" in vetoes),
        ("learning rate down", curve.learning_rate == "too high"),
        ("learning rate up", curve.learning_rate == "too low"),
        ("less training", curve.overfitting),
        ("output length", bool(grew & {"truncated", "empty"}) and not known["accepted"]),
        ("form", "format" in grew and not known["accepted"]),
        ("regression", bool(known["lost"])),
        ("more training", curve.shape == "falling"),
        (
            "more items",
            known["outcome"] == "inconclusive" and known["why"] != "gain perhaps too small",
        ),
        ("hypothesis", decisive.difference < known["min_effect"]),
        ("content", (known["form"] or 0) >= FORM_SHARE),
        ("weakest", known["pooled"].candidate.accuracy < 1),
    ]
    return next((name for name, applies in rules if applies), "harder benchmark")


def _data(report: DataReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "tokens": report.tokens.total,
        "sources": [plain(name, 80) for name in sorted(report.sources)],
        "contaminated": report.contaminated,
        "duplicates": sum(source.duplicates for source in report.sources.values()),
    }


def put_into_words(known: dict[str, Any]) -> Words:
    """The reason is one paragraph of three to five sentences."""
    folder = environment(ROOT / "prompts" / "judge" / "rules")
    texts = {
        field: folder.get_template(f"{name}.j2").render(known) for field, name in FIELDS.items()
    }
    return Words.model_validate({field: " ".join(text.split()) for field, text in texts.items()})


def page(verdict: Verdict, known: dict[str, Any]) -> str:
    """The verdict as a page of Markdown, in which every text from outside is escaped."""
    rows = [*known["benchmarks"], {"name": "all", **dict(known["pooled"])}]
    template = environment(Path(__file__).parent).get_template("verdict.md.j2")
    return str(template.render(known, verdict=verdict, rows=rows, words=verdict.words.model_dump()))


@functools.cache
def environment(folder: Path) -> Any:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "points": points,
        "signed": signed,
        "amount": amount,
        "percent": percent,
        "p": p_value,
    }
    made.filters |= {
        "md": markdown,
        "count": lambda number: f"{number:,}",
        "of": of,
        "json": readable,
    }
    return made


def points(value: float) -> str:
    """A difference of accuracies: '+71.5 points'."""
    return f"{signed(value)} points"


def signed(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding zero: never "-0.0"


def of(number: float, thing: str) -> str:
    """A number with its thing: '1 epoch', '2.5 epochs', '1,300 rows'."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    return f"{shown} {thing}{'' if shown == '1' else 's'}"


def amount(value: float) -> str:
    """A size without direction: '1 point', '2.5 points'."""
    return f"{100 * value:.3g} point{'' if 100 * value == 1 else 's'}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def p_value(value: float) -> str:
    if value < 1e-4:
        return "p < 0.0001"
    return f"p = {value:.4f}" if value < 0.1 else f"p = {value:.2f}"
