"""conf/experiment/current.yaml, the one file that a choice is kept in: edited with its comments and
its order.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from stages.common.config import compose
from stages.common.errors import PawlError
from stages.common.files import ROOT, write_text
from stages.common.mistakes import CONF
from stages.common.overrides import parse, shown
from stages.common.schema import SECTIONS
from stages.common.text import plain


def keep(overrides: Sequence[str]) -> None:
    """Write overrides into conf/experiment/current.yaml, so that conf/ composes to them from now
    on.

    Raises:
        PawlError: what composition refuses, or what would not come out of the file as it was asked
            for; nothing is written then.
    """
    groups, values = sorted_out(overrides)
    wanted = compose(overrides)
    path = CONF / "experiment" / "current.yaml"
    before, after = (OmegaConf.create(text).experiment for text in (compose(), wanted))
    values |= {
        f"experiment.{name}": after[name]
        for name in ("name", "hypothesis")
        if before[name] != after[name]
    }
    text = edited(path, values, groups)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(
            shutil.copytree(
                CONF, Path(folder) / "conf", ignore=shutil.ignore_patterns("plugins", "__pycache__")
            )
        )
        write_text(trial / "experiment" / "current.yaml", text)
        if OmegaConf.create(compose(conf=trial)) != OmegaConf.create(wanted):
            raise PawlError(
                "conf/ would not compose to these overrides",
                where=str(path),
                fix="edit that file by hand",
            )
    if text != path.read_text(encoding="utf-8"):
        write_text(path, text)
        print(f"{path.relative_to(ROOT)} holds {', '.join(map(shown, overrides))}")


def sorted_out(overrides: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The options of groups, and the values of dotted keys, that overrides name.

    Raises:
        PawlError: an override that a file cannot hold.
    """
    groups: dict[str, str] = {}
    values: dict[str, Any] = {}
    for override in overrides:
        parsed = parse(override)
        key, value = parsed.key_or_group, parsed.value()
        if parsed.is_delete() or parsed.package is not None:
            raise PawlError(
                "a removal cannot be kept", where=shown(override), fix="edit conf/ by hand"
            )
        if key == "experiment":
            fix = (
                f"cp conf/experiment/{value}.yaml conf/experiment/current.yaml, then python -m"
                " stages.common.config"
            )
            raise PawlError(
                "an experiment is chosen by its file, conf/experiment/current.yaml",
                where=shown(override),
                fix=fix,
            )
        if key in SECTIONS:
            groups[key] = str(value)
        elif key.split(".")[0] not in SECTIONS:
            raise PawlError(
                "a key of Hydra's own cannot be kept",
                where=shown(override),
                fix="leave it out, or edit conf/ by hand",
            )
        else:
            values[key] = value
    return groups, values


def edited(path: Path, values: Mapping[str, Any], groups: Mapping[str, str] | None = None) -> str:
    """The text of an experiment's file with dotted keys set and options chosen; comments, order and
    the `# @package` line stay.

    Strings are quoted: what is text here must not become a number or a boolean for another reader's
    YAML.
    """
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 140
    try:
        document = yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError, UnicodeDecodeError) as error:
        raise PawlError(
            f"cannot be edited: {plain(str(error), 200)}",
            where=str(path),
            fix="restore it from git",
        ) from None
    if not isinstance(document, CommentedMap):
        raise PawlError("is not a mapping of sections", where=str(path), fix="restore it from git")
    for key, value in values.items():
        *above, last = key.split(".")
        node: Any = document
        for name in above:
            if not isinstance(node.get(name), CommentedMap):
                # before `experiment`, so that the file ends with what it is about
                place = (
                    list(node).index("experiment")
                    if node is document and "experiment" in node
                    else len(node)
                )
                node.pop(name, None)
                node.insert(min(place, len(node)), name, CommentedMap())
            node = node[name]
        if node.get(last) != value or isinstance(node.get(last), bool) != isinstance(value, bool):
            node[last] = DoubleQuotedScalarString(value) if isinstance(value, str) else value
    for group, option in (groups or {}).items():
        _choose(document, group, option)
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _choose(document: CommentedMap, group: str, option: str) -> None:
    """Set `override /group: option` in the defaults list."""
    if not isinstance(document.get("defaults"), CommentedSeq):
        document.pop("defaults", None)
        document.insert(0, "defaults", CommentedSeq(["_self_"]))
    for entry in document["defaults"]:
        for written in entry if isinstance(entry, CommentedMap) else ():
            if str(written).removeprefix("override ").strip().lstrip("/") == group:
                entry[written] = option
                return
    document["defaults"].insert(0, CommentedMap({f"override /{group}": option}))
