"""Runs that no server took yet: one folder each in .pawl/spool, whole or absent, with a copy of
what they would have uploaded.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import fresh_folder, read_json, write_json
from stages.track.metrics import Metric
from stages.track.record import Dataset, Parent, Record

MOST_MODEL_BYTES = 2**30
"""A larger model is not copied: its run is delivered without a version in the registry."""


def folder(home: Path) -> Path:
    return home / ".pawl" / "spool"


def put(record: Record, experiment: str, home: Path) -> None:
    """Keep a record for later; the same one again replaces it."""
    with fresh_folder(folder(home) / record.key) as target:
        files = []
        for number, (path, where) in enumerate(record.artifacts):
            copy = target / "artifacts" / str(number) / path.name
            copy.parent.mkdir(parents=True)
            shutil.copyfile(path, copy)
            files.append([str(copy.relative_to(target)), where])
        model = record.model if record.model and _size(record.model) <= MOST_MODEL_BYTES else None
        if model:
            shutil.copytree(model, target / "model")
        write_json(
            target / "record.json",
            {
                **record._asdict(),
                "artifacts": files,
                "model": bool(model),
                "experiment": experiment,
            },
        )


def waiting(home: Path) -> list[Path]:
    """The folders of the runs that wait, in the order in which they were put aside."""
    found = [
        path for path in folder(home).glob("*/record.json") if not path.parent.name.startswith(".")
    ]
    return [path.parent for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path))]


def read(path: Path) -> tuple[Record, str]:
    """A record that waits, and MLflow's experiment that it belongs to.

    Raises:
        PawlError: the file is broken.
    """
    value = read_json(path / "record.json")
    try:
        return _record(value, path), str(value["experiment"])
    except (KeyError, TypeError, ValueError) as error:
        raise PawlError(
            f"not a run that was put aside: {error}", where=str(path), fix="remove that folder"
        ) from None


def _record(value: dict[str, Any], path: Path) -> Record:
    return Record(
        key=value["key"],
        name=value["name"],
        params=dict(value["params"]),
        metrics=[Metric(*each) for each in value["metrics"]],
        tags=dict(value["tags"]),
        artifacts=[(path / name, where) for name, where in value["artifacts"]],
        datasets=[Dataset(*each) for each in value["datasets"]],
        parent=Parent(*value["parent"]) if value["parent"] else None,
        register=value["register"],
        model=path / "model" if value["model"] else None,
        champion=bool(value["champion"]),
    )


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
