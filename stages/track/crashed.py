"""What MLflow is told of an experiment that crashed: its parameters, its reason and the words on
it. It has no results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stages.common.errors import PawlError
from stages.common.files import flatten, read_json, sha256_text
from stages.common.text import plain
from stages.track.metrics import mlflow_name
from stages.track.record import PARAM_LIMIT, TAG_LIMIT, Record, parent_run, shown

OUTCOME = "crashed"


def make_crashed(folder: Path) -> tuple[Record, dict[str, Any]]:
    """The run of a crashed experiment, found again by its folder's name and start, and its tracking
    section.

    Raises:
        PawlError: no record of a crash there, or no parameters.
    """
    held = read_json(folder / "record.json")
    if not isinstance(held, dict) or held.get("status") != "CRASHED":
        raise PawlError(
            "no crashed experiment",
            where=str(folder),
            fix="name a folder of experiments/ whose record says CRASHED",
        )
    try:
        params = OmegaConf.to_container(OmegaConf.load(folder / "params.yaml"), resolve=False)
    except (OSError, ValueError, OmegaConfBaseException):
        raise PawlError(
            "its params.yaml cannot be read", where=str(folder), fix="restore it from git"
        ) from None
    values = {str(name): part for name, part in params.items()} if isinstance(params, dict) else {}
    tags = {
        "pawl.outcome": OUTCOME,
        "pawl.reason": held.get("reason", ""),
        "pawl.explained": held.get("words", ""),
        "pawl.hypothesis": held.get("hypothesis", ""),
        "pawl.parent": held.get("parent", ""),
        "pawl.incumbent": held.get("incumbent", ""),
        "pawl.commit": held.get("commit", ""),
        "mlflow.note.content": f"Crashed: {held.get('reason', '')}",
    }
    key = sha256_text(f"crashed {folder.name} {held.get('planned_at')} {held.get('commit')}")
    record = Record(
        key=key,
        name=plain(str(held.get("slug")), 200) or "unnamed",
        params={
            mlflow_name(name)[:250]: shown(value, PARAM_LIMIT)
            for name, value in flatten(values).items()
        },
        metrics=[],
        tags={**{name: shown(value, TAG_LIMIT) for name, value in tags.items()}, "pawl.key": key},
        artifacts=[],
        parent=parent_run(),
    )
    tracking = values.get("tracking")
    return record, tracking if isinstance(tracking, dict) else {}
