"""models/base.json: which model is the base, where its files are, and whether they are still the ones that fetch_model saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, sha256_file

_HASHED_UP_TO = 32 * 2**20  # bytes; config and tokenizer are hashed again each time, for weights the size must do
_MEND = "run 'dvc repro --force fetch_model'; a model of your own must keep its files while it is the base"


def base_model(root: Path = ROOT) -> tuple[dict[str, Any], Path]:
    """The description in models/base.json (see stages/fetch_model) and the folder with weights, config and tokenizer.

    Raises:
        PawlError: base.json is missing or broken, or a file is missing or has changed since fetch_model described it.
    """
    origin = root / "models" / "base.json"
    described = read_json(origin)
    if not isinstance(described, dict) or not isinstance(described.get("files"), dict) or not described.get("path"):
        raise PawlError("not a description of a base model", where=str(origin), fix="run 'dvc repro --force fetch_model'")
    folder = root / described["path"]  # an absolute path stays as it is
    for name, known in described["files"].items():
        path = folder / name
        if not path.is_file():
            raise PawlError(f"a file of the base model is missing: {name}", where=str(path), fix=_MEND)
        same = path.stat().st_size == known["bytes"]
        if not same or (known["bytes"] <= _HASHED_UP_TO and sha256_file(path) != known["sha256"]):
            raise PawlError(f"a file of the base model has changed since fetch_model saw it: {name}", where=str(path), fix=_MEND)
    return described, folder
