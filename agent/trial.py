"""One experiment from hypothesis to verdict: plan, run, judge, keep or discard, record."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent import experiment, history, settings, workspace
from agent.history import Record
from agent.signals import interrupts
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_file
from stages.common.process import tail
from stages.common.text import plain

LOGS = ROOT / ".pawl" / "agent"
_SEES_NO_TEST = ("fetch_model", "train", "eval_val", "judge")
"""Stages whose error message may go into a record; the others read test items (generate_data to keep them out) or test results."""
BASELINE = "reports/baseline"


def say(text: str, end: str = "\n") -> None:
    """Tell the terminal; an experiment does not end because nobody listens any more."""
    try:
        print(text, end=end, flush=True)
    except OSError:
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115 - stays until the process ends


def hypothesis(text: str) -> str:
    """--why as it is written everywhere: one line, and nothing that another program would expand.

    OmegaConf would replace ${...} in params.yaml, also with the environment's values; `???` means a missing value to it.
    """
    clean = plain(text.encode("utf-8", "replace").decode("utf-8"), 20_000).replace("${", "$ {")
    if not clean.strip(" \N{REPLACEMENT CHARACTER}") or clean == "???":
        raise PawlError(
            "an experiment needs a hypothesis",
            where="--why",
            fix='say what you expect and why: --why "the loss still falls at the end: ..."',
        )
    return clean


def plan(overrides: list[str], why: str, name: str, commit: str) -> tuple[Record, dict[str, Any], dict[str, Any]]:
    """The next experiment's record, its resolved parameters, and what to write into conf/experiment/current.yaml."""
    records, broken = history.read_history()
    if broken:
        say(f"agent: warning: not read: {', '.join(broken)}")
    planned = settings.resolve(overrides)
    seal = settings.fingerprint(planned)
    for record in records:
        if record.fingerprint == seal and record.judged:
            told = f"{record.status}{', difference ' + history.difference(record) if history.difference(record) else ''}"
            raise PawlError(
                f"this repeats {record.folder} ({told}): the same parameters but for seeds and names",
                where=f"experiments/{record.folder}", fix="try something else; see 'python -m agent history'",
            )  # fmt: skip
        if record.fingerprint == seal and record.status == "CRASHED":
            say(f"agent: {record.folder} had the same parameters and crashed ({record.reason}): trying again")
    kept = incumbent_of(records, planned)
    parent = kept or next(record for record in reversed(records) if record.judged and not record.parent)  # the starting point
    incumbent = f"experiments/{kept.folder}" if kept else BASELINE
    made = experiment.slug(
        name or " ".join(override.partition("=")[0].rpartition(".")[2] + override[override.index("=") :] for override in overrides)
    )
    record = Record(
        number=history.next_number(), slug=made, status=history.PLANNED, hypothesis=why, parent=parent.folder,
        incumbent=incumbent, changes=settings.differences(_params_of(parent), planned), planned_at=experiment.now(), commit=commit,
        model=str(planned["model.name"]), fingerprint=seal,
    )  # fmt: skip
    edits = {key: planned[key] for key in settings.parse(overrides)}
    about = {"name": made, "hypothesis": why, "parent": record.parent, "incumbent": incumbent}
    return record, planned, edits | {f"experiment.{key}": value for key, value in about.items()}


def incumbent_of(records: list[Record], present: dict[str, Any]) -> Record | None:
    """The newest kept experiment that the present ruler measured; rows of another ruler cannot be paired."""
    return next((record for record in reversed(records) if record.status == "KEPT" and _same_ruler(record, present)), None)


def _same_ruler(record: Record, present: dict[str, Any]) -> bool:
    return settings.ruler(_params_of(record)) == settings.ruler(present)


def why_start(present: dict[str, Any]) -> str:
    """Why the present state must be recorded before anything is tried from it; "" where the newest verdict is of the present ruler."""
    newest = next((record for record in reversed(history.read_history()[0]) if record.judged), None)
    if newest is None:
        return "no experiment has a verdict yet"
    changed = settings.differences(settings.ruler(_params_of(newest)), settings.ruler(present))
    keys = ", ".join(change["key"] for change in changed[:3]) + (" and more" if len(changed) > 3 else "")
    return f"the ruler changed since {newest.folder} ({keys})" if changed else ""


def _require_own_ruler(incumbent: str, present: dict[str, Any]) -> None:
    for record in history.read_history()[0]:
        if incumbent == f"experiments/{record.folder}" and not _same_ruler(record, present):
            raise PawlError(
                f"the ruler changed, and experiment.incumbent still names {incumbent}, measured with the old one",
                where=str(settings.CURRENT),
                fix=f"set experiment.incumbent there to {BASELINE}, python -m stages.common.config, commit, then try again",
            )


def _params_of(record: Record) -> dict[str, Any]:
    try:
        return settings.flat((experiment.folder_of(record) / "params.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise PawlError(
            "an experiment's params.yaml cannot be read", where=str(experiment.folder_of(record)), fix="restore it from git"
        ) from None


def starting_point(commit: str, reason: str) -> Record:
    """Record the present state as an experiment: reproduce it, take its verdict, commit. Without a verdict nothing is left."""
    params = settings.require_composed()
    about = read_params("experiment").experiment
    _require_own_ruler(about.incumbent, params)
    record = Record(
        number=history.next_number(), slug=experiment.slug(about.name), status=history.PLANNED, hypothesis=plain(about.hypothesis, 20_000),
        incumbent=about.incumbent, planned_at=experiment.now(), commit=commit, model=str(params["model.name"]),
        fingerprint=settings.fingerprint(params),
    )  # fmt: skip
    say(f"agent: {reason}: the present state becomes {record.folder}, the starting point")
    with interrupts() as shield:
        try:
            begun = time.monotonic()
            experiment.write_record(record)
            verdict = _run(record, about.name)
            shield()
            experiment.write_settings(record, settings.CURRENT.read_text(encoding="utf-8"), settings.PARAMS.read_text(encoding="utf-8"))
            record = experiment.finish(record, verdict, time.monotonic() - begun)
        except BaseException:
            shield()
            workspace.put_back()
            raise
        _commit(record, with_state=True)
    return record


def run(record: Record, planned: dict[str, Any], edits: dict[str, Any]) -> Record:
    """Run a planned experiment; whatever happens, the tree ends as a commit and the experiment as one record."""
    say(f"agent: {record.folder}: {history.changes(record)}, against {record.incumbent}")
    cause: BaseException | None = None
    with interrupts() as shield:
        begun = time.monotonic()
        try:
            experiment.write_record(record)
            settings.edit(edits)
            workspace.compose_params()
            about = {key.partition(".")[2]: value for key, value in edits.items() if key.startswith("experiment.")}
            experiment.write_settings(record, settings.CURRENT.read_text(encoding="utf-8"), settings.require_as_planned(planned, about))
            verdict = _run(record, record.slug)
            shield()
            _require_same_head(record)
            done = experiment.finish(record, verdict, time.monotonic() - begun)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too: recorded, put back, then raised again
            shield()
            _require_same_head(record)  # else it stays planned, for `restore`: that commit is not ours to write upon
            cause, done = error, experiment.crash(record, _reason(error), time.monotonic() - begun)
        if done.status != "KEPT" and not workspace.restore():
            say("agent: warning: some outputs are not in DVC's cache; 'dvc repro' makes them again")
        _commit(done, with_state=done.status == "KEPT")
    if isinstance(cause, KeyboardInterrupt):
        say(f"agent: {done.folder} CRASHED ({done.reason}); the tree is back at HEAD")
    if cause:
        raise cause
    return done


def _run(record: Record, name: str) -> dict[str, Any]:
    """`dvc repro`, and the verdict if it belongs to this experiment and to an unchanged pipeline."""
    log = LOGS / f"{record.folder}.log"
    hours = read_params("agent").agent.timeout_h
    code = workspace.repro(log, 3600 * hours, _teller())
    if code == 124:
        raise PawlError(
            f"dvc repro took longer than {hours:g} h", where=str(log), fix="raise agent.timeout_h in conf/agent, or try something smaller"
        )
    if code:
        raise PawlError(f"dvc repro failed{_failure(log)} (exit {code})", where=str(log), fix="read the end of that log")
    if stale := workspace.out_of_date():
        raise PawlError(
            f"the pipeline changed while it ran: {plain(', '.join(stale), 200)}",
            where="dvc status",
            fix="run it again without touching the files",
        )
    if edited := workspace.foreign_changes(experiment.folder_of(record)):
        raise PawlError(f"edited while the experiment ran: {plain(', '.join(edited), 200)}", fix="commit that change, then try again")
    return experiment.read_verdict(name, record.incumbent)


def _teller() -> Callable[[str], None]:
    return lambda text: say(text, end="") if text else None


def _failure(log: Path) -> str:
    """At which stage, and its error line if that stage cannot have read test data."""
    stage = workspace.failed_stage(log)
    if stage not in _SEES_NO_TEST:
        return f" at {stage}" if stage else ""
    program = "evaluate" if stage == "eval_val" else stage
    lines = re.findall(rf"^{program}: error: (.*)$", tail(log, 8000), re.MULTILINE)
    return f" at {stage}" + (f": {plain(lines[-1], 200)}" if lines else "")


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return plain(error.what if isinstance(error, PawlError) else f"{type(error).__name__}: {error}", 300)


def _require_same_head(record: Record) -> None:
    if workspace.head() != record.commit:
        raise PawlError(
            "somebody committed or switched branches while the experiment ran",
            where=record.folder,
            fix="python -m agent restore, then try again",
        )


def _commit(record: Record, *, with_state: bool) -> None:
    folder = experiment.folder_of(record)
    history.write_journal([each for each in history.read_history()[0] if each.finished])
    try:
        workspace.commit_record(folder, message(record), with_state=with_state)
    except PawlError as error:
        fix = "mend that, then: python -m agent restore, which commits it"
        raise PawlError(f"{record.folder} is {record.status}, but not committed: {error.what}", where=error.where, fix=fix) from None
    if left := workspace.changed():
        say(f"agent: warning: not mine, so left as they are: {plain(', '.join(left[:5]), 300)}")


def recover() -> tuple[list[str], list[str]]:
    """After a kill -9 or a failed commit: commit what is finished, undo what is not. Gives the folders committed, and those removed.

    Raises:
        PawlError: git refuses again, or the tree no longer holds the state that is to be committed; nothing is removed then.
    """
    finished = workspace.uncommitted()
    for record in finished:
        with_state = record.status == "KEPT" or not record.parent  # a starting point is the present state, whatever its verdict
        if with_state and (workspace.out_of_date() or sha256_file(ROOT / "dvc.lock") != record.dvc_lock_sha256):
            raise PawlError(
                f"{record.folder} is {record.status}, but what it ran with is no longer in the tree",
                where=", ".join(workspace.STATE),
                fix="put these back as it left them; or give it up: move its folder out of experiments/, then 'git stash -u'",
            )
        if not with_state:
            workspace.restore()
        _commit(record, with_state=with_state)
    return [record.folder for record in finished], workspace.put_back()


def tell(record: Record) -> None:
    """What came out, for the person who waits."""
    say(f"agent: {record.folder} {record.status}")
    if record.evidence:
        figures = [f"accuracy {history.accuracy(record)}", f"difference {history.difference(record)}", f"p {history.p_value(record)}"]
        say(f"  {', '.join(figures)} against {record.incumbent}, {record.evidence.get('n')} validation items")
    say(f"  experiments/{record.folder}/, committed as {workspace.head()[:10]}; all of them: python -m agent history")


def message(record: Record) -> str:
    """The commit message, with the numbers. Every line begins with our own word, so that no text of others becomes a trailer."""
    figures = record.evidence
    before, after = (history.number(figures.get(key)) for key in ("incumbent_accuracy", "accuracy"))
    numbers = (
        f", accuracy {before:.3f} -> {after:.3f}, {history.difference(record)}, p {history.p_value(record)}"
        if before is not None and after is not None
        else ""
    )
    lines = [f"Experiment {record.folder}: {record.status}{numbers}", "", f"Changed: {plain(history.changes(record), 500)}",
             f"Against: {record.incumbent}", f"Why: {plain(record.hypothesis, 2000)}"]  # fmt: skip
    return "\n".join([*lines, *([f"Reason: {record.reason}"] if record.reason else [])]) + "\n"
