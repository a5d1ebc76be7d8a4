"""Checkpoints outside the result: found again by what they were made from, taken only where they
are whole, gone when training has ended.

They lie in .pawl/train/<key>, and the key is a hash of the configuration, the data, the base and
the code. So a killed, timed-out or interrupted training goes on with the same optimizer state and
the same order of rows, and nothing else ever goes on from it.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import main_root, sha256_file, sha256_folder, sha256_text, write_json

SEAL = "whole.json"
_SHAPE_THE_RESULT = (
    "torch",
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "llamafactory",
    "datasets",
)
_OURS = {
    "output_dir",
    "dataset_dir",
    "model_name_or_path",
    "resume_from_checkpoint",
    "save_steps",
    "save_strategy",
    "save_total_limit",
}
"""Keys of the configuration that name places, or that shape no result."""
_KEPT = 2
"""Unfinished trainings whose checkpoints are kept beside the present one."""


def made_of(
    config: dict[str, Any],
    data: Path,
    base: dict[str, Any],
    launcher: dict[str, Any],
    template: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that shapes a training. `template`: the arguments of the chat template."""
    return {
        "config": {name: value for name, value in config.items() if name not in _OURS},
        "data": sha256_folder(data),
        "base": [base["files"], base.get("date", "")],
        "template": template or {},
        "launcher": {name: launcher[name] for name in ("kind", "workers", "nodes")},
        "code": sha256_folder(Path(__file__).parent, "*.py"),
        "versions": {name: importlib.metadata.version(name) for name in _SHAPE_THE_RESULT},
    }


def key(told: dict[str, Any]) -> str:
    """Names a training by what it is made of."""
    return sha256_text(json.dumps(told, sort_keys=True))[:20]


def place(name: str, storage: str = "") -> Path:
    """Where the checkpoints of a training lie: in a folder that every node sees, or in .pawl."""
    return (Path(storage) if storage else main_root() / ".pawl").absolute() / "train" / name


@contextmanager
def work_folder(name: str, storage: str = "") -> Iterator[Path]:
    """The folder of one training, its checkpoints of earlier attempts in it; emptied when the block
    ends well, kept otherwise.

    Raises:
        PawlError: the same training is under way (another clone of this repository, another worker
            of a queue).
    """
    folder = place(name, storage)
    root = folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    with open(root / f"{name}.lock", "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "wait for it to end; its result then comes from DVC's cache"
            raise PawlError(
                "the same training is already running", where=str(folder), fix=fix
            ) from None
        os.utime(folder)
        _forget_old(root, folder)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
        (root / f"{name}.lock").unlink(missing_ok=True)


def _forget_old(root: Path, present: Path) -> None:
    """Keep the newest with something to go on from: a refused configuration leaves a folder too,
    and must not push them out.
    """
    others = sorted(
        (path for path in root.iterdir() if path.is_dir() and path != present),
        key=lambda path: path.stat().st_mtime,
    )
    worth = [path for path in others if any(path.glob(f"checkpoint-*/{SEAL}"))]
    for folder in [path for path in others if path not in worth[-_KEPT:]]:
        with open(root / f"{folder.name}.lock", "a", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            (root / f"{folder.name}.lock").unlink(missing_ok=True)


def seal(checkpoint: Path) -> None:
    """Write down what a checkpoint that has been saved in full consists of, once it is on the disk
    and not only in memory.
    """
    files = {}
    for path in sorted(
        path for path in checkpoint.rglob("*") if path.is_file() and path.name != SEAL
    ):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        files[str(path.relative_to(checkpoint))] = sha256_file(path)
    write_json(checkpoint / SEAL, files)


def last_whole(folder: Path, remove_broken: bool = True) -> Path | None:
    """The newest checkpoint that is what its seal says, or None. One that is not (killed while
    saving, a broken disk) is removed.
    """
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdigit()
    ]
    for checkpoint in sorted(
        found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True
    ):
        if _whole(checkpoint):
            return checkpoint
        if remove_broken:
            shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def _whole(checkpoint: Path) -> bool:
    try:
        files = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        return bool(files) and all(
            sha256_file(checkpoint / name) == digest for name, digest in files.items()
        )
    except (OSError, ValueError, AttributeError):
        return False
