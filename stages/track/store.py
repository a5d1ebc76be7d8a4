"""MLflow, so that the same record is one run however often, or in how many processes at once, it is written."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.text import plain
from stages.track.record import Metric, Record, without_credentials

COMPLETE = "pawl.complete"
BATCH = {"metrics": 1000, "params": 100, "tags": 100}
"""The most that MLflow takes in one request."""


def save(record: Record, experiment: str, home: Path) -> str:
    """Write a record to the tracking server, or to the store in `home`, and say what was done: created, completed or unchanged.

    Raises:
        PawlError: the server or the store cannot be used.
    """
    client, exceptions = _client(home)
    try:
        with _one_writer(home):
            return _save(client, record, experiment, _artifacts(str(client.tracking_uri), home))
    except exceptions as error:
        raise _refusal(error, str(client.tracking_uri)) from error


def _client(home: Path) -> tuple[Any, tuple[type[Exception], ...]]:
    """MLflow's client and what it raises where the store fails; an address is always set, since the default depends on the folder."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name, value in (("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"), ("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")):
        os.environ.setdefault(name, value)  # the library's own patience is many minutes
    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from requests.exceptions import RequestException

    exceptions = (MlflowException, RequestException, sqlalchemy.exc.SQLAlchemyError)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home}/mlflow.db"
    try:
        with _one_writer(home):  # opening a new SQLite store creates its tables
            return MlflowClient(tracking_uri=uri, registry_uri=uri), exceptions
    except exceptions as error:
        raise _refusal(error, uri) from error


def _refusal(error: Exception, uri: str) -> PawlError:
    reason = without_credentials(plain(error, 300)) or type(error).__name__
    fix = "start the server or correct MLFLOW_TRACKING_URI (unset: mlflow.db in the repository), then 'dvc repro'; or set tracking=none"
    return PawlError(f"MLflow could not record the run: {reason}", where=without_credentials(uri), fix=fix)


@contextmanager
def _one_writer(home: Path) -> Iterator[None]:
    """Queue workers on this machine write one after the other: finding and creating a run is two steps, and SQLite has one writer."""
    folder = home / ".pawl"
    folder.mkdir(exist_ok=True)
    with open(folder / "mlflow.lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _artifacts(uri: str, home: Path) -> str | None:
    """Where a new experiment keeps its artifacts: a server decides itself; for a local store MLflow would take the current folder."""
    return None if uri.startswith(("http", "databricks")) else (home / "mlartifacts").as_uri()


def _save(client: Any, record: Record, experiment: str, artifacts: str | None) -> str:
    experiment_id = _experiment(client, experiment, artifacts)
    wanted = f"tags.`pawl.key` = '{record.key}'"
    found = client.search_runs([experiment_id], filter_string=wanted, order_by=["attributes.start_time ASC"], max_results=1)
    if found and found[0].data.tags.get(COMPLETE) == "true":
        return "unchanged"
    run = found[0] if found else client.create_run(experiment_id, run_name=record.name, tags={"pawl.key": record.key})
    _fill(client, run.info.run_id, record)
    client.set_terminated(run.info.run_id, "FINISHED")
    client.set_tag(run.info.run_id, COMPLETE, "true")  # last: without it the next attempt goes over everything again
    return "completed" if found else "created"


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    found = client.get_experiment_by_name(name)
    if found and found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=artifacts))


def _fill(client: Any, run_id: str, record: Record) -> None:
    """Log what the run does not hold yet: MLflow appends a metric that is logged again, the rest it takes twice."""
    from mlflow.entities import Metric as Point
    from mlflow.entities import Param, RunTag

    now = int(time.time() * 1000)
    metrics = [Point(m.name, m.value, now, m.step) for m in _missing(client, run_id, record.metrics)]
    params = [Param(name, value) for name, value in record.params.items()]
    tags = [RunTag(name, value) for name, value in record.tags.items()]
    for part in _batches(metrics, BATCH["metrics"]):
        client.log_batch(run_id, metrics=part)
    for part in _batches(params, BATCH["params"]):
        client.log_batch(run_id, params=part)
    for part in _batches(tags, BATCH["tags"]):
        client.log_batch(run_id, tags=part)
    for path in record.artifacts:
        folder = "" if path.parent.name == "reports" else path.parent.name
        client.log_artifact(run_id, str(path), artifact_path=f"reports/{folder}".rstrip("/"))


def _missing(client: Any, run_id: str, metrics: Iterable[Metric]) -> list[Metric]:
    known = client.get_run(run_id).data.metrics
    logged = {(name, point.step) for name in known for point in client.get_metric_history(run_id, name)}
    return [metric for metric in metrics if (metric.name, metric.step) not in logged]


def _batches(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
