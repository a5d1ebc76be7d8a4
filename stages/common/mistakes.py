"""What is wrong in conf/, params.yaml or an override: which key, in which file and line, and what
was probably meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf.errors import UnsupportedInterpolationType

from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.overrides import is_free, shown, written_key
from stages.common.redaction import redact
from stages.common.schema import SECTIONS, Config

CONF = ROOT / "conf"


def explain(error: Exception, prefix: str = "", key: str = "") -> PawlError:
    """Turn Hydra's or OmegaConf's error into: which key (`key`, where it is known), in which file,
    and what was probably meant.
    """
    while isinstance(error.__cause__, Exception):  # Hydra wraps the error that knows the key
        error = error.__cause__
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return PawlError(
            f"not valid YAML: {error.problem}",
            where=f"{error.problem_mark.name}:{error.problem_mark.line + 1}",
        )
    text = str(error)
    unknown = re.search(r"Key '([^']+)' (?:is not in struct|not in '\w+')", text)
    named = re.search(r"full_key: ([\w.\-]+)", text)
    found = named or unknown
    key = key or getattr(error, "full_key", None) or (found[1] if found else "")
    if prefix and not key.startswith(f"{prefix}."):
        key = f"{prefix}.{key}" if key else prefix
    if isinstance(error, UnsupportedInterpolationType):
        resolver = first_line(error).rpartition(" ")[2]
        return PawlError(
            f"${{{resolver}:...}} would write a value from the environment into params.yaml, which"
            " is committed",
            where=key,
            fix=(
                "write the value itself; of a secret, name its variable in the api_key_env of what"
                " uses it"
            ),
        )
    if unknown:
        near = difflib.get_close_matches(key, _known_keys(), n=1, cutoff=0.5)
        fix = f"did you mean {near[0]}?" if near else "see stages/common/schema/ for the known keys"
        return PawlError(f"unknown key {key}", where=key, fix=fix)
    if option := re.search(r"Could not find '([^']+)'", text):
        group, _, name = option[1].rpartition("/")
        options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.4)
        return PawlError(
            f"no option {name!r} in conf/{group}/",
            fix=f"{f'did you mean {near[0]}? ' if near else ''}There are: {', '.join(options)}",
        )
    return PawlError(
        redact(first_line(error)),
        where=key,
        fix=(
            f"correct {key}"
            if key
            else "check the spelling and the quoting of conf/ and of the overrides"
        ),
    )


def first_line(error: Exception) -> str:
    """The first line that says something: Hydra opens with the name of the file's group, which
    `where` names better.
    """
    lines = [
        line
        for line in str(error).strip().splitlines()
        if not re.match(r"In '[^']*': \w+ raised", line)
    ]
    return lines[0] if lines else type(error).__name__


def _known_keys(kind: type = Config, prefix: str = "") -> list[str]:
    keys = []
    for name, part in get_type_hints(kind).items():
        keys.append(f"{prefix}{name}")
        if is_dataclass(part) and isinstance(part, type):
            keys += _known_keys(part, f"{prefix}{name}.")
    return keys


def located(error: PawlError, overrides: Sequence[str]) -> PawlError:
    """Say where the key in `where` was written: on the command line, or in which file and line of
    conf/.
    """
    given = [override for override in overrides if written_key(override) == error.where]
    if error.what.startswith("unknown key ") and is_free(error.where):
        inside = [
            override
            for override in overrides
            if f"{written_key(override)}.".startswith(f"{error.where}.")
        ]
        if inside and not inside[-1].startswith("+"):
            error.fix = (
                f"to add a key to {error.where.rpartition('.')[0]}, write a plus before it:"
                f" '+{shown(inside[-1])}'"
            )
            given = inside
    error.where = (
        f"the override '{shown(given[-1])}'" if given else _locate(error.where, _chosen(overrides))
    )
    return error


def _chosen(overrides: Sequence[str]) -> dict[str, str]:
    """The option of each group: what conf/config.yaml chooses, then the experiment's file, then the
    command line.
    """
    given = {
        group: option for group, _, option in (override.partition("=") for override in overrides)
    }
    chosen = _defaults(CONF / "config.yaml") | {
        group: given[group] for group in given if group in SECTIONS
    }
    return (
        chosen
        | _defaults(CONF / "experiment" / f"{chosen.get('experiment')}.yaml")
        | {group: given[group] for group in given if group in SECTIONS}
    )


def _defaults(path: Path) -> dict[str, str]:
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8")).get("defaults", [])
        return {
            str(group).removeprefix("override ").lstrip("/"): str(name)
            for entry in entries
            if isinstance(entry, dict)
            for group, name in entry.items()
        }
    except (OSError, yaml.YAMLError, AttributeError, TypeError):
        return {}


def _locate(key: str, chosen: dict[str, str]) -> str:
    """Where a dotted key is written in conf/, most specific file first; the key itself where it is
    in no file.
    """
    parts = key.split(".")
    best: tuple[int, str] = (0, key)
    for path in sorted(CONF.rglob("*.yaml")):
        if chosen.get(path.parent.name, path.stem) != path.stem:
            continue  # an option that was not composed
        try:
            node = yaml.compose(path.read_text(encoding="utf-8"))
        except yaml.YAMLError:
            continue
        # a group's file holds the section's content, an experiment's the whole tree
        inside = (
            parts[1:]
            if path.parent.name == parts[0] and path.parent.name != "experiment"
            else parts
        )
        for depth, line in _lines_of(node, inside):
            score = depth + (2 if path.parent.name == "experiment" else 1)
            if depth == len(inside) and score > best[0]:
                best = (score, f"{path.relative_to(ROOT)}:{line} ({key})")
    return best[1]


def _lines_of(node: Any, parts: list[str]) -> Iterator[tuple[int, int]]:
    for depth, part in enumerate(parts, 1):
        if not isinstance(node, yaml.MappingNode):
            return
        for name, value in node.value:
            if name.value == part:
                yield depth, name.start_mark.line + 1
                node = value
                break
        else:
            return
