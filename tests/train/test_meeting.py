"""Nodes that would not train the same are refused before they train, and what a node waits for is
said.
"""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.schema import Launcher
from stages.train import meeting

TOLD = {"config": {"learning_rate": 1e-3, "packing": False}, "data": "abc", "base": [{}, ""]}


def launcher(rank: int, port: int, storage: str = "", nodes: int = 2) -> Launcher:
    place = {"master_addr": "127.0.0.1", "master_port": port, "storage": storage}
    return Launcher(kind="torchrun", workers=1, nodes=nodes, node_rank=rank, **place)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


Node = tuple[Launcher, dict[str, Any], Path, Path | None]


def meet(*nodes: Node, limit_s: float = 60) -> list[Any]:
    """What each node gets, or the error that it ends with."""

    def one(node: Node) -> Any:
        try:
            return meeting.meet(*node, limit_s=limit_s)
        except PawlError as error:
            error.__context__ = None
            # which would keep the store open, as an ended process does not
            return error.with_traceback(None)

    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(one, nodes))


def test_the_nodes_go_on_from_the_checkpoint_that_node_0_chose(tmp_path: Path) -> None:
    port = free_port()
    nodes = [
        (launcher(rank, port, str(tmp_path), nodes=3), TOLD, tmp_path, None) for rank in range(3)
    ]
    nodes[0] = (*nodes[0][:3], tmp_path / "checkpoint-20")
    assert meet(*nodes) == [tmp_path / "checkpoint-20"] * 3
    assert meet(*((*node[:3], None) for node in nodes)) == [None] * 3, (
        "at once again at the same port, as torchrun does"
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": "other rows"}, "data"),
        ({"config": {"learning_rate": 2e-3}}, "config.learning_rate"),
        ({"base": []}, "base"),
    ],
)
def test_nodes_that_differ_are_refused_and_the_difference_is_named(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    port = free_port()
    told = meet(
        (launcher(0, port), TOLD, tmp_path, None),
        (launcher(1, port), TOLD | changes, tmp_path, None),
    )
    for error in told:
        assert isinstance(error, PawlError)
        assert error.code == 3
        assert f"node 1 has another {named} than node 0" in error.what


def test_a_storage_that_is_another_folder_on_another_node_is_refused(tmp_path: Path) -> None:
    port = free_port()
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "meeting.json").write_text(json.dumps("of an earlier attempt"))
    told = meet(
        *((launcher(rank, port, "/shared"), TOLD, folders[rank], None) for rank in range(2))
    )
    for error in told:
        assert "node 1 does not see what node 0 writes" in error.what


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_that_does_not_come_is_named_while_it_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    import torch.distributed  # noqa: F401 - loading it may take longer than the limit below

    port = free_port()
    other = "node 1" if rank == 0 else f"node 0 at 127.0.0.1:{port}"
    monkeypatch.setattr(meeting, "FIRST_S", 0.1)
    with pytest.raises(PawlError, match=f"{other} did not come") as failed:
        meeting.meet(launcher(rank, port), TOLD, tmp_path, None, limit_s=4)
    assert "master_addr" in failed.value.fix
    assert f"train: waits for {other}" in capsys.readouterr().out


@pytest.mark.slow
def test_two_nodes_of_one_rank_are_refused_and_the_one_that_waits_sees_node_0_end(
    tmp_path: Path,
) -> None:
    port = free_port()
    host, *others = [(launcher(rank, port, nodes=3), TOLD, tmp_path, None) for rank in (0, 1, 1)]
    with ThreadPoolExecutor(1) as pool:
        hosted = pool.submit(meet, host, limit_s=2)
        said = sorted(error.what for error in meet(*others))
        assert hosted.result()[0].what.startswith("node 2 did not come")
    assert said[0].startswith("node 0 has ended")
    assert said[1] == "two nodes have rank 1"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(PawlError, match="cannot listen") as failed:
            meeting.meet(launcher(0, taken.getsockname()[1]), TOLD, tmp_path, None, limit_s=1)
    assert failed.value.where == "launcher.master_port"
