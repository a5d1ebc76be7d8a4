"""One run in MLflow however often, however interrupted, and in however many processes it is written."""

from __future__ import annotations

import multiprocessing
import sys

import pytest

from stages.common.errors import PawlError
from stages.track import store
from stages.track.record import Metric, Record

pytestmark = pytest.mark.e2e  # imports MLflow and makes its database


def record(key: str = "a" * 64, points: int = 5) -> Record:
    metrics = [Metric("loss/train", 1 / (k + 1), k) for k in range(points)] + [Metric("val/overall/accuracy", 0.5, 0)]
    return Record(key, "synthetic", {"train.learning_rate": "0.001"}, metrics, {"pawl.decision": "yes", "pawl.key": key}, [])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    home = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        store._client(home)
    return home


@pytest.fixture
def home(prepared, monkeypatch, request):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return prepared


def runs(home, experiment):
    client, _ = store._client(home)
    found = client.get_experiment_by_name(experiment)
    return client, client.search_runs([found.experiment_id])


def test_five_repros_over_two_configurations_are_two_runs(home):
    said = [store.save(record(key * 64), "five", home) for key in "ababa"]
    assert said == ["created", "created", "unchanged", "unchanged", "unchanged"]
    client, found = runs(home, "five")
    assert len(found) == 2 and {run.data.tags[store.COMPLETE] for run in found} == {"true"}
    for run in found:
        assert [point.step for point in client.get_metric_history(run.info.run_id, "loss/train")] == list(range(5))
        assert run.info.status == "FINISHED" and run.info.artifact_uri.startswith(f"file://{home}/mlartifacts")


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_run_is_completed_without_duplicated_points(home, monkeypatch, after):
    from mlflow.tracking import MlflowClient

    experiment, real, calls = f"interrupted-{after}", MlflowClient.log_batch, []
    monkeypatch.setitem(store.BATCH, "metrics", 2)

    def failing(self, *args, **kwargs):
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", failing)
        with pytest.raises(KeyboardInterrupt):
            store.save(record(), experiment, home)
    assert store.save(record(), experiment, home) == "completed"
    client, found = runs(home, experiment)
    assert len(found) == 1 and len(client.get_metric_history(found[0].info.run_id, "loss/train")) == 5
    assert found[0].data.params == {"train.learning_rate": "0.001"} and found[0].data.tags["pawl.decision"] == "yes"


def test_more_than_a_batch_is_logged(home):
    store.save(record(points=1500), "many", home)
    client, found = runs(home, "many")
    assert len(client.get_metric_history(found[0].info.run_id, "loss/train")) == 1500


def _save(home, key):
    store.save(record(key * 64), "parallel", home)


def test_two_processes_at_once_make_one_run_each_key(home):
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    workers = [context.Process(target=_save, args=(home, key)) for key in "cdcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    client, found = runs(home, "parallel")
    assert len(found) == 2
    assert [len(client.get_metric_history(run.info.run_id, "loss/train")) for run in found] == [5, 5]


def test_an_unreachable_server_is_a_clear_error_without_its_password(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(PawlError) as caught:
        store.save(record(), "x", home)
    assert "hunter2" not in str(caught.value) and "127.0.0.1:9" in caught.value.where and "MLFLOW_TRACKING_URI" in caught.value.fix


def test_a_store_that_cannot_be_opened_is_a_clear_error(home, monkeypatch, tmp_path):
    (tmp_path / "broken.db").write_text("this is no database " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/broken.db")
    with pytest.raises(PawlError, match="MLflow could not record the run"):
        store.save(record(), "x", home)
