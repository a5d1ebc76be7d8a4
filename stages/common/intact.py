"""Whether a stage reads what dvc.lock says, and whether its code and inputs stayed as they were
while it ran.

DVC trusts its cache: a damaged object is restored into the working tree without a word. So a stage
that DVC starts hashes what earlier stages made for it. Files of LARGE bytes and more are hashed
once for each name, size, time and inode (a restored file has another one): .pawl/hashes.json
remembers them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, write_json

LARGE = 16 * 2**20
HASHES = Path(".pawl/hashes.json")
State = dict[Path, tuple[int, int]]


def state(folders: Iterable[str]) -> State:
    """Time and size of every file below these folders; two states differ where a file was written,
    added or removed.
    """
    found = {}
    for path in (
        path
        for name in folders
        for path in (ROOT / name).rglob("*")
        if "__pycache__" not in path.parts
    ):
        if path.is_file():
            now = path.stat()
            found[path] = now.st_mtime_ns, now.st_size
    return found


def changed(before: State, after: State, paths: Iterable[Path]) -> Path | None:
    """The first of these files that is another one than before."""
    return next((path for path in sorted(paths) if before.get(path) != after.get(path)), None)


def check_inputs(root: Path = ROOT) -> None:
    """Compare what the stage that DVC runs here depends on with the hashes that dvc.lock has of it;
    without DVC there is nothing to do.

    Raises:
        PawlError: a file is another one than the stage before made; names it, and says whether
            DVC's cache is damaged.
    """
    stage = os.environ.get("DVC_STAGE", "").rpartition(":")[2]
    if not stage:
        return
    made = {
        str(out.get("path")): (name, str(out.get("md5")))
        for name, out in _listed(root / "dvc.lock", "outs")
        if isinstance(out, dict)
    }
    incumbent = str(_part(_loaded(root / "params.yaml"), "experiment").get("incumbent"))
    for reader, dep in _listed(root / "dvc.yaml", "deps"):
        name = str(dep).replace("${experiment.incumbent}", incumbent)
        if reader == stage and name in made and (root / name).exists():
            _compare(root, name, *made[name])


def _compare(root: Path, name: str, producer: str, md5: str) -> None:
    known = _remembered(root)
    before = dict(known)
    files = _files(root / name)
    hashes = {path: _md5(path, root, known) for path in files}
    if known != before:
        write_json(root / HASHES, known)
    found = _listing(root / name, hashes) if (root / name).is_dir() else hashes[root / name]
    if found == md5:
        return
    raise PawlError(
        f"{name} is not what {producer} made: its content has another hash than dvc.lock says",
        where=str(root / name),
        fix=_damaged(root, name, hashes, md5, producer)
        or f"'dvc checkout --force {name}' gives back what {producer} made,"
        f" 'dvc repro -f {producer}' makes it again",
    )


def _damaged(root: Path, name: str, hashes: dict[Path, str], md5: str, producer: str) -> str:
    """How to repair DVC's cache, where one of its objects is not what its name says; else
    nothing.
    """
    done = subprocess.run(
        ["dvc", "cache", "dir"], cwd=root, capture_output=True, text=True, check=False
    )
    cache = root / (done.stdout.strip().splitlines() or [".dvc/cache"])[-1] / "files" / "md5"
    wanted = {md5}
    if md5.endswith(".dir") and (cache / md5[:2] / md5[2:]).is_file():
        listed = _entries(cache / md5[:2] / md5[2:])
        wanted = {
            entry["md5"]
            for entry in listed
            if hashes.get(root / name / entry["relpath"]) != entry["md5"]
        }
    objects = [cache / each[:2] / each[2:] for each in sorted(wanted)]
    broken = [
        str(path)
        for path in objects
        if path.is_file() and _digest(path) != path.parent.name + path.name
    ]
    if not broken:
        return ""
    return (
        f"DVC's cache is damaged: rm -f {' '.join(broken[:3])}{' ...' if broken[3:] else ''} && dvc"
        f" repro -f {producer}"
    )


def _entries(path: Path) -> list[dict[str, str]]:
    listed = read_json(path)
    return (
        [
            entry
            for entry in listed
            if isinstance(entry, dict) and {"md5", "relpath"} <= entry.keys()
        ]
        if isinstance(listed, list)
        else []
    )


def _files(path: Path) -> list[Path]:
    """The files of an output, without those that .dvcignore leaves out."""
    if not path.is_dir():
        return [path]
    return sorted(
        each
        for each in path.rglob("*")
        if each.is_file() and each.suffix != ".partial" and "__pycache__" not in each.parts
    )


def _listing(folder: Path, hashes: dict[Path, str]) -> str:
    """The hash of a folder, as DVC computes it."""
    entries = [
        {"md5": md5, "relpath": path.relative_to(folder).as_posix()} for path, md5 in hashes.items()
    ]
    text = json.dumps(sorted(entries, key=lambda entry: entry["relpath"]), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _md5(path: Path, root: Path, known: dict[str, Any]) -> str:
    now = path.stat()
    if now.st_size < LARGE:
        return _digest(path)
    name, identity = str(path.relative_to(root)), [now.st_size, now.st_mtime_ns, now.st_ino]
    held = known.get(name)
    if not isinstance(held, list) or held[:-1] != identity:
        known[name] = held = [*identity, _digest(path)]
    return str(held[-1])


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _remembered(root: Path) -> dict[str, Any]:
    try:
        known = read_json(root / HASHES)
    except PawlError:
        return {}  # absent or broken: everything is hashed again
    return known if isinstance(known, dict) else {}


def _listed(path: Path, key: str) -> Iterator[tuple[str, Any]]:
    """What a dvc.yaml or dvc.lock lists under a key, with the stage that it stands in."""
    stages = _part(_loaded(path), "stages")
    for name in stages:
        listed = _part(stages, name).get(key)
        yield from ((name, each) for each in (listed if isinstance(listed, list) else []))


def _part(whole: dict[str, Any], key: str) -> dict[str, Any]:
    value = whole.get(key)
    return value if isinstance(value, dict) else {}


def _loaded(path: Path) -> dict[str, Any]:
    try:
        whole = yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # DVC, or whoever reads its parameters, says what is wrong with it
    return whole if isinstance(whole, dict) else {}
