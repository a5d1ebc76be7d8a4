"""MLflow, so that the same record is one run however often, or in how many processes at once, it is
written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.redaction import redact
from stages.common.text import plain
from stages.track import spool
from stages.track.metrics import Metric
from stages.track.record import Parent, Record

COMPLETE = "pawl.complete"
CHAMPION = "champion"
BATCH = {"metrics": 1000, "params": 100, "tags": 100}
"""The most that MLflow takes in one request."""
_OURS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "ENDPOINT_NOT_FOUND")
"""Refusals that waiting does not mend: the request itself is wrong."""


class Unreachable(PawlError):
    """The server or the store cannot be used at present."""


def save(record: Record, experiment: str, home: Path) -> str:
    """Write a record, and those that earlier runs could not deliver, and say what was done:
    created, completed, unchanged or spooled.

    A server or store that cannot be used costs a warning and a file in .pawl/spool, not the result.

    Raises:
        PawlError: MLflow refuses the record itself.
    """
    # first, so that the champion is the last one that was accepted
    _deliver_waiting(home, record.key)
    try:
        done = deliver(record, experiment, home)
    except Unreachable as error:
        spool.put(record, experiment, home)
        waiting = len(spool.waiting(home))
        print(
            f"track: warning: {error}\n  {waiting} waiting in {spool.folder(home)}; the next run"
            " delivers them, or: python -m stages.track"
        )
        return "spooled"
    spool.remove(spool.folder(home) / record.key)
    return done


def _deliver_waiting(home: Path, but: str) -> None:
    for each in spool.waiting(home):
        if each.name == but:
            continue
        try:
            held, under = spool.read(each)
            deliver(held, under, home)
        except Unreachable:
            return  # the run at hand meets the same, and says so
        except PawlError as error:
            if each.is_dir():  # else another worker delivered it meanwhile
                print(f"track: warning: {each.name[:12]} stays in {spool.folder(home)}: {error}")
            continue
        spool.remove(each)
        print(f"track: delivered {held.name}, which had waited in {spool.folder(home)}")


def deliver(record: Record, experiment: str, home: Path) -> str:
    """Write a record to the tracking server, or to the store in `home`: created, completed or
    unchanged.

    Raises:
        Unreachable: the server or the store cannot be used.
        PawlError: it refuses the record itself.
    """
    uri = _uri(home)
    try:
        client = _client(home)
        with _one_writer(home):
            return _save(client, record, experiment, _artifacts(uri, home))
    except Exception as error:
        # stores of artifacts are plug-ins, which raise what their libraries raise
        raise _refusal(error, uri) from error


def _uri(home: Path) -> str:
    """An address is always set, since MLflow's default depends on the folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home}/mlflow.db"


def _client(home: Path) -> Any:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name, value in (
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "20"),
    ):
        os.environ.setdefault(name, value)  # the library's own patience is many minutes
    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    with _one_writer(home):  # opening a new SQLite store creates its tables
        return MlflowClient(tracking_uri=_uri(home), registry_uri=_uri(home))


def _refusal(error: Exception, uri: str) -> PawlError:
    reason = plain(error, 300) or type(error).__name__
    fix = (
        "start the server or correct MLFLOW_TRACKING_URI (unset: mlflow.db in the repository); or"
        " set tracking=none"
    )
    kind = PawlError if getattr(error, "error_code", "") in _OURS else Unreachable
    return kind(f"MLflow could not record the run: {reason}", where=redact(uri), fix=fix)


@contextmanager
def _one_writer(home: Path) -> Iterator[None]:
    """Queue workers on this machine write one after the other: finding and creating a run is two
    steps, and SQLite has one writer.
    """
    folder = home / ".pawl"
    folder.mkdir(exist_ok=True)
    with open(folder / "mlflow.lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _artifacts(uri: str, home: Path) -> str | None:
    """Where a new experiment keeps its artifacts: a server decides itself; for a local store MLflow
    would take the current folder.
    """
    return None if uri.startswith(("http", "databricks")) else (home / "mlartifacts").as_uri()


def _save(client: Any, record: Record, experiment: str, artifacts: str | None) -> str:
    experiment_id = _experiment(client, experiment, artifacts)
    found = _find(client, experiment_id, record.key)
    if found and found.data.tags.get(COMPLETE) == "true":
        return "unchanged"
    tags = {"pawl.key": record.key}
    if record.parent:
        tags["mlflow.parentRunId"] = _parent(client, experiment_id, record.parent)
    run = found or client.create_run(experiment_id, run_name=record.name, tags=tags)
    _fill(client, run.info.run_id, record)
    _inputs(client, run.info.run_id, record)
    _register(client, run, record)
    client.set_terminated(
        run.info.run_id, "FAILED" if record.tags.get("pawl.outcome") == "crashed" else "FINISHED"
    )
    # last: without it the next attempt goes over everything again
    client.set_tag(run.info.run_id, COMPLETE, "true")
    return "completed" if found else "created"


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    found = client.get_experiment_by_name(name)
    if found and found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=artifacts))


def _find(client: Any, experiment_id: str, key: str) -> Any:
    wanted = f"tags.`pawl.key` = '{key}'"
    found = client.search_runs(
        [experiment_id], filter_string=wanted, order_by=["attributes.start_time ASC"], max_results=1
    )
    return found[0] if found else None


def _parent(client: Any, experiment_id: str, parent: Parent) -> str:
    """The run of a sweep or session, made by the first of its children."""
    if found := _find(client, experiment_id, parent.key):
        return str(found.info.run_id)
    tags = {"pawl.key": parent.key, "pawl.kind": parent.kind, COMPLETE: "true"}
    run = client.create_run(experiment_id, run_name=parent.name, tags=tags)
    client.set_terminated(run.info.run_id, "FINISHED")
    return str(run.info.run_id)


def _fill(client: Any, run_id: str, record: Record) -> None:
    """Log what the run does not hold yet: MLflow appends a metric that is logged again, the rest it
    takes twice.
    """
    from mlflow.entities import Metric as Point
    from mlflow.entities import Param, RunTag

    now = int(time.time() * 1000)
    metrics = [
        Point(m.name, m.value, now, m.step) for m in _missing(client, run_id, record.metrics)
    ]
    params = [Param(name, value) for name, value in record.params.items()]
    tags = [RunTag(name, value) for name, value in record.tags.items()]
    for part in _batches(metrics, BATCH["metrics"]):
        client.log_batch(run_id, metrics=part)
    for part in _batches(params, BATCH["params"]):
        client.log_batch(run_id, params=part)
    for part in _batches(tags, BATCH["tags"]):
        client.log_batch(run_id, tags=part)
    for path, folder in record.artifacts:
        client.log_artifact(run_id, str(path), artifact_path=folder or None)


def _inputs(client: Any, run_id: str, record: Record) -> None:
    """The data sets by their hashes; one that is logged again stays one."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Entity(
                each.name,
                each.digest,
                "dvc",
                json.dumps({"path": each.path, "md5": each.digest}),
                profile=json.dumps({"rows": each.rows}),
            ),
            [InputTag("mlflow.data.context", each.context)],
        )
        for each in record.datasets
    ]
    if inputs:
        client.log_inputs(run_id, datasets=inputs)


def _register(client: Any, run: Any, record: Record) -> None:
    """The model as a version in the registry, once a run; the alias goes to it if it was accepted.

    The weights are copied into the run's artifacts: a registry takes no path of another machine.
    """
    if not record.register or record.model is None or not record.model.is_dir():
        return
    from mlflow.exceptions import MlflowException

    run_id = run.info.run_id
    versions = [
        each
        for each in client.search_model_versions(f"run_id = '{run_id}'")
        if each.name == record.register
    ]
    if versions:
        version = versions[0].version
    else:
        try:
            client.create_registered_model(record.register)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        client.log_artifacts(run_id, str(record.model), artifact_path="model")
        source = f"{run.info.artifact_uri}/model"
        tags = {
            name: record.tags[name]
            for name in ("pawl.key", "pawl.outcome", "pawl.commit")
            if name in record.tags
        }
        version = client.create_model_version(
            record.register, source, run_id=run_id, tags=tags
        ).version
    if record.champion:
        client.set_registered_model_alias(record.register, CHAMPION, version)


def _missing(client: Any, run_id: str, metrics: Iterable[Metric]) -> list[Metric]:
    known = client.get_run(run_id).data.metrics
    logged = {
        (name, point.step) for name in known for point in client.get_metric_history(run_id, name)
    }
    return [metric for metric in metrics if (metric.name, metric.step) not in logged]


def _batches(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
