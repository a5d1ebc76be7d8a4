"""torchrun's nodes meet before they train: they compare what they are about to train, and agree on
the checkpoint to go on from.

torchrun itself compares nothing: a node with other rows would train on them without a word. And it
waits for the others in silence, for ten minutes. The nodes meet in torch's own store, at the place
where torchrun meets afterwards (launcher.master_addr and master_port).
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import write_json
from stages.common.schema import Launcher
from stages.train.known import REFUSED

FIRST_S, TELL_S = 5.0, 60.0
"""Before the first line about a node that is waited for, and between two lines."""
_FAREWELL_S = 30.0
"""For a node to read the outcome, before the store closes."""
_TOKEN = "meeting.json"


def meet(
    launcher: Launcher, told: dict[str, Any], shared: Path, last: Path | None, limit_s: float
) -> Path | None:
    """Compare with the other nodes. Returns the checkpoint to go on from, which is node 0's choice,
    or None.

    Args:
        told: what the training is made of (checkpoints.made_of).
        shared: the folder of its checkpoints, which every node sees if launcher.storage is set.
        last: node 0's newest whole checkpoint in it.
        limit_s: how long to wait for the other nodes.

    Raises:
        PawlError: the nodes differ (exit code 3), or one did not come.
    """
    begun = time.monotonic()
    host = launcher.node_rank == 0
    outcome = (_hosted if host else _visited)(launcher, told, shared, last, begun + limit_s)
    if outcome["refused"]:
        fix = (
            "bring each node to the same commit, params.yaml, models/base and data/train, and"
            " launcher.storage to the same folder"
        )
        raise PawlError(
            "; ".join(outcome["refused"]), where="launcher.nodes", fix=fix, code=REFUSED
        )
    print(f"train: {launcher.nodes} nodes have met, and train the same", flush=True)
    return shared / Path(outcome["last"]).name if outcome["last"] else None


def _hosted(
    launcher: Launcher, told: dict[str, Any], shared: Path, last: Path | None, until: float
) -> dict[str, Any]:
    store = _store(launcher, until)
    token = secrets.token_hex(8)
    if launcher.storage:
        write_json(shared / _TOKEN, token)
    store.set("0", json.dumps(told))
    refused = list[str]()
    for rank in range(1, launcher.nodes):
        other = _wait(store, str(rank), f"node {rank}", until)
        differences = [
            f"node {rank} has another {name} than node 0" for name in differing(told, other["told"])
        ]
        if launcher.storage and not differences and other["token"] != token:
            differences = [f"node {rank} does not see what node 0 writes to {shared}"]
        refused += differences
    outcome = {"refused": refused, "last": last.name if last else ""}
    store.set("outcome", json.dumps(outcome))
    for rank in range(1, launcher.nodes):
        _wait(store, f"read by {rank}", f"node {rank}", time.monotonic() + _FAREWELL_S)
    (shared / _TOKEN).unlink(missing_ok=True)
    return outcome


def _visited(
    launcher: Launcher, told: dict[str, Any], shared: Path, last: Path | None, until: float
) -> dict[str, Any]:
    store, rank = _store(launcher, until), launcher.node_rank
    if store.add(f"nodes of rank {rank}", 1) > 1:
        raise PawlError(
            f"two nodes have rank {rank}",
            where="launcher.node_rank",
            fix="give each node its own, from 0 on",
            code=REFUSED,
        )
    _wait(store, "0", "node 0", until)
    store.set(str(rank), json.dumps({"told": told, "token": _read(shared / _TOKEN)}))
    outcome: dict[str, Any] = _wait(store, "outcome", "the other nodes", until)
    store.set(f"read by {rank}", "true")
    return outcome


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Names what differs, down to the single setting."""
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name), theirs.get(name)
        if isinstance(mine, dict) and isinstance(other, dict):
            yield from (f"{name}.{inner}" for inner in differing(mine, other))
        elif mine != other:
            yield name


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _store(launcher: Launcher, until: float) -> Any:
    """torch's store, which node 0 holds and the others find."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a line for each attempt to connect
    from torch.distributed import DistNetworkError, TCPStore

    place = (launcher.master_addr, launcher.master_port)
    if launcher.node_rank == 0:
        try:
            return TCPStore(*place, is_master=True, wait_for_workers=False)
        except DistNetworkError as error:
            fix = "choose a free port, the same on every node"
            raise PawlError(
                f"node 0 cannot listen: {str(error)[:200]}", where="launcher.master_port", fix=fix
            ) from None

    def connect(patience: timedelta) -> Any:
        return TCPStore(*place, is_master=False, timeout=patience, wait_for_workers=False)

    return _patiently(
        connect,
        f"node 0 at {launcher.master_addr}:{launcher.master_port}",
        until,
        also=(DistNetworkError,),
    )


def _wait(store: Any, key: str, whom: str, until: float) -> Any:
    from torch.distributed import DistNetworkError

    try:
        _patiently(lambda patience: store.wait([key], patience), whom, until)
        return json.loads(store.get(key))
    except DistNetworkError as error:
        fix = "see what it said, and start the stage on every node again"
        raise PawlError(
            f"node 0 has ended: {str(error)[:100]}", where="launcher.nodes", fix=fix
        ) from None


def _patiently(
    attempt: Callable[[timedelta], Any],
    whom: str,
    until: float,
    also: tuple[type[Exception], ...] = (),
) -> Any:
    """Try until it works, and say who is waited for. `also`: errors, beside that of a time limit,
    after which it is tried again.
    """
    from torch.distributed import DistStoreError

    begun = time.monotonic()
    patience = FIRST_S
    while True:
        left = max(0.1, until - time.monotonic())
        try:
            return attempt(timedelta(seconds=min(patience, left)))
        except (DistStoreError, *also) as error:
            if time.monotonic() > until:
                fix = (
                    "start the stage on every node, with the same launcher.master_addr and"
                    " launcher.master_port"
                )
                raise PawlError(
                    f"{whom} did not come: {str(error)[:100]}",
                    where="launcher.master_addr",
                    fix=fix,
                ) from None
        print(f"train: waits for {whom}, {time.monotonic() - begun:.0f} s so far", flush=True)
        patience = TELL_S
