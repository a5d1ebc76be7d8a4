"""The files of a listing that the cache lacks: room, access, then all of them, whole or not at
all.
"""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stages.common import web
from stages.common.errors import PawlError
from stages.common.hub import access
from stages.common.hub.download import Download
from stages.common.hub.listing import Listing

_AT_ONCE = 4
"""Files on their way at a time."""
_SAY_EVERY_S = 30.0
_SPARE_BYTES = 200 * 10**6
"""What a download leaves free on the disk."""


def fetch(found: Listing, names: Sequence[str]) -> Path:
    """Bring those files of a listing that the cache lacks; returns the folder in which they lie
    under their names.

    Raises:
        PawlError: no room, no access, another size or hash than listed, or the hub fell silent;
            what came is kept for the next run.
    """
    if not _missing(found, names):
        return found.folder
    if access.offline():
        raise access.offline_without(found.repo, found.commit, found.kind, _missing(found, names))
    if found.gated and not access.token():
        raise access.gated(found.repo, found.commit, found.kind)
    with _alone(found.store):
        missing = _missing(found, names)
        if missing:
            _check_room(found, missing)
            asyncio.run(_bring_all(found, missing))
    return found.folder


def _missing(found: Listing, names: Sequence[str]) -> list[str]:
    def there(name: str) -> bool:
        path = found.folder / name
        return path.is_file() and path.stat().st_size == found.files[name].size

    return sorted(name for name in names if not there(name))


def _partial(found: Listing, name: str) -> Path:
    return found.store / "blobs" / f"{found.files[name].digest}.incomplete"


def _check_room(found: Listing, missing: list[str]) -> None:
    """Say what will come and where to, and refuse if the disk cannot take it."""
    total = sum(found.files[name].size for name in missing)
    there = sum(
        path.stat().st_size
        for path in {_partial(found, name) for name in missing}
        if path.is_file()
    )
    cache = access.cache()
    free = shutil.disk_usage(
        next(path for path in (found.store, *found.store.parents) if path.is_dir())
    ).free
    shown = ", ".join(f"{name} ({_gb(found.files[name].size)})" for name in missing[:6])
    more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
    begun = f", {_gb(there)} of it there already" if there else ""
    print(
        f"hub: {found.where}: {_gb(total)} in {len(missing)} files{begun}, into {cache}"
        f" ({_gb(free)} free)",
        flush=True,
    )
    print(f"hub: {shown}{more}", flush=True)
    if total - there + _SPARE_BYTES > free:
        leavings = [
            path
            for path in cache.glob("*/blobs/*.incomplete")
            if path not in {_partial(found, name) for name in missing}
        ]
        size = sum(path.stat().st_size for path in leavings)
        hint = (
            f"; {_gb(size)} are left of broken downloads ({cache}/*/blobs/*.incomplete)"
            if size
            else ""
        )
        raise PawlError(
            f"{_gb(total - there)} are still to be fetched, and {_gb(free)} are free there{hint}",
            where=f"{found.where}, {cache}",
            fix=(
                "free some space, or set HF_HOME to a folder on a larger disk (in .env, so that"
                " every stage sees it)"
            ),
        )


def _gb(count: int) -> str:
    unit, name = next(
        (each for each in ((10**9, "GB"), (10**6, "MB")) if count >= each[0]), (10**3, "kB")
    )
    return f"{count / unit:.1f} {name}"


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """Two processes that want the same repository bring it once: the second one waits and finds it
    there.
    """
    lock = access.cache() / ".locks" / store.name / "pawl.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"hub: waiting for another process that fetches {store.name}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def _bring_all(found: Listing, missing: list[str]) -> None:
    prefix = "datasets/" if found.kind == "dataset" else ""
    base = f"{access.endpoint()}/{prefix}{found.repo}/resolve/{found.commit}"
    gate = asyncio.Semaphore(_AT_ONCE)
    by_digest: dict[str, list[str]] = {}
    for name in missing:  # two names may have one content
        by_digest.setdefault(found.files[name].digest, []).append(name)

    def refuse(status: int, headers: Any) -> None:
        access.refuse(status, headers, found.repo, found.commit, found.kind)

    meter = _Meter()

    async def one(pool: Any, names: list[str]) -> None:
        file, partial = found.files[names[0]], _partial(found, names[0])
        blob = found.store / "blobs" / file.digest
        async with gate:
            if not blob.is_file() or blob.stat().st_size != file.size:
                await Download(
                    pool, f"{base}/{quote(names[0])}", partial, file, refuse, meter.add
                ).run()
                partial.replace(blob)
        for name in names:
            _link(blob, found.folder / name)

    (found.store / "blobs").mkdir(parents=True, exist_ok=True)
    async with web.session(base, {}, access.ANSWER_S, connections=_AT_ONCE) as pool:
        await asyncio.gather(*(one(pool, names) for names in by_digest.values()))


class _Meter:
    """Says how far a download is, every half minute."""

    def __init__(self) -> None:
        self.came, self.begun, self.said = 0, time.monotonic(), time.monotonic()

    def add(self, count: int) -> None:
        self.came += count
        now = time.monotonic()
        if now - self.said >= _SAY_EVERY_S:
            self.said = now
            print(
                f"hub: {_gb(self.came)} came, {_gb(int(self.came / (now - self.begun)))}/s",
                flush=True,
            )


def _link(blob: Path, name: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    name.symlink_to(
        Path(*[".."] * (len(name.relative_to(blob.parent.parent).parts) - 1), "blobs", blob.name)
    )
