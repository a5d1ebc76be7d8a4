"""One run in MLflow however often, however interrupted, and in however many processes it is
written.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.track import spool, store
from stages.track.crashed import make_crashed
from stages.track.metrics import Metric
from stages.track.record import Dataset, Parent, Record

pytestmark = pytest.mark.e2e  # imports MLflow and makes its database


def record(key: str = "a" * 64, points: int = 5, **more: Any) -> Record:
    metrics = [Metric("loss/train", 1 / (k + 1), k) for k in range(points)] + [
        Metric("val/overall/accuracy", 0.5, 0)
    ]
    return Record(
        key,
        "synthetic",
        {"train.learning_rate": "0.001"},
        metrics,
        {"pawl.decision": "yes", "pawl.key": key},
        [],
    )._replace(**more)


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
    client = store._client(home)
    found = client.get_experiment_by_name(experiment)
    return client, client.search_runs([found.experiment_id])


def test_five_repros_over_two_configurations_are_two_runs(home):
    said = [store.save(record(key * 64), "five", home) for key in "ababa"]
    assert said == ["created", "created", "unchanged", "unchanged", "unchanged"]
    client, found = runs(home, "five")
    assert len(found) == 2 and {run.data.tags[store.COMPLETE] for run in found} == {"true"}
    for run in found:
        assert [
            point.step for point in client.get_metric_history(run.info.run_id, "loss/train")
        ] == list(range(5))
        assert run.info.status == "FINISHED" and run.info.artifact_uri.startswith(
            f"file://{home}/mlartifacts"
        )


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
    assert (
        len(found) == 1 and len(client.get_metric_history(found[0].info.run_id, "loss/train")) == 5
    )
    assert (
        found[0].data.params == {"train.learning_rate": "0.001"}
        and found[0].data.tags["pawl.decision"] == "yes"
    )


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
    assert [len(client.get_metric_history(run.info.run_id, "loss/train")) for run in found] == [
        5,
        5,
    ]


def test_a_data_set_is_an_input_of_its_run_once(home):
    data = [Dataset("sums", "0123456789abcdef0123456789abcdef.dir", "data/train", "training", 610)]
    store.save(record(datasets=data), "data", home)
    client, (run,) = runs(home, "data")
    client.delete_tag(run.info.run_id, store.COMPLETE)
    assert store.save(record(datasets=data), "data", home) == "completed"
    (found,) = client.get_run(run.info.run_id).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("sums", data[0].digest) and found.tags[
        0
    ].value == "training"


def test_runs_of_a_sweep_are_nested_under_one_parent(home):
    parent = Parent("f" * 64, "sweep from ccccccc", "sweep")
    for key in "abc":
        store.save(record(key * 64, parent=parent), "sweep", home)
    _, found = runs(home, "sweep")
    (top,) = [run for run in found if run.data.tags.get("pawl.kind") == "sweep"]
    assert len(found) == 4 and top.info.run_name == parent.name
    assert [run.data.tags["mlflow.parentRunId"] for run in found if run is not top] == [
        top.info.run_id
    ] * 3


def test_the_registry_gets_a_version_a_run_and_the_alias_moves_on_accept(home, tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    for key, champion in (("a", True), ("b", False), ("a", True), ("c", True)):
        store.save(
            record(key * 64, register="pawl-sums", model=tmp_path, champion=champion),
            "registry",
            home,
        )
        client, _ = runs(home, "registry")
        held = client.get_model_version_by_alias("pawl-sums", "champion")
        assert (
            client.get_run(held.run_id).data.tags["pawl.key"][0]
            == {"a": "a", "b": "a", "c": "c"}[key]
        )
    versions = client.search_model_versions("name = 'pawl-sums'")
    assert len(versions) == 3
    copied = Path(held.source.removeprefix("file://")) / "adapter_model.safetensors"
    assert copied.read_bytes() == b"weights"


def test_an_unreachable_server_costs_a_warning_and_the_next_run_delivers(
    home, monkeypatch, capsys, tmp_path
):
    report = tmp_path / "judge.md"
    report.write_text("why")
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_bytes(b"w")
    held = record(
        "d" * 64,
        artifacts=[(report, "reports")],
        datasets=[Dataset("s", "1" * 32, "data/train", "training", 1)],
        parent=Parent("e" * 64, "sweep", "sweep"),
        register="spooled",
        model=model,
        champion=True,
    )
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:9")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        assert store.save(held, "spool", home) == "spooled" == store.save(held, "spool", home)
    said = capsys.readouterr().out
    assert (
        "warning" in said
        and "127.0.0.1:9" in said
        and "hunter2" not in said
        and "MLFLOW_TRACKING_URI" in said
        and "1 waiting" in said
    )
    report.unlink()
    assert store.save(record("a" * 64), "spool", home) == "created"
    assert not spool.waiting(home) and "delivered synthetic" in capsys.readouterr().out
    client, found = runs(home, "spool")
    assert len(found) == 3
    (late,) = [run for run in found if run.data.tags["pawl.key"] == "d" * 64]
    assert (
        late.data.tags[store.COMPLETE] == "true"
        and len(client.get_metric_history(late.info.run_id, "loss/train")) == 5
    )
    assert [each.path for each in client.list_artifacts(late.info.run_id, "reports")] == [
        "reports/judge.md"
    ]
    assert (
        client.get_model_version_by_alias("spooled", "champion").run_id == late.info.run_id
        and late.inputs.dataset_inputs
    )


def test_the_champion_is_the_last_that_was_accepted_though_earlier_ones_come_late(
    home, monkeypatch, tmp_path
):
    (tmp_path / "weights").write_bytes(b"w")
    held = [record(key * 64, register="late", model=tmp_path, champion=True) for key in "fbe"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "deliver", fails)
        assert [store.save(each, "late", home) for each in held[:2]] == ["spooled", "spooled"]
    assert store.save(held[2], "late", home) == "created" and not spool.waiting(home)
    client, found = runs(home, "late")
    assert len(found) == 3
    champion = client.get_model_version_by_alias("late", "champion")
    assert (
        client.get_run(champion.run_id).data.tags["pawl.key"] == "e" * 64
        and str(champion.version) == "3"
    )


def fails(*_):
    raise store.Unreachable("no server")


def test_a_broken_spool_file_stays_and_stops_nobody(home, capsys):
    folder = spool.folder(home) / ("b" * 64)
    folder.mkdir(parents=True)
    (folder / "record.json").write_text('{"key": 1}')
    try:
        assert store.save(record("a" * 64), "broken-spool", home) == "created"
        assert "stays in" in capsys.readouterr().out and folder.exists()
    finally:
        spool.remove(folder)


def test_what_mlflow_refuses_for_good_is_an_error_not_a_spool_file(home):
    with pytest.raises(PawlError, match="MLflow could not record the run") as caught:
        store.save(record(params={"bad name?": "1"}), "refused", home)
    assert not isinstance(caught.value, store.Unreachable) and not spool.waiting(home)


def test_an_artifact_store_that_fails_in_its_own_way_costs_no_result(
    home, monkeypatch, capsys, tmp_path
):
    from mlflow.tracking import MlflowClient

    def upload(*_, **__):
        # plug-ins of MLflow raise what their libraries raise
        raise ModuleNotFoundError("No module named 'boto3'")

    (tmp_path / "judge.md").write_text("why")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", upload)
        assert (
            store.save(
                record("9" * 64, artifacts=[(tmp_path / "judge.md", "reports")]), "plug-in", home
            )
            == "spooled"
        )
    assert "boto3" in capsys.readouterr().out
    assert store.save(record("8" * 64), "plug-in", home) == "created" and not spool.waiting(home)
    assert [run.data.tags.get(store.COMPLETE) for run in runs(home, "plug-in")[1]] == [
        "true",
        "true",
    ]


def test_a_store_that_cannot_be_opened_is_told_with_its_place(home, monkeypatch, tmp_path, capsys):
    (tmp_path / "broken.db").write_text("this is no database " * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/broken.db")
    (tmp_path / ".pawl").mkdir()
    assert store.save(record(), "x", tmp_path) == "spooled"
    assert (
        "MLflow could not record the run" in capsys.readouterr().out
        and len(spool.waiting(tmp_path)) == 1
    )


def test_a_crashed_experiment_is_one_failed_run_with_its_reason(home, tmp_path):
    folder = tmp_path / "0007-rank-64"
    folder.mkdir()
    held = {
        "slug": "rank-64",
        "status": "CRASHED",
        "reason": "out of memory",
        "words": "OOM: halve the batch.",
        "hypothesis": "more rank",
    }
    (folder / "record.json").write_text(json.dumps(held))
    (folder / "params.yaml").write_text(
        "train: {lora_rank: 64}\ntracking: {kind: mlflow, experiment: crashes}\n"
    )
    for _ in range(2):
        crashed, tracking = make_crashed(folder)
        store.save(crashed, tracking["experiment"], home)
    _, (run,) = runs(home, "crashes")
    assert (
        run.info.status == "FAILED"
        and run.data.params["train.lora_rank"] == "64"
        and not run.data.metrics
    )
    assert (run.data.tags["pawl.reason"], run.data.tags["pawl.explained"]) == (
        "out of memory",
        "OOM: halve the batch.",
    )
    (folder / "record.json").write_text(json.dumps({**held, "status": "KEPT"}))
    with pytest.raises(PawlError, match="no crashed experiment"):
        make_crashed(folder)
