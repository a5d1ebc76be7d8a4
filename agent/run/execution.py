"""One planned experiment, run: edit, compose, reproduce, take the verdict, keep or discard, record. Taken up again after a kill."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.knowledge import history, lessons
from agent.knowledge.cache import FOLDER
from agent.knowledge.history import Record
from agent.run import account, experiment, settings, workspace
from agent.run.progress import Progress, say
from agent.run.signals import interrupts
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_file
from stages.common.process import tail
from stages.common.redaction import redact
from stages.common.text import plain

_SEES_NO_TEST = ("fetch_model", "train", "eval_val", "judge")
"""Stages whose error message may go into a record; the others read test items (generate_data to keep them out) or test results."""
BASELINE = "reports/baseline"
INTERRUPTED = "interrupted"
"""The reason in older records of a try that was stopped."""


class StageFailed(PawlError):
    """`dvc repro` ended because a stage of it failed by itself."""


def run(
    record: Record, progress: Progress, *, papers: Callable[[], None] = lambda: None, resumable: bool = False, hours_left: float = 0.0
) -> tuple[Record, BaseException | None]:
    """Run a planned experiment; the tree ends as a commit and the experiment as one record. Gives it, and why it has no verdict.

    Args:
        papers: writes what belongs into its folder beside the record.
        resumable: Ctrl-C leaves it planned, for `resume`; else the tree goes back to HEAD and nothing is recorded.
        hours_left: of the budget; 0: no limit but agent.timeout_h.
    """
    say(f"agent: {record.folder}: {history.changes(record)}, against {record.incumbent}")
    cause: BaseException | None = None
    before, begun = progress.run.leg if progress.run and progress.run.folder == record.folder else 0.0, time.monotonic()
    clock = time.time()
    with interrupts() as shield:
        try:
            progress.enter("editing", record.folder)
            papers()  # before the record: a folder without one is thrown away after a kill, and planned again
            experiment.write_record(record)
            planned = settings.resolve(record.overrides)
            about = {"name": record.slug, "hypothesis": record.hypothesis, "parent": record.parent, "incumbent": record.incumbent}
            settings.edit(
                {key: planned[key] for key in settings.parse(record.overrides)} | {f"experiment.{k}": v for k, v in about.items()}
            )
            progress.enter("composing", record.folder)
            workspace.compose_params()
            experiment.write_settings(record, settings.CURRENT.read_text(encoding="utf-8"), settings.require_as_planned(planned, about))
            progress.enter("running", record.folder)
            verdict = reproduce(record, record.slug, progress, hours_left)
            shield()
            _require_same_head(record)
            progress.enter("recording", record.folder)
            seconds = before + time.monotonic() - begun
            done = experiment.finish(replace(record, cost=cost(record, progress)), verdict, seconds)
        except BaseException as error:
            if resumable and isinstance(error, KeyboardInterrupt):
                progress.close()
                raise
            shield()
            if isinstance(error, KeyboardInterrupt):  # stopped by a person: it found nothing out, so there is nothing to record
                progress.close()
                _require_same_head(record)
                workspace.put_back()
                raise
            _require_same_head(record)  # else it stays planned, for `restore`: that commit is not ours to write upon
            progress.enter("recording", record.folder)
            seconds = before + time.monotonic() - begun
            words = explained(record, clock) if isinstance(error, StageFailed) else ""
            cause, done = error, experiment.crash(replace(record, cost=cost(record, progress)), _reason(error), seconds, words)
        progress.close()
        keep(done, progress)
    return done, cause


def cost(record: Record, progress: Progress) -> dict[str, float]:
    return account.of_experiment(record, progress.run.training if progress.run else None)


def keep(done: Record, progress: Progress) -> None:
    """Put the tree back where a finished experiment is not kept, and commit its record."""
    with_state = done.status == "KEPT" or not done.parent  # a starting point is the present state, whatever its verdict
    if not with_state:
        progress.enter("restoring", done.folder)
        if not workspace.restore():
            say("agent: warning: some outputs are not in DVC's cache; 'dvc repro' makes them again")
    progress.enter("committing", done.folder)
    _commit(done, with_state=with_state)


def reproduce(record: Record, name: str, progress: Progress, hours_left: float = 0.0) -> dict[str, Any]:
    """`dvc repro`, and the verdict if it belongs to this experiment and to an unchanged pipeline."""
    log = FOLDER / f"{record.folder}.log"
    hours = read_params("agent").agent.timeout_h
    limit, fix = hours, "raise agent.timeout_h in conf/agent, or try something smaller"
    if hours_left and hours_left < hours:
        limit, fix = hours_left, "raise agent.budget.hours in conf/agent, or try something smaller"
    code = workspace.repro(log, 3600 * limit, progress.hear)
    if code == 124:
        raise PawlError(f"dvc repro took longer than {limit:.3g} h", where=str(log), fix=fix)
    if code:
        raise StageFailed(f"dvc repro failed{_failure(log)} (exit {code})", where=str(log), fix="read the end of that log")
    if stale := workspace.out_of_date():
        raise PawlError(
            f"the pipeline changed while it ran: {plain(', '.join(stale), 200)}",
            where="dvc status",
            fix="run it again without touching the files",
        )
    if edited := workspace.foreign_changes(experiment.folder_of(record)):
        raise PawlError(f"edited while the experiment ran: {plain(', '.join(edited), 200)}", fix="commit that change, then try again")
    return experiment.read_verdict(name, record.incumbent)


def _failure(log: Path) -> str:
    """At which stage, and its error line if that stage cannot have read test data."""
    stage = workspace.failed_stage(log)
    if stage not in _SEES_NO_TEST:
        return f" at {stage}" if stage else ""
    program = "evaluate" if stage == "eval_val" else stage
    lines = re.findall(rf"^{program}: error: (.*)$", tail(log, 8000), re.MULTILINE)
    return f" at {stage}" + (f": {plain(redact(lines[-1]), 200)}" if lines else "")


def explained(record: Record, since: float) -> str:
    """What the judge says to the stage that failed after `since`, in seconds since 1970; "" where it cannot say. Counts what it paid."""
    if not (ROOT / "stages/judge").is_dir():
        return ""
    done = workspace.call([sys.executable, "-m", "stages.judge", "explain-failure", "--since", f"{since:.3f}"], check=False, timeout_s=600)
    if record.run and (paid := re.search(r"^  paid:  ([\d.]+) for (\d+) and (\d+) tokens$", done.stdout, re.MULTILINE)):
        account.add_call(record.run, record.trial, "explain", int(paid[2]), int(paid[3]), float(paid[1]))
    found = re.search(r"^judge: (?!no stage )(.+)$", done.stdout, re.MULTILINE)
    return plain(redact(found[1]), 1500) if found and done.returncode == 0 else ""


def _reason(error: BaseException) -> str:
    return plain(redact(error.what if isinstance(error, PawlError) else f"{type(error).__name__}: {error}"), 300)


def _require_same_head(record: Record) -> None:
    if workspace.head() != record.commit:
        raise PawlError(
            "somebody committed or switched branches while the experiment ran",
            where=record.folder,
            fix="python -m agent restore, then try again",
        )


def require_same_head(run: str) -> None:
    """Refuse to take a run up where HEAD has moved since its experiment began: nothing is ended, put back or committed then.

    Raises:
        PawlError: somebody committed or switched branches.
    """
    for folder in workspace.unheld():
        with suppress(ValueError):  # without a record it was not begun
            record, now = history.read_record(folder), workspace.head()
            if record.run == run and record.commit != now:
                aside = f"move experiments/{record.folder} elsewhere, 'git stash -u', then " if record.finished else ""
                raise PawlError(
                    f"somebody committed or switched branches since {record.folder} began",
                    where=f"HEAD is {now[:10]}, it began from {record.commit[:10]}",
                    fix=f"switch back, if it was that; else give the run up, HEAD stays as it is: {aside}python -m agent restore",
                )


def _commit(record: Record, *, with_state: bool) -> None:
    folder = experiment.folder_of(record)
    finished = [each for each in history.read_history()[0] if each.finished]
    history.write_journal(finished)
    lessons.write(finished)
    workspace.show_page()
    try:
        workspace.commit_record(folder, message(record), with_state=with_state)
    except PawlError as error:
        fix = "mend that, then: python -m agent restore, which commits it"
        raise PawlError(f"{record.folder} is {record.status}, but not committed: {error.what}", where=error.where, fix=fix) from None
    if record.status == "CRASHED" and (ROOT / "stages/track").is_dir():
        workspace.call([sys.executable, "-m", "stages.track", "--crashed", f"experiments/{record.folder}"], check=False, timeout_s=300)
    if left := workspace.changed():
        say(f"agent: warning: not mine, so left as they are: {plain(', '.join(left[:5]), 300)}")


def commit_finished(progress: Progress | None = None) -> list[str]:
    """After a kill or a failed commit: put back and commit what is finished; gives the folders.

    Raises:
        PawlError: git refuses again, or the tree no longer holds the state that is to be committed.
    """
    finished = workspace.uncommitted()
    for record in finished:
        with_state = record.status == "KEPT" or not record.parent
        if with_state and (workspace.out_of_date() or sha256_file(ROOT / "dvc.lock") != record.dvc_lock_sha256):
            raise PawlError(
                f"{record.folder} is {record.status}, but what it ran with is no longer in the tree",
                where=", ".join(workspace.STATE),
                fix="put these back as it left them; or give it up: move its folder out of experiments/, then 'git stash -u'",
            )
        keep(record, progress or Progress())
    return [record.folder for record in finished]


def tell(record: Record) -> None:
    """What came out, for the person who waits."""
    say(f"agent: {record.folder} {record.status}{f' ({record.reason})' if record.reason else ''}")
    if record.words:
        say(f"  {record.words}")
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
    return (
        "\n".join([*lines, *(f"{name}: {text}" for name, text in (("Reason", record.reason), ("Explained", record.words)) if text)]) + "\n"
    )
