"""What each key of params.yaml decides: which stage reads it, and whether it shapes a result.

dvc.yaml says the first and the schema the second, where a key is declared;
tests/common/test_keys.py holds them together.
"""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.schema import SECTIONS

_TOLD = ("experiment", "tracking", "agent")
"""Sections that say what a run is about, where it is logged and who proposes it: they shape no
result.
"""


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 20 ms instead of 200


def tracked(stage: str) -> list[str]:
    """The keys that dvc.yaml declares for a stage: DVC runs it again if one of them changes.

    Raises:
        PawlError: dvc.yaml is broken, or has no such stage.
    """
    path = ROOT / "dvc.yaml"
    try:
        declared = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
        return list(declared["stages"][stage]["params"])
    except (OSError, yaml.YAMLError, LookupError, TypeError):
        fix = "git diff dvc.yaml shows what changed, git checkout dvc.yaml takes it back"
        raise PawlError(
            f"it declares no params of the stage {stage}", where=str(path), fix=fix
        ) from None


def shapes_result(key: str) -> bool:
    """Whether a dotted key decides what comes out: no name, no time limit, and no number of
    requests at once does.

    What the schema does not know, below a free mapping such as train.extra, counts.
    """
    section, *names = key.split(".")
    if section in _TOLD:
        return False
    kind: Any = SECTIONS.get(section)
    for name in names:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
            continue
        found = _field(kind, name)
        if found is None:
            return True
        if not found.metadata.get("shapes", True):
            return False
        kind = get_type_hints(kind)[name]
    return True


def _field(kind: Any, name: str) -> Field[Any] | None:
    if not is_dataclass(kind):
        return None
    return next((each for each in fields(kind) if each.name == name), None)
