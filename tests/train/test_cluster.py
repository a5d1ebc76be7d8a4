"""Where a training runs decides what it runs on: GPUs of a cluster count where the machine that
starts it has none.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import read_json, write_json
from stages.common.schema import Launcher
from stages.train import __main__ as stage
from stages.train import cluster, fit, launch, memory, worker
from tests.gpu_machines import H100
from tests.train.test_arguments import train
from tests.train.test_memory import SIZE

RAY = {"kind": "ray", "nodes": 1, "workers": 0, "address": "10.0.0.1:6379", "checkpoint_steps": 5}


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """A machine without a GPU that is the head of a cluster; the value is what the cluster has."""
    has: dict[str, float] = {"CPU": 64.0, "GPU": 4.0}
    closed: list[bool] = []

    def connect(place: tuple[str, int], timeout: float) -> Any:
        if place != ("10.0.0.1", 6379):
            raise ConnectionRefusedError(111, "Connection refused")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(cluster.socket, "create_connection", connect)

    class RayError(Exception):
        pass

    def init(address: str, **settings: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))  # as Ray does
        if has.get("broken"):
            raise RayError("authentication failed")

    fake = SimpleNamespace(
        init=init,
        cluster_resources=lambda: has,
        shutdown=lambda: closed.append(True),
        exceptions=SimpleNamespace(RayError=RayError),
    )
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(launch, "usable", list)
    monkeypatch.setattr(stage, "has_eval", lambda data: False)
    cluster.cluster_gpus.cache_clear()
    yield has
    cluster.cluster_gpus.cache_clear()
    after = signal.signal(signal.SIGTERM, before)
    assert closed and after is before, (
        "the connection is closed again, and a terminated stage unwinds as ever"
    )


def use_cpu(launcher: Launcher, **changes: Any) -> bool:
    return bool(
        stage.configuration(
            train(**changes), launcher, Path("m"), read_params("evaluate").evaluate
        )["use_cpu"]
    )


def test_a_head_without_a_gpu_trains_on_the_gpus_of_its_cluster(head: dict[str, float]) -> None:
    assert not use_cpu(Launcher(**RAY))
    assert launch.placed(train(), Launcher(**RAY)).workers == 4, "one for each"
    assert launch.placed(train(), Launcher(**{**RAY, "workers": 2})).workers == 2
    assert use_cpu(Launcher(**RAY), device="cpu")
    assert use_cpu(Launcher(**{**RAY, "kind": "torchrun"})), "this machine has none"
    assert use_cpu(Launcher(**{**RAY, "address": ""})), "nor has a cluster of its own"


def test_a_cluster_of_cpus_trains_on_them(head: dict[str, float]) -> None:
    del head["GPU"]
    assert use_cpu(Launcher(**RAY))


def test_a_cluster_that_does_not_answer_is_named(head: dict[str, float]) -> None:
    with pytest.raises(PawlError, match=r"no Ray cluster answers at 10\.0\.0\.9:1") as failed:
        use_cpu(Launcher(**{**RAY, "address": "10.0.0.9:1"}))
    assert failed.value.where == "launcher.address" and failed.value.fix
    head["broken"] = 1.0
    with pytest.raises(
        PawlError, match=r"no Ray cluster answers at 10\.0\.0\.1:6379: authentication failed"
    ):
        use_cpu(Launcher(**RAY))
    del head["broken"]
    assert not use_cpu(Launcher(**RAY))


@pytest.mark.parametrize("here", [0, 1])
def test_the_memory_of_a_cluster_is_not_taken_for_this_machines(
    monkeypatch: pytest.MonkeyPatch, here: int
) -> None:
    """The machine that starts it may have a small GPU of its own, or a small part of the memory
    that many machines have.
    """
    monkeypatch.setattr(fit, "gpus", lambda train: here)
    monkeypatch.setattr(memory, "shape", lambda *given: SIZE)
    monkeypatch.setattr(fit.room, "machine_gib", lambda: 0.05)
    monkeypatch.setattr(fit.room, "own_gib", lambda: 0.05)
    monkeypatch.setattr(fit.room, "gpu_gib", lambda count, wanted: 0.1)
    section = train()
    for gpu, each in (
        (True, "on each GPU of the cluster"),
        (False, "for each process of the cluster"),
    ):
        need, warnings = fit.check_memory(None, section, [], Launcher(**RAY), 100, gpu=gpu)
        assert (
            need["available_gib"] is None
            and need["per"] in each
            and f"{each}, which cannot be looked at from here" in warnings[0]
        )
    with pytest.raises(PawlError, match="for each process"):
        fit.check_memory(None, section, [], Launcher(**{**RAY, "address": ""}), 100, gpu=False)


@pytest.fixture
def started(tmp_path: Path) -> str:
    write_json(
        tmp_path / "train-job.json",
        {"preflight": None, "runs": [{"name": "train", "config": {"save_strategy": "no"}}]},
    )
    return str(tmp_path / "train-job.json")


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Makes each training end with this error; returns the list that they are counted in."""
    begun = list[str]()

    def fail(run: dict[str, Any], folder: Path) -> None:
        begun.append(run["name"])
        raise error

    monkeypatch.setattr(worker, "train", fail)
    return begun


def test_an_error_in_one_worker_is_raised_so_that_ray_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    begun = failing(monkeypatch, ValueError("out of memory"))
    with pytest.raises(ValueError, match="out of memory"):
        cluster.loop({"job": started})
    assert read_json(Path(started).parent / "failure-0.json")["what"] == "ValueError: out of memory"
    cluster.loop({"job": started})
    assert len(begun) == 1, "the group that Ray starts again does not train again"


def test_a_lost_worker_is_left_to_ray(monkeypatch: pytest.MonkeyPatch, started: str) -> None:
    failing(monkeypatch, RuntimeError("[gloo] Connection closed by peer"))
    with pytest.raises(RuntimeError):
        cluster.loop({"job": started})
    assert not list(Path(started).parent.glob("failure-*.json"))


@pytest.mark.parametrize(
    ("kind", "workers", "asked"),
    [("local", 1, 1), ("torchrun", 2, 2), ("torchrun", 0, 8), ("ray", 4, 4)],
)
def test_only_the_gpus_that_a_training_uses_have_to_be_free(
    monkeypatch: pytest.MonkeyPatch, kind: str, workers: int, asked: int
) -> None:
    free = [80.0] * asked + [1.0] * (8 - asked)  # somebody else works on the others
    monkeypatch.setattr(fit, "gpus", lambda train: 8)
    monkeypatch.setattr(fit.room, "gpu_gib", lambda count, wanted: min(free[:count]))
    launcher = Launcher(**{**RAY, "kind": kind, "workers": workers, "address": ""})
    assert fit.available_gib(train(), launcher, 5, gpu=True) == 80


@pytest.mark.parametrize(("chosen", "count"), [(None, 2), ("1", 1), ("0,1", 2), ("", 0), ("-1", 0)])
def test_gpus_that_are_hidden_are_not_used(
    gpu_machine, monkeypatch: pytest.MonkeyPatch, chosen: str | None, count: int
) -> None:
    gpu_machine(H100, H100)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert launch.devices(train(), Launcher(kind="local", nodes=1, workers=1)) == count


class FakeRay:
    """A running cluster of these nodes: host name to resources; what is absent on each, and what is
    free, one answer a question.
    """

    def __init__(
        self,
        nodes: dict[str, dict[str, float]],
        lacks: dict[str, list[str]],
        free: list[dict[str, float]],
    ) -> None:
        self.lacks, self.free, self.asked = lacks, free, list[str]()
        self._nodes = [
            {
                "Alive": name != "dead",
                "NodeID": name.encode().ljust(28, b"\0").hex(),
                "NodeManagerHostname": name,
                "Resources": has,
            }
            for name, has in nodes.items()
        ]

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes

    def remote(self, **resources: float) -> Any:
        assert resources == {"num_cpus": 0}, "a busy node answers too"

        def bind(function: Any) -> Any:
            return SimpleNamespace(
                options=lambda scheduling_strategy: SimpleNamespace(
                    remote=lambda paths: (scheduling_strategy, paths)
                )
            )

        return bind

    def get(self, called: Any, timeout: float) -> list[str]:
        strategy, paths = called
        name = bytes.fromhex(strategy.node_id).rstrip(b"\0").decode()
        self.asked.append(name)
        return [
            path for path in paths if any(path.endswith(end) for end in self.lacks.get(name, []))
        ]

    def available_resources(self) -> dict[str, float]:
        return self.free.pop(0) if len(self.free) > 1 else self.free[0]


def job(folder: Path, model: str) -> Path:
    run = {"name": "train", "config": {"model_name_or_path": model, "dataset_dir": "/shared/data"}}
    (folder / "train-job.json").write_text(json.dumps({"runs": [run]}))
    return folder / "train-job.json"


GPU_NODE = {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("lacks", "fix"),
    [
        ("config.json", "HF_HOME"),
        ("dataset_info.json", "shared storage"),
        ("cluster.py", "clone the repository"),
        ("train-job.json", "launcher.storage"),
    ],
)
def test_what_a_node_does_not_see_is_named_with_the_way_to_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str, fix: str
) -> None:
    ray = FakeRay(
        {"head": {"CPU": 2.0}, "dead": GPU_NODE, "n1": GPU_NODE, "n2": GPU_NODE},
        {"n2": [lacks]},
        [],
    )
    monkeypatch.setattr(cluster, "_cluster", lambda: ray)
    with pytest.raises(PawlError, match=f"the node n2 lacks .*{lacks}") as refused:
        cluster.check_shared(
            job(tmp_path, "/root/.cache/huggingface/hub/models--q/snapshots/1"),
            {"CPU": 2, "GPU": 2},
        )
    assert fix in refused.value.fix
    assert ray.asked == ["n1", "n2"], "not the head, which can get no worker"


def test_a_machine_says_itself_what_it_lacks(tmp_path: Path) -> None:
    """A link of the hub's cache that leads nowhere is a file that is not there."""
    (tmp_path / "there").touch()
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    assert cluster.absent([str(tmp_path / "there"), str(tmp_path / "broken")]) == [
        str(tmp_path / "broken")
    ]


def test_a_busy_cluster_is_waited_for_with_a_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = {"CPU": 9.0, "GPU": 1.0}
    ray = FakeRay({}, {}, [busy, busy, {"CPU": 9.0}, {"CPU": 9.0}, {"CPU": 9.0, "GPU": 4.0}])
    monkeypatch.setattr(cluster, "_cluster", lambda: ray)
    monkeypatch.setattr(cluster, "_TELL_S", 0.0)
    cluster.wait_for({"CPU": 4, "GPU": 4}, tmp_path, poll_s=0.01)
    launch._Progress(tmp_path)()
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].startswith("train: waits for the Ray cluster: 1 of 4 GPUs are free")
        and "0 of 4 GPUs" in lines[-1]
    )


def test_what_the_cluster_refuses_reaches_the_user_as_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> int:
        raise PawlError("the node n2 lacks /shared/data", where="launcher.address", fix="share it")

    monkeypatch.setattr(cluster, "run", refuse)
    monkeypatch.setattr(
        sys,
        "argv",
        ["cluster", str(tmp_path / "job.json"), json.dumps({"kind": "ray", "nodes": 1}), "gpu"],
    )
    assert cluster.main() == 1
    error = launch.failure(1, tmp_path, tmp_path / "log", timeout_s=1)
    assert (error.what, error.where, error.fix, error.code) == (
        "the node n2 lacks /shared/data",
        "launcher.address",
        "share it",
        3,
    )
