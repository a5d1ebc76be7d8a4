"""What a repository of the hub holds at a revision, before any of it is fetched."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin

from stages.common import web
from stages.common.hub import access
from stages.common.hub.download import File

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LISTING_BYTES = 64 * 2**20
_PAGES = 1000


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit; of a file that was found in the cache alone the
    digest is "".
    """

    repo: str
    kind: str
    commit: str
    files: dict[str, File]
    gated: bool = False

    @property
    def store(self) -> Path:
        """The repository's folder in the hub's cache."""
        from huggingface_hub.file_download import repo_folder_name

        return access.cache() / repo_folder_name(repo_id=self.repo, repo_type=self.kind)

    @property
    def folder(self) -> Path:
        """Where the files of this commit lie under their names."""
        return self.store / "snapshots" / self.commit

    @property
    def where(self) -> str:
        return f"{self.repo}@{self.commit[:12]}"


def listing(repo: str, revision: str, kind: str = "model") -> Listing:
    """What a repository holds at a revision, before any of it is fetched. `kind` is model or
    dataset.

    A commit that the cache has a listing of is not asked for again. If no hub answers, the cache's
    copy is used and a line says so.

    Raises:
        PawlError: no such repository or revision; no access to it; no hub, and nothing in the
            cache.
    """
    access.check_name(repo, revision)
    cached = _cached(repo, revision, kind)
    if access.offline():
        if cached is None:
            raise access.offline_without(repo, revision, kind)
        return cached
    if (
        cached is not None
        and cached.commit == revision
        and all(file.digest for file in cached.files.values())
    ):
        return cached
    try:
        found = _asked(repo, revision, kind)
    except web.Unusable as error:
        if cached is None:
            raise access.unreachable(repo, revision, kind, error) from None
        print(
            f"hub: no use to be had of {access.endpoint()} ({error}): the cache's copy of"
            f" {cached.where} is taken",
            flush=True,
        )
        return cached
    _remember(found, revision)
    return found


def _asked(repo: str, revision: str, kind: str) -> Listing:
    address = f"{access.endpoint()}/api/{kind}s/{repo}"
    about, _ = _json(f"{address}/revision/{quote(revision, safe='')}", repo, revision, kind)
    commit = about.get("sha") if isinstance(about, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise web.Unusable("it names no commit")
    entries: list[Any] = []
    page = f"{address}/tree/{commit}?recursive=true"
    for _ in range(_PAGES):
        more, page = _json(page, repo, revision, kind)
        if not isinstance(more, list):
            raise web.Unusable("its listing is no list")
        entries += more
        if not page:
            files = dict(_file(entry) for entry in entries if _is_file(entry))
            return Listing(repo, kind, commit, files, gated=bool(about.get("gated")))
    raise web.Unusable(f"its listing has more than {_PAGES} pages")


def _json(url: str, repo: str, revision: str, kind: str) -> tuple[Any, str]:
    """A page of the hub's API, and the address of the next one ("": this was the last)."""
    answer, at = access.ask(url, _LISTING_BYTES)
    access.refuse(answer.status, answer.headers, repo, revision, kind)
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise web.Unusable("its answer is no JSON") from None
    following = re.search(r'<([^>]*)>;\s*rel="next"', answer.headers.get("Link", ""))
    return value, urljoin(at, following[1]) if following else ""


def _is_file(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("type") == "file"


def _file(entry: dict[str, Any]) -> tuple[str, File]:
    large = entry.get("lfs") if isinstance(entry.get("lfs"), dict) else {}
    name, size, digest = (
        entry.get("path"),
        (large or entry).get("size"),
        (large or entry).get("oid"),
    )
    if not isinstance(name, str) or not _safe(name):
        raise web.Unusable(f"it lists a file under a name that is none: {name!r:.80}")
    if not isinstance(size, int) or size < 0 or not isinstance(digest, str):
        raise web.Unusable(f"it lists {name!r:.80} without size or hash")
    if not re.fullmatch(r"[0-9a-f]{64}" if large else r"[0-9a-f]{40}", digest):
        raise web.Unusable(f"it lists {name!r:.80} with a hash that is none")
    return name, File(size, digest)


def _safe(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        bool(parts)
        and not name.startswith("/")
        and ".." not in parts
        and not set(name) & set("\\\0")
    )


def _cached(repo: str, revision: str, kind: str) -> Listing | None:
    """What the cache knows of a revision: its listing, or of an older download the files that are
    there.
    """
    from huggingface_hub._tree_cache import read_tree_cache

    bare = Listing(repo, kind, revision, {})
    commit = revision
    if not _COMMIT.fullmatch(revision):
        try:
            commit = (bare.store / "refs" / revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
    known = read_tree_cache(str(bare.store), commit)
    if known is not None:
        files = {
            name: File(entry.lfs_size or entry.size, entry.lfs_sha256 or entry.blob_id)
            for name, entry in known.items()
        }
        return Listing(repo, kind, commit, files)
    folder = bare.store / "snapshots" / commit
    lying = [path for path in folder.rglob("*") if path.is_file()]
    files = {str(path.relative_to(folder)): File(path.stat().st_size, "") for path in lying}
    return Listing(repo, kind, commit, files) if files else None


def _remember(found: Listing, revision: str) -> None:
    """Keep a listing, so that the hub's client and we can say without the hub whether all files are
    there.
    """
    from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache
    from huggingface_hub.file_download import _cache_commit_hash_for_specific_revision

    def entry(file: File) -> TreeCacheEntry:
        large = len(file.digest) == 64
        return TreeCacheEntry(
            file.size,
            file.digest,
            lfs_sha256=file.digest if large else None,
            lfs_size=file.size if large else None,
        )

    write_tree_cache(
        str(found.store), found.commit, {name: entry(file) for name, file in found.files.items()}
    )
    with suppress(OSError):  # a cache that cannot be written to may hold all files all the same
        _cache_commit_hash_for_specific_revision(str(found.store), revision, found.commit)
