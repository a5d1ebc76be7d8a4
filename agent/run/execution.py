"""One planned experiment, run: edit, compose, reproduce, take the verdict, keep or discard, record.
Taken up again after a kill.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from agent.knowledge import history, lessons
from agent.knowledge.cache import FOLDER
from agent.knowledge.history import Record
from agent.run import account, experiment, settings, telling, workspace
from agent.run.progress import Progress, say
from agent.run.signals import interrupts
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_file
from stages.common.reports.verdict import Verdict
from stages.common.text import plain


class StageFailed(PawlError):
    """`dvc repro` ended because a stage of it failed by itself; `stage` is "" if DVC does not name
    it.
    """

    def __init__(self, what: str, stage: str, *, where: str, fix: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.stage = stage


def run(
    record: Record,
    progress: Progress,
    *,
    papers: Callable[[], None] = lambda: None,
    resumable: bool = False,
    hours_left: float = 0.0,
) -> tuple[Record, BaseException | None]:
    """Run a planned experiment. The tree ends as a commit, the experiment as a record.

    Args:
        papers: writes what lies in its folder beside the record.
        resumable: Ctrl-C leaves it planned, for `resume`; else the tree goes back to HEAD and
            nothing is recorded.
        hours_left: of the budget; 0: no limit but agent.timeout_h.

    Returns:
        The record, and why it has no verdict if it has none.
    """
    say(f"agent: {record.folder}: {history.changes(record)}, against {record.incumbent}")
    taken_up = progress.run is not None and progress.run.folder == record.folder
    before = progress.run.leg if progress.run and taken_up else 0.0
    since, begun = time.time(), time.monotonic()
    cause: BaseException | None = None
    with interrupts() as shield:
        try:
            _prepare(record, progress, papers)
            progress.enter("running", record.folder)
            verdict = reproduce(record, record.slug, progress, hours_left)
            shield()
            _require_same_head(record)
            progress.enter("recording", record.folder)
            paid = replace(record, cost=cost(record, progress))
            done = experiment.finish(paid, verdict, before + time.monotonic() - begun)
        except KeyboardInterrupt:
            if resumable:
                progress.close()
                raise
            shield()
            progress.close()
            _require_same_head(record)
            # stopped by a person: it found nothing out, so there is nothing to record
            workspace.put_back()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever ended it, the tree is put back and the record says why
            shield()
            # else it stays planned, for `restore`: that commit is not ours to write upon
            _require_same_head(record)
            progress.enter("recording", record.folder)
            seconds = before + time.monotonic() - begun
            words = (
                telling.explained(record, error.stage, since)
                if isinstance(error, StageFailed)
                else ""
            )
            paid = replace(record, cost=cost(record, progress))
            cause, done = error, experiment.crash(paid, telling.reason_of(error), seconds, words)
        progress.close()
        keep(done, progress)
    return done, cause


def _prepare(record: Record, progress: Progress, papers: Callable[[], None]) -> None:
    """Write the record and what lies beside it, then the changes into conf/ and params.yaml."""
    progress.enter("editing", record.folder)
    # before the record: a folder without one is thrown away after a kill, and planned again
    papers()
    experiment.write_record(record)
    planned = settings.resolve(record.overrides)
    about = {
        "name": record.slug,
        "hypothesis": record.hypothesis,
        "parent": record.parent,
        "incumbent": record.incumbent,
    }
    changed = {key: planned[key] for key in settings.parse(record.overrides)}
    settings.edit(changed | {f"experiment.{key}": value for key, value in about.items()})
    progress.enter("composing", record.folder)
    workspace.compose_params()
    params = settings.require_as_planned(planned, about)
    experiment.write_settings(record, settings.CURRENT.read_text(encoding="utf-8"), params)


def cost(record: Record, progress: Progress) -> dict[str, float]:
    return account.of_experiment(record, progress.run.training if progress.run else None)


def _with_state(record: Record) -> bool:
    """Whether the tree stays as the experiment left it. A starting point is the present state,
    whatever its verdict.
    """
    return record.status == "KEPT" or not record.parent


def keep(done: Record, progress: Progress) -> None:
    """Put the tree back if a finished experiment is not kept, and commit its record."""
    if not _with_state(done):
        progress.enter("restoring", done.folder)
        if not workspace.restore():
            say("agent: warning: some outputs are not in DVC's cache; 'dvc repro' makes them again")
    progress.enter("committing", done.folder)
    _commit(done)


def reproduce(record: Record, name: str, progress: Progress, hours_left: float = 0.0) -> Verdict:
    """`dvc repro`, and the verdict if it belongs to this experiment and to an unchanged
    pipeline.
    """
    log, since = FOLDER / f"{record.folder}.log", time.time()
    limit, key = read_params("agent").agent.timeout_h, "agent.timeout_h"
    if 0 < hours_left < limit:
        limit, key = hours_left, "agent.budget.hours"
    code = workspace.repro(log, 3600 * limit, progress.hear)
    if code == 124:
        fix = f"raise {key} in conf/agent, or try something smaller"
        raise PawlError(f"dvc repro took longer than {limit:.3g} h", where=str(log), fix=fix)
    if code:
        stage = workspace.failed_stage(log)
        what = f"dvc repro failed{telling.failed_at(stage, since)} (exit {code})"
        raise StageFailed(what, stage, where=str(log), fix="read the end of that log")
    if stale := workspace.out_of_date():
        raise PawlError(
            f"the pipeline changed while it ran: {plain(', '.join(stale), 200)}",
            where="dvc status",
            fix="run it again without touching the files",
        )
    if edited := workspace.foreign_changes(experiment.folder_of(record)):
        raise PawlError(
            f"edited while the experiment ran: {plain(', '.join(edited), 200)}",
            fix="commit that change, then try again",
        )
    return experiment.read_verdict(name, record.incumbent)


def _require_same_head(record: Record) -> None:
    if workspace.head() != record.commit:
        raise PawlError(
            "somebody committed or switched branches while the experiment ran",
            where=record.folder,
            fix="python -m agent restore, then try again",
        )


def require_same_head(run: str) -> None:
    """Refuse to take a run up if HEAD has moved since its experiment began: nothing is ended, put
    back or committed then.

    Raises:
        PawlError: somebody committed or switched branches.
    """
    for folder in workspace.unheld():
        with suppress(ValueError):  # without a record it was not begun
            record, now = history.read_record(folder), workspace.head()
            if record.run == run and record.commit != now:
                aside = (
                    f"move experiments/{record.folder} elsewhere, 'git stash -u', then "
                    if record.finished
                    else ""
                )
                raise PawlError(
                    f"somebody committed or switched branches since {record.folder} began",
                    where=f"HEAD is {now[:10]}, it began from {record.commit[:10]}",
                    fix=(
                        "switch back, if it was that; else give the run up, HEAD stays as it is:"
                        f" {aside}python -m agent restore"
                    ),
                )


def _commit(record: Record) -> None:
    folder = experiment.folder_of(record)
    finished = [each for each in history.read_history()[0] if each.finished]
    history.write_journal(finished)
    lessons.write(finished)
    workspace.show_page()
    try:
        workspace.commit_record(folder, telling.message(record), with_state=_with_state(record))
    except PawlError as error:
        raise PawlError(
            f"{record.folder} is {record.status}, but not committed: {error.what}",
            where=error.where,
            fix="correct that, then: python -m agent restore, which commits it",
        ) from None
    if record.status == "CRASHED" and (ROOT / "stages/track").is_dir():
        argv = [sys.executable, "-m", "stages.track", "--crashed", f"experiments/{record.folder}"]
        workspace.call(argv, check=False, timeout_s=300)
    if left := workspace.changed():
        say(f"agent: warning: not mine, so left as they are: {plain(', '.join(left[:5]), 300)}")


def commit_finished(progress: Progress | None = None) -> list[str]:
    """After a kill or a failed commit: put back and commit what is finished; gives the folders.

    Raises:
        PawlError: git refuses again, or the tree no longer holds the state that is to be committed.
    """
    finished = workspace.uncommitted()
    for record in finished:
        lock = ROOT / "dvc.lock"
        if _with_state(record) and (
            workspace.out_of_date() or sha256_file(lock) != record.dvc_lock_sha256
        ):
            raise PawlError(
                f"{record.folder} is {record.status}, but what it ran with is no longer in the"
                " tree",
                where=", ".join(workspace.STATE),
                fix=(
                    "put these back as it left them; or give it up: move its folder out of"
                    " experiments/, then 'git stash -u'"
                ),
            )
        keep(record, progress or Progress())
    return [record.folder for record in finished]
