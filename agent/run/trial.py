"""What an experiment starts from: its hypothesis, its parent and incumbent, and the record that is
written before it runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.knowledge import history
from agent.knowledge.history import BASELINE, INTERRUPTED, Record
from agent.run import execution, experiment, settings, workspace
from agent.run.progress import Progress, say
from agent.run.signals import interrupts
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.text import plain


def hypothesis(text: str) -> str:
    """--why as it is written everywhere: one line, and nothing that another program would expand.

    OmegaConf would replace ${...} in params.yaml, also with the environment's values; `???` means a
    missing value to it.
    """
    clean = plain(text.encode("utf-8", "replace").decode("utf-8"), 20_000).replace("${", "$ {")
    if not clean.strip(" \N{REPLACEMENT CHARACTER}") or clean == "???":
        raise PawlError(
            "an experiment needs a hypothesis",
            where="--why",
            fix='say what you expect and why: --why "the loss still falls at the end: ..."',
        )
    return clean


def plan(overrides: list[str], why: str, name: str, commit: str, **more: Any) -> Record:
    """The next experiment's record: whatever is needed to run it on the state of `commit`, now or
    after a kill.

    Args:
        more: further fields of the record.

    Raises:
        PawlError: the overrides are refused, or repeat an experiment that has a verdict.
    """
    records, broken = history.read_history()
    if broken:
        say(f"agent: warning: not read: {', '.join(broken)}")
    planned = settings.resolve(overrides)
    seal = settings.fingerprint(planned)
    if record := repeated(records, seal):
        raise PawlError(
            f"this repeats {record.folder} ({told(record)}): the same parameters but for seeds and"
            " names",
            where=f"experiments/{record.folder}",
            fix="try something else; see 'python -m agent history'",
        )
    if crashed := next(
        (
            record
            for record in reversed(records)
            if record.fingerprint == seal and record.status == "CRASHED"
        ),
        None,
    ):
        say(
            f"agent: {crashed.folder} had the same parameters and crashed ({crashed.reason}):"
            " trying again"
        )
    parent, incumbent = lineage(records, planned)
    keys = settings.parse(overrides)
    made = experiment.slug(
        name
        or " ".join(
            override.partition("=")[0].rpartition(".")[2] + override[override.index("=") :]
            for override in overrides
        )
    )
    return Record(
        number=history.next_number(),
        slug=made,
        status=history.PLANNED,
        hypothesis=why,
        parent=parent.folder,
        incumbent=incumbent,
        changes=settings.differences(params_of(parent), planned, keys),
        planned_at=experiment.now(),
        commit=commit,
        model=str(planned["model.name"]),
        fingerprint=seal,
        overrides=list(overrides),
        **more,
    )


def repeated(records: Sequence[Record], seal: str) -> Record | None:
    """The experiment with a verdict that had the same parameters but for seeds and names."""
    return next(
        (record for record in records if record.fingerprint == seal and record.judged), None
    )


def crashed_alike(records: Sequence[Record], seal: str) -> Record | None:
    """One with the same parameters that crashed by itself: the loop does not try it again, a person
    may.
    """
    alike = (
        record
        for record in reversed(records)
        if record.fingerprint == seal and record.status == "CRASHED"
    )
    return next((record for record in alike if record.reason != INTERRUPTED), None)


def told(record: Record) -> str:
    difference = history.difference(record)
    return f"{record.status}{', difference ' + difference if difference else ''}"


def lineage(records: Sequence[Record], present: dict[str, Any]) -> tuple[Record, str]:
    """The parent of the next experiment and the path that it is compared with; at least a starting
    point must be there.
    """
    kept = incumbent_of(records, present)
    parent = kept or next(
        record for record in reversed(records) if record.judged and not record.parent
    )
    return parent, f"experiments/{kept.folder}" if kept else BASELINE


def incumbent_of(records: Sequence[Record], present: dict[str, Any]) -> Record | None:
    """The newest kept experiment that the present ruler measured; rows of another ruler cannot be
    paired.
    """
    return next(
        (
            record
            for record in reversed(records)
            if record.status == "KEPT" and _same_ruler(record, present)
        ),
        None,
    )


def _same_ruler(record: Record, present: dict[str, Any]) -> bool:
    return settings.ruler(params_of(record)) == settings.ruler(present)


def why_start(present: dict[str, Any]) -> str:
    """Why the present state must be recorded before anything is tried from it; "" where the newest
    verdict is of the present ruler.
    """
    newest = next((record for record in reversed(history.read_history()[0]) if record.judged), None)
    if newest is None:
        return "no experiment has a verdict yet"
    changed = settings.differences(
        old := settings.ruler(params_of(newest)),
        new := settings.ruler(present),
        old.keys() | new.keys(),
    )
    keys = ", ".join(change["key"] for change in changed[:3]) + (
        " and more" if len(changed) > 3 else ""
    )
    return f"the ruler changed since {newest.folder} ({keys})" if changed else ""


def _require_own_ruler(incumbent: str, present: dict[str, Any]) -> None:
    for record in history.read_history()[0]:
        if incumbent == f"experiments/{record.folder}" and not _same_ruler(record, present):
            raise PawlError(
                f"the ruler changed, and experiment.incumbent still names {incumbent}, measured"
                " with the old one",
                where=str(settings.CURRENT),
                fix=(
                    f"set experiment.incumbent there to {BASELINE}, python -m stages.common.config,"
                    " commit, then try again"
                ),
            )


def params_of(record: Record) -> dict[str, Any]:
    try:
        return settings.flat(
            (experiment.folder_of(record) / "params.yaml").read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError):
        raise PawlError(
            "an experiment's params.yaml cannot be read",
            where=str(experiment.folder_of(record)),
            fix="restore it from git",
        ) from None


def starting_point(
    commit: str,
    reason: str,
    progress: Progress | None = None,
    taken_up: Record | None = None,
    hours_left: float = 0.0,
) -> Record:
    """Record the present state as an experiment: reproduce it, take its verdict, commit. Without a
    verdict nothing is left.

    With a run to be taken up again, a stop leaves it planned instead, and `taken_up` is that
    record.
    """
    params = settings.require_composed()
    about = read_params("experiment").experiment
    _require_own_ruler(about.incumbent, params)
    progress = progress or Progress()
    record = taken_up or Record(
        number=history.next_number(),
        slug=experiment.slug(about.name),
        status=history.PLANNED,
        hypothesis=plain(about.hypothesis, 20_000),
        incumbent=about.incumbent,
        planned_at=experiment.now(),
        commit=commit,
        model=str(params["model.name"]),
        fingerprint=settings.fingerprint(params),
        run=progress.run.id if progress.run else "",
    )
    say(f"agent: {reason}: the present state becomes {record.folder}, the starting point")
    with interrupts() as shield:
        try:
            begun = time.monotonic()
            progress.enter("running", record.folder)
            experiment.write_record(record)
            verdict = execution.reproduce(record, about.name, progress, hours_left)
            shield()
            progress.enter("recording", record.folder)
            experiment.write_settings(
                record,
                settings.CURRENT.read_text(encoding="utf-8"),
                settings.PARAMS.read_text(encoding="utf-8"),
            )
            record = experiment.finish(
                replace(record, cost=execution.cost(record, progress)),
                verdict,
                time.monotonic() - begun,
            )
        except BaseException as error:
            progress.close()
            if progress.run and isinstance(error, KeyboardInterrupt):
                raise
            shield()
            workspace.put_back()
            raise
        progress.close()
        execution.keep(record, progress)
    return record
