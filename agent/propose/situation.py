"""The present state, in the words and numbers that a proposal has to name, read from parameters,
reports and history.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agent.gates import Situation, Tried, permissions
from agent.knowledge import base_model, history, lessons
from agent.knowledge.grounding import Passage
from agent.knowledge.history import BASELINE, INTERRUPTED, Record, number
from agent.run import settings, trial
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.gpus import cards
from stages.common.reports.data import DataReport
from stages.common.reports.evaluation import EvalSummary
from stages.common.reports.training import TrainReport
from stages.common.reports.verdict import Verdict
from stages.common.text import plain

REPORTS = ROOT / "reports"
CHECKED = "Of the LoRA check-list, "
_FORMAT = re.compile(r"train\.template|data\.sources\.[^.]+\.prompt")
_UNTOLD = ("sha256", "licence", "base_url", "api_key_env", "concurrency", "timeout_s", "retries")
_SHOWN = ("model.", "data.", "train.", "launcher.kind")


def observe(params: dict[str, Any], records: Sequence[Record]) -> Situation:
    """What there is now. The accuracy is the incumbent's: what the next experiment is compared
    with.
    """
    parent, incumbent = trial.lineage(records, params)
    value = parent.evidence.get("accuracy" if incumbent != BASELINE else "incumbent_accuracy")
    base = base_model.read(ROOT / "models/base.json")
    train, data = (
        TrainReport.find(REPORTS / "train.json"),
        DataReport.find(REPORTS / "generate_data.json"),
    )
    verdict, evaluated = (
        Verdict.find(REPORTS / "judge.json"),
        EvalSummary.find(REPORTS / "eval_val" / "val.json"),
    )
    known = train or data
    rows = known.rows if known else 0
    accuracy, model, machine = number(value), str(params["model.name"]), hardware()
    took = train.runtime_s if train else 0.0
    lines = [f"The model is {model}, fine-tuned on {rows} training rows with {machine}."]
    if number(base.get("parameters")):
        lines.append(
            f"The base model has {base['parameters']} parameters; its files are"
            f" {', '.join(sorted(base.get('files', {})))}."
        )
    lines.append(f"The base model has {'a' if _chat(base) else 'no'} chat template of its own.")
    lines.append(
        "By its name, template and end token it is"
        f" {'an instruct' if base_model.instruct(model) else 'a base'} model."
    )
    if accuracy is not None:
        lines.append(
            f"The present accuracy, of {incumbent}, is {accuracy:.4f} ({100 * accuracy:.1f} %) "
            f"on {parent.evidence.get('n')} validation items."
        )
    for name, part in (parent.evidence.get("benchmarks") or {}).items():
        if number(part.get("accuracy")) is not None:
            lines.append(
                f"On the task {plain(name, 80)} the accuracy of {parent.folder} is"
                f" {part['accuracy']:.4f} on {part.get('n')} items."
            )
    if parent.loss:
        lines.append(
            f"The training loss of {parent.folder} went from {parent.loss['first']:.4g} to"
            f" {parent.loss['last']:.4g}."
        )
    if verdict and verdict.curve:
        lines.append(
            f"The newest loss curve is {verdict.curve.shape}; overfitting:"
            f" {'yes' if verdict.curve.overfitting else 'no'}."
        )
    lines += check_list(params, records)
    if took:
        lines.append(f"The newest training took {took:.0f} seconds.")
    lines.append(
        f"There are {sum(record.finished for record in records)} finished experiments, "
        f"{sum(r.status == 'KEPT' for r in records)} of them kept."
    )
    lines += [
        f"{key} is {plain(params[key], 200)} in the present configuration."
        for key in shown_keys(params)
    ]
    lines.append("Parameters of model, data and train that are not listed are empty.")
    evaluating = evaluated.runtime_s or 0.0 if evaluated else 0.0
    other = 2 * evaluating + 60.0 if took else 0.0
    return Situation(
        model,
        rows,
        accuracy,
        machine,
        _chat(base),
        "\n".join(lines),
        took,
        other,
        base_model.instruct(model),
    )


def shown_keys(params: dict[str, Any]) -> list[str]:
    """The parameters that a proposal may build on, what matters first: the training's, then what
    else may change, then what is given.
    """
    keys = [
        key
        for key, value in params.items()
        if key.startswith(_SHOWN) and value not in ("", None) and value not in ([], {})
    ]
    kept = [key for key in keys if key.rpartition(".")[2] not in _UNTOLD]

    def rank(key: str) -> int:
        if key.startswith("train."):
            return 0
        return 1 if permissions.who(key) == permissions.LOOP else 2

    return sorted(kept, key=rank)


def cut(text: str, characters: int) -> str:
    """The state within `characters`, whole lines: those about training and the figures before them
    stay whatever the room.
    """
    lines = text.splitlines()
    kept = [not line.startswith(("model.", "data.", "launcher.")) for line in lines]
    left = characters - sum(len(line) + 1 for line, keep in zip(lines, kept, strict=True) if keep)
    out = []
    for line, keep in zip(lines, kept, strict=True):
        left -= 0 if keep else len(line) + 1
        if keep or left >= 0:
            out.append(line)
    return "\n".join(out)


def check_list(params: dict[str, Any], records: Sequence[Record]) -> list[str]:
    """For LoRA, whether a higher rank, a lower learning rate and another format of the rows were
    tried, a sentence each.
    """
    if params.get("train.finetuning_type", "lora") != "lora":
        return []
    asked = (
        ("a higher rank", lambda key, way: key == "train.lora_rank" and way == "raised"),
        (
            "a lower learning rate",
            lambda key, way: key == "train.learning_rate" and way == "lowered",
        ),
        (
            "the format (train.template, the prompts of data.sources)",
            lambda key, _: _FORMAT.fullmatch(key) is not None,
        ),
    )
    lines = []
    for name, about in asked:
        found = [
            record.folder
            for record in records
            if record.finished
            and any(
                about(str(change.get("key")), lessons.direction(change))
                for change in record.own_changes
            )
        ]
        lines.append(
            f"{CHECKED}{name} was {f'tried in {found[-1]}' if found else 'not tried yet'}."
        )
    return lines


def _chat(base: dict[str, Any]) -> bool:
    """Whether the base model has a chat template; True where nothing is known of its files."""
    files = base.get("files")
    return not isinstance(files, dict) or not files or bool(base_model.template())


def hardware() -> str:
    """The GPUs by name, else the cores."""
    found = [card.name for card in cards()]
    return f"{len(found)} x {found[0]}" if found else f"{os.cpu_count() or 1} CPU cores"


def comparable(params: dict[str, Any], records: Sequence[Record]) -> list[Record]:
    """The experiments that the present evaluation settings and items measured: figures of others
    tell nothing beside them.
    """
    ruler, same, found = settings.ruler(params), dict[str, bool](), []
    for record in records:
        if record.parent in same:
            same[record.folder] = same[record.parent]
        else:
            with suppress(PawlError):  # without its parameters nobody knows what measured it
                same[record.folder] = settings.ruler(trial.params_of(record)) == ruler
        if same.get(record.folder):
            found.append(record)
    return found


def tried(params: dict[str, Any], records: Sequence[Record]) -> list[Tried]:
    """The finished experiments of the present ruler, with the parameters in which each differs from
    the present ones.

    Parameters are rebuilt from the starting points and each experiment's changes, so that thousands
    of experiments are no thousands of files.
    """
    ruler, bases = settings.ruler(params), {}
    changed: dict[str, dict[str, Any]] = {}
    root: dict[str, str] = {}
    found = []
    for record in records:
        if not record.parent:
            if not record.judged:
                continue
            base = trial.params_of(record)
            if settings.ruler(base) != ruler:
                continue
            bases[record.folder] = {
                key: value for key, value in base.items() if _counts(key, params)
            }
            root[record.folder], changed[record.folder] = record.folder, {}
        elif record.parent in root:
            root[record.folder] = root[record.parent]
            own = {str(change.get("key")): change.get("after") for change in record.changes}
            changed[record.folder] = changed[record.parent] | {
                key: value for key, value in own.items() if _counts(key, params)
            }
        else:
            continue
        if record.finished and not (record.status == "CRASHED" and record.reason == INTERRUPTED):
            base = bases[root[record.folder]]
            values = {**_off(base, params), **changed[record.folder]}
            differing = {key: value for key, value in values.items() if params.get(key) != value}
            reason = f", {record.reason}" if record.reason else ""
            found.append(
                Tried(
                    record.folder,
                    plain(trial.told(record) + reason, 200),
                    differing,
                    number(record.evidence.get("accuracy")),
                )
            )
    return found


def _counts(key: str, params: dict[str, Any]) -> bool:
    """Keys that shape results and that are declared today: one that is gone, or new since, tells
    nothing.
    """
    return (
        key.startswith(("model.", "data.", "train."))
        and settings.shapes_result(key)
        and (key in params or key.startswith(permissions.EXTRA))
    )


def _off(base: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in base.items() if params.get(key) != value}


def passages(there: Situation, records: Sequence[Record]) -> list[Passage]:
    """The present state and our own experiments, as sources to quote; without their hypotheses,
    which are claims and no findings.
    """
    found = [Passage("[situation]", "ours", there.text)]
    if card := base_model.card(there.model):
        found.append(Passage(base_model.CARD, "model", card))
    return found + [
        Passage(f"[experiment: {record.folder}]", "ours", result_of(record))
        for record in records
        if record.finished
    ]


def in_words(record: Record) -> str:
    """One experiment as a text to read."""
    words = f" Why, in the judge's words: {record.words}" if record.words else ""
    return plain(f"{result_of(record)}{words} Its hypothesis: {record.hypothesis}", 3000)


def result_of(record: Record) -> str:
    """What one experiment changed and what came of it, as a text that can be quoted."""
    changed = (
        ", ".join(
            f"{change.get('key')} from {change.get('before')} to {change.get('after')}"
            for change in record.own_changes
        )
        or "nothing: a starting point"
    )
    figures = (
        f"accuracy {history.accuracy(record)}, difference {history.difference(record)}, p"
        f" {history.p_value(record)}, against {record.incumbent}"
        if history.accuracy(record)
        else record.reason or "no result"
    )
    advice = f" {told}" if (told := curve_advice(record)) else ""
    loss = (
        f" The training loss went from {record.loss['first']:.4g} to {record.loss['last']:.4g}."
        if record.loss
        else ""
    )
    return plain(
        f"Experiment {record.folder} changed {changed} and was {record.status}:"
        f" {figures}.{loss}{advice}",
        2000,
    )


def curve_advice(record: Record) -> str:
    """What the training loss suggests for the next experiment.

    Of the judge's words this alone reaches the proposer, and what it says to a crash: neither is
    drawn from validation items. Its Reason is, and goes to people.
    """
    told = []
    if rate := record.curve.get("learning_rate"):
        told.append(f"the learning rate looks {plain(rate, 20)}")
    if record.curve.get("overfitting") is True:
        told.append("the loss on held-out rows rose: fewer epochs, a lower rate or dropout")
    if record.curve.get("shape") == "falling":
        told.append("the loss had not levelled out: more epochs or a higher rate")
    return f"By its training loss, {'; '.join(told)}." if told else ""
