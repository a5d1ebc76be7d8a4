"""Which process computes on which GPU: a lock for each, which trainings and evaluations take.

The locks lie in .pawl/gpu of the main checkout, so that the clones that DVC makes share them. The
kernel drops the lock of a killed process. Nobody waits for ever: a process that trains or serves
waits for no other GPU, and one process at a time gathers several GPUs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Required, TypedDict, cast

from stages.common.errors import PawlError
from stages.common.files import ROOT, main_root
from stages.common.gpus import Card, visible

_LIMIT_S = 48 * 3600.0
_TELL_S = 60.0
_POLL_S = 1.0
_SETTLE_S = 15.0
"""For the memory of a process that has just ended to come back, before a GPU that strangers fill is
taken all the same.
"""


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        cards: the GPUs of which to take some; without any, nothing is locked.
        least: how many it takes at least.
        most: how many can be used, if they are free.
        share: of a GPU's memory that should be free, else another GPU is preferred.
    """

    cards: Sequence[Card] = ()
    least: int = 1
    most: int = 1
    share: float = 0.5


@dataclass
class Lease:
    """GPUs that are this process's until `close`."""

    taken: dict[Card, IO[str]] = field(default_factory=dict)

    @property
    def cards(self) -> list[Card]:
        return sorted(self.taken, key=lambda card: card.index)

    def environment(self) -> dict[str, str]:
        return environment(self.cards)

    def note(self, who: str, pid: int) -> None:
        """Write into the locks who holds them."""
        tree = os.environ.get("DVC_EXP_NAME") or ROOT.name
        told = {"who": who, "pid": pid, "tree": tree}
        for file in self.taken.values():
            with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
                file.seek(0)
                file.truncate()
                file.write(json.dumps(told))
                file.flush()

    def close(self) -> None:
        for file in self.taken.values():
            file.close()
        self.taken.clear()


class Holder(TypedDict, total=False):
    """Who holds the GPU with this index: what, as which process, in which tree."""

    index: Required[int]
    who: str
    pid: int
    tree: str


@contextlib.contextmanager
def leased(wanted: Wanted, who: str) -> Iterator[Lease]:
    """The GPUs, for as long as the block lasts. See `take`."""
    lease = take(wanted, who)
    try:
        yield lease
    finally:
        lease.close()


def take(wanted: Wanted, who: str, limit_s: float = _LIMIT_S) -> Lease:
    """Lock as many of the GPUs as are free, those with most free memory first. Wait until `least`
    are, and say for whom.

    Args:
        who: begins each line that is printed, and is told to others who wait.

    Raises:
        PawlError: they did not become free within `limit_s` seconds; names who holds them.
    """
    lease = Lease()
    if not wanted.cards:
        return lease
    folder = _folder()
    begun = told_at = time.monotonic()
    told = ""
    try:
        with contextlib.ExitStack() as stack:
            turn = wanted.least == 1
            while True:
                waited = time.monotonic() - begun
                turn = turn or _is_next(stack, folder)
                others = (
                    _add_free(lease, wanted, folder, who, settled=waited > _SETTLE_S)
                    if turn
                    else []
                )
                if len(lease.taken) >= wanted.least:
                    break
                reason = _reason(others) if turn else "another process gathers several"
                if waited > limit_s:
                    raise _too_long(wanted, reason, others, limit_s, folder)
                if reason != told or time.monotonic() - told_at > _TELL_S:
                    print(f"{who}: waits for {_count(wanted)}: {reason}", flush=True)
                    told, told_at = reason, time.monotonic()
                time.sleep(_POLL_S)
    except BaseException:
        lease.close()
        raise
    if told:
        numbers = ", ".join(f"GPU {card.index}" for card in lease.cards)
        print(f"{who}: has {numbers} after {time.monotonic() - begun:.0f} s", flush=True)
    return lease


def likely(wanted: Wanted) -> tuple[list[Card], bool]:
    """The GPUs that `take` would give, and whether it would have to wait for one. Takes nothing."""
    folder = _folder()
    with exclusive(folder / "choosing"):
        held = {card for card in wanted.cards if _holder(folder, card)}
    order = sorted(wanted.cards, key=lambda card: (card in held, -card.free_gib))
    chosen = order[: wanted.most]
    return chosen, any(card in held for card in chosen)


def environment(cards: Sequence[Card]) -> dict[str, str]:
    """What makes CUDA show these GPUs alone, by nvidia-smi's numbers. An instance of a divided GPU
    has no number.
    """
    if not cards or any(card.mig for card in cards):
        return {}
    numbers = ",".join(str(card.index) for card in sorted(cards, key=lambda card: card.index))
    return {"CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that is held for moments only."""
    with open(path, "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_free(
    lease: Lease, wanted: Wanted, folder: Path, who: str, *, settled: bool
) -> list[Holder]:
    """Lock free GPUs up to `most`, and say who holds the others.

    GPUs that strangers fill are taken only if they alone are left.
    """
    seen = {card.uuid: card for card in visible()}  # how much memory is free has changed meanwhile
    ours = {card.uuid for card in lease.taken}
    cards = [seen.get(card.uuid, card) for card in wanted.cards if card.uuid not in ours]
    cards.sort(key=lambda card: -card.free_gib)
    roomy = [card for card in cards if card.free_gib >= wanted.share * card.total_gib]
    with exclusive(folder / "choosing"):  # nobody meets a lock that is only being tried
        _lock(lease, folder, roomy, wanted.most)
        holders = [_holder(folder, card) for card in cards if card not in lease.taken]
        others = [holder for holder in holders if holder]
        if settled and not others:
            _lock(lease, folder, cards, wanted.least)
        lease.note(who, os.getpid())
    return others


def _lock(lease: Lease, folder: Path, cards: Sequence[Card], most: int) -> None:
    for card in cards:
        if card in lease.taken or len(lease.taken) >= most:
            continue
        if file := _try_lock(_file(folder, card)):
            lease.taken[card] = file


def _is_next(stack: contextlib.ExitStack, folder: Path) -> bool:
    """Whether this process may gather several GPUs, holding some while it waits for others."""
    file = _try_lock(folder / "several")
    if file:
        stack.enter_context(file)
    return file is not None


def _try_lock(path: Path) -> IO[str] | None:
    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - stays open for as long as it is locked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _folder() -> Path:
    folder = main_root() / ".pawl" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file(folder: Path, card: Card) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', card.uuid)}.lock"


def _holder(folder: Path, card: Card) -> Holder | None:
    """Who holds a GPU's lock, None if nobody does."""
    path = _file(folder, card)
    if not path.exists():
        return None
    if file := _try_lock(path):
        file.close()
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return cast(Holder, {**told, "index": card.index})
    except (OSError, ValueError, TypeError):  # it may be written at this moment
        return {"index": card.index}


def _reason(others: list[Holder]) -> str:
    if not others:
        return "programs that are not Pawl's fill its memory (nvidia-smi)"
    shown = []
    for holder in others[:3]:
        who, tree = holder.get("who", "a process"), holder.get("tree", "another clone")
        by = f"{who} of {tree} (process {holder.get('pid', 'unknown')})"
        shown.append(f"GPU {holder['index']} is held by {by}")
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return ", ".join(shown) + more


def _count(wanted: Wanted) -> str:
    return "a GPU" if wanted.least == 1 else f"{wanted.least} GPUs"


def _too_long(
    wanted: Wanted, reason: str, others: list[Holder], limit_s: float, folder: Path
) -> PawlError:
    pids = sorted({str(holder["pid"]) for holder in others if holder.get("pid")})
    fix = "free a GPU, or name another in CUDA_VISIBLE_DEVICES"
    if pids:
        fix = f"wait for it, or end it: kill {' '.join(pids)}"
    what = f"waited {limit_s / 3600:.3g} h for {_count(wanted)}: {reason}"
    return PawlError(what, where=str(folder), fix=fix)
