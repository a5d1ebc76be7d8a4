"""Why a stage failed, by rule: the class of the failure, its cause, and what to do, from what the
stage left behind.

A record is .pawl/failure/STAGE.json: stage, at, exit_code, signal, error, where, fix, traceback
(root cause, rank 0), tail (last 4,000 characters of the log), timed_out, peak_memory_gib.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stages.common.chat import NoReply, Structured, structured
from stages.common.errors import PawlError
from stages.common.failure import SEES_NO_TEST
from stages.common.files import ROOT
from stages.common.schema import LLM, Experiment
from stages.common.text import plain, visible
from stages.judge import prompt
from stages.judge.causes import causes
from stages.judge.inputs import logs
from stages.judge.leaks import Guard
from stages.judge.opinion import LONGEST, schema
from stages.judge.ours import ours, place
from stages.judge.public import SECTIONS
from stages.judge.words import environment

UNKNOWN = "UNKNOWN"
LABELS = ("CONFIG", "OOM", "DATA", "ENV", UNKNOWN)
LIKELY = (
    "format of the data",
    "missing file",
    "value",
    "network",
    "lost processes",
    "incompatible settings",
)
"""Causes that a killed or stopped process may name only because it was stopped."""
REPLY = schema(
    {"Error Type": list(LABELS), "Code Summary": None, "Reason": None, "Decision": ["no"]}
)


def classify(record: dict[str, Any]) -> dict[str, str]:
    """{label, kind, why, fix, evidence} of a failure; `evidence` is the line that shows it.

    What the stage itself said comes before its traceback, and that before the log; a time limit or
    a signal counts where the stage's own message and trace name no cause, since logs are full of
    warnings.
    """
    own = _by_text([str(record.get(name) or "") for name in ("error", "traceback")])
    machine = _by_the_machine(record)
    if own and not (machine and own["kind"] in LIKELY):
        return own
    return (
        machine
        or _by_duration(record)
        or _by_text([str(record.get("tail") or "")])
        or own
        or _by_place(record)
        or _unknown(record)
    )


def _by_text(texts: list[str]) -> dict[str, str] | None:
    for text in texts:
        lines = text.splitlines()[::-1]
        for cause in causes():
            line = next((line for line in lines if cause.pattern.search(line)), None)
            if line is not None:
                return _found(cause.label, cause.name, cause.why, cause.fix, line)
    return None


def _by_place(record: dict[str, Any]) -> dict[str, str] | None:
    """From what the stage says is to be corrected, where its message says nothing that is known: a
    parameter, or a file of rows.
    """
    where, error = str(record.get("where") or ""), str(record.get("error") or "")
    if re.match(
        rf"(?:{'|'.join(SECTIONS)}|judge|agent|experiment|tracking)\.\w|conf/|params\.yaml", where
    ):
        return _found(
            "CONFIG",
            "value",
            "The stage refuses a parameter.",
            "Correct the key that the stage names.",
            error,
        )
    if re.search(r"\.(?:jsonl?|csv|tsv|parquet|txt)\b", where.partition("\n")[0]):
        return _found(
            "DATA",
            "format of the data",
            "The stage refuses a file of rows or results.",
            "Correct the file that it names.",
            error,
        )
    return None


def _by_the_machine(record: dict[str, Any]) -> dict[str, str] | None:
    """A time limit or a signal, from the exit code where the record names none (128 + signal of a
    shell, -signal of Python).
    """
    error, code = str(record.get("error") or ""), record.get("exit_code") or 0
    signal = record.get("signal") or (code - 128 if 128 < code < 160 else -min(code, 0))
    if record.get("timed_out") or code == 124:
        return _out_of_time(error)
    if signal == 9:
        peak = record.get("peak_memory_gib")
        used = f", having used {peak:.1f} GiB" if isinstance(peak, int | float) else ""
        why = (
            f"The process was killed by signal 9{used}: Linux does that when the machine's memory"
            " is exhausted."
        )
        fix = (
            "Lower train.per_device_train_batch_size or train.cutoff_len (for a server,"
            " evaluate.concurrency), or use a machine with more memory; 'dmesg' says whether the"
            " kernel did it."
        )
        return _found("OOM", "killed", why, fix, error)
    if signal in (2, 15):
        why = f"The stage was stopped from outside (signal {signal})."
        return _found(
            "ENV", "stopped", why, "Run it again; what had finished is not repeated.", error
        )
    if signal:
        fix = (
            "This is a fault of a compiled library or of the machine: see the end of the log, and"
            " the versions that 'make doctor' lists."
        )
        return _found("ENV", "crashed", f"The process crashed with signal {signal}.", fix, error)
    return None


def _by_duration(record: dict[str, Any]) -> dict[str, str] | None:
    """A time limit that the message tells of, whatever the exit code."""
    error = str(record.get("error") or "")
    return (
        _out_of_time(error)
        if re.search(
            r"(?:took|ran) longer than|did not (?:start|answer|end) within|timed out", error
        )
        else None
    )


def _out_of_time(error: str) -> dict[str, str]:
    fix = (
        "Raise it (launcher.timeout_h, engine.startup_timeout_s or evaluate.request_timeout_s), or"
        " do less: fewer steps or items."
    )
    return _found("ENV", "time limit", "The stage ran into its time limit.", fix, error)


def _unknown(record: dict[str, Any]) -> dict[str, str]:
    fix = (
        "Read the error and the log, from its first error on; PAWL_DEBUG=1 adds our own traceback."
    )
    return _found(
        UNKNOWN, "unknown", "No rule knows this failure.", fix, str(record.get("error") or "")
    )


def _found(label: str, kind: str, why: str, fix: str, line: str) -> dict[str, str]:
    return {"label": label, "kind": kind, "why": why, "fix": fix, "evidence": plain(line, 300)}


def shareable(record: dict[str, Any]) -> dict[str, Any]:
    """The record as it may be shown: without log and trace where the stage saw test items.

    Of its error stays the first line, up to the name of an exception: after it, libraries quote
    what they could not take. Of place and fix stays what is ours (`stages.judge.ours`).
    """
    if record.get("stage") in SEES_NO_TEST:
        return record
    first = next(iter(str(record.get("error") or "").strip().splitlines()), "")
    told = re.sub(
        r"(\b\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)\b): .*", r"\1", first
    )
    if record.get("traceback") and told == first:
        told = first.partition(":")[0]
    kept = {
        "error": told,
        "where": place(str(record.get("where") or "")),
        "fix": ours(str(record.get("fix") or "")),
    }
    return {**record, "traceback": "", "tail": "", **kept}


def explain(record: dict[str, Any], hypothesis: str, root: Path = ROOT) -> dict[str, Any]:
    """The failure verdict by rule: "Error Type", "Code Summary", "Reason" and "Decision", which is
    no.

    The stage's own fix comes before the rule's.
    `by_rule` holds the class (see `classify`), made from the whole record; the record itself is cut
    to what may be shown.
    """
    found, shown = classify(record), shareable(record)
    open_stage = record.get("stage") in SEES_NO_TEST
    stage, own = plain(record["stage"], 80), plain(shown.get("fix") or "", 600).rstrip(".")
    evidence = f" ({found['evidence'].rstrip('.')})" if found["evidence"] and open_stage else ""
    where = (
        f" at {plain(shown['where'].strip().splitlines()[0], 200)}"
        if (shown.get("where") or "").strip()
        else ""
    )
    kind = found["label"] if found["label"] == UNKNOWN else f"{found['label']}, {found['kind']}"
    there = logs(root, str(record["stage"]))
    log = f" The whole log: {', '.join(there)}." if there else ""
    words = {
        "Error Type": found["label"],
        "Code Summary": (
            f"The stage {stage} of the pipeline was to run, for the hypothesis:"
            f" {plain(hypothesis, 300) or 'none given'}"
        ),
        "Reason": (
            f"{stage} failed{where}, class {kind}{evidence}. {found['why']} "
            + (f"The stage itself says what to do: {own}." if own else found["fix"])
            + log
        ),
        "Decision": "no",
    }
    return {
        "record": shown,
        "by_rule": found,
        "words": words,
        "written_by": "rules",
        "failed": "",
        "logs": there,
    }


def ask(
    verdict: dict[str, Any], llm: LLM, settings: dict[str, Any], about: Experiment, guard: Guard
) -> dict[str, Any]:
    """The same in a language model's words, asked only about stages that saw no test items; the
    rules' words where it fails. With `paid`, what it cost in either case.
    """
    record = verdict["record"]
    if record["stage"] not in SEES_NO_TEST:
        return {**verdict, "failed": "not asked: this stage saw test items"}
    try:
        got = structured(
            llm,
            prompt.failure(
                _complete(record), verdict["by_rule"], settings, about.name, about.hypothesis
            ),
            REPLY,
        )
    except PawlError as error:
        return {
            **verdict,
            "failed": error.what[:400],
            "paid": _paid(error) if isinstance(error, NoReply) else {},
        }
    verdict = {**verdict, "paid": _paid(got)}
    words = {
        name: guard.cut(text[:LONGEST]) if name in ("Code Summary", "Reason") else text
        for name, text in got.value.items()
    }
    if not words["Reason"]:
        return {
            **verdict,
            "failed": (
                "nothing of its reason was left after the sentences that repeat benchmark content"
            ),
        }
    return {**verdict, "words": words, "written_by": llm.model}


def _paid(asked: Structured | NoReply) -> dict[str, float]:
    return {name: getattr(asked, name) for name in ("prompt_tokens", "output_tokens", "cost")}


def _complete(record: dict[str, Any]) -> dict[str, Any]:
    texts = {
        name: str(record.get(name) or "")[-4000:]
        for name in ("stage", "error", "where", "fix", "traceback", "tail")
    }
    return {
        **texts,
        **{
            name: record.get(name)
            for name in ("exit_code", "signal", "timed_out", "peak_memory_gib")
        },
    }


def page(verdict: dict[str, Any]) -> str:
    """The failure as a page of Markdown; a log is quoted line by line, so that nothing in it can
    end the quotation.
    """
    record = verdict["record"]
    lines = {
        name: [visible(line, 500) for line in str(record.get(name) or "").splitlines()]
        for name in ("traceback", "tail")
    }
    folder = environment(ROOT / "stages" / "judge")
    return str(folder.get_template("failure.md.j2").render(**verdict, lines=lines))
