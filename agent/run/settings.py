"""Parameters as an experiment sees them: which ones it may change, what they resolve to, and the
edit of conf/experiment/current.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agent.gates import permissions
from agent.gates.permissions import EXTRA, OPEN
from stages.common import keys as declared
from stages.common.config import compose
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_text, write_text
from stages.common.keep import edited
from stages.common.overrides import parse as read_override
from stages.common.schema import SECTIONS
from stages.common.text import plain

CURRENT = ROOT / "conf" / "experiment" / "current.yaml"
PARAMS = ROOT / "params.yaml"
MEASURING = ("benchmark", "engine", "evaluate")
_LUCK = ("data.seed", "train.seed")
_KEY = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+")


def parse(overrides: list[str]) -> list[str]:
    """The dotted keys of key=value overrides.

    Raises:
        PawlError: not of that form, a key twice, or a key that no experiment may change.
    """
    keys: list[str] = []
    for override in overrides:
        key, equals, value = override.partition("=")
        section = key.split(".")[0]
        read_override(override)
        shown = plain(override, 100)
        if section in SECTIONS and section not in OPEN:
            why = (
                "it is the name, hypothesis or lineage that the agent writes itself"
                if section == "experiment"
                else (
                    "it says how experiments are run and measured, and the ruler may not be changed"
                    " by what it measures"
                )
            )
            fix = (
                "use --name and --why"
                if section == "experiment"
                else (
                    "change it by hand in conf/, run 'dvc repro' and commit, for all experiments"
                    " alike"
                )
            )
            raise PawlError(
                f"an experiment may not change {section}: {why}",
                where=shown,
                fix=f"{fix}; open to experiments: {', '.join(OPEN)}",
            )
        if permissions.who(key) == permissions.HAND:
            _refuse_closed(key, shown)
        if not equals or not _KEY.fullmatch(key):
            fix = (
                "write section.key=value, such as train.learning_rate=5e-4, with a section of:"
                f" {', '.join(OPEN)}"
            )
            raise PawlError("not an override of one declared parameter", where=shown, fix=fix)
        if "${" in value or value.strip() == "???":
            raise PawlError(
                "a value may not refer to others, or to the environment",
                where=shown,
                fix="write the value itself",
            )
        if key in keys:
            raise PawlError(f"{key} is given twice", where=shown, fix="give it once")
        keys.append(key)
    return keys


def _refuse_closed(key: str, where: str) -> NoReturn:
    raise PawlError(
        f"an experiment may not change {key}: it guards the benchmark from the training data",
        where=where,
        fix="change it by hand in conf/, run 'dvc repro' and commit, for all experiments alike",
    )


def resolve(overrides: list[str]) -> dict[str, Any]:
    """Every resolved parameter, by dotted key, under `overrides`; nothing is written.

    Raises:
        PawlError: what composition refuses (unknown key, wrong type, out of range), or a change
            outside the open sections.
    """
    keys = parse(overrides)
    before, after = (
        flat(compose()),
        flat(compose([f"++{each}" if each.startswith(EXTRA) else each for each in overrides])),
    )
    for key in keys:
        if isinstance(after.get(key), list | dict) or key not in after:
            raise PawlError(
                f"{key} is not a scalar parameter",
                where=key,
                fix=(
                    "override one of the values in it, or edit conf/experiment/current.yaml by hand"
                ),
            )
    for key in (key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
        # by interpolation
        if key.split(".")[0] not in OPEN and key not in (
            "experiment.name",
            "experiment.hypothesis",
        ):
            raise PawlError(
                f"this would change {key} too, which measures the experiment",
                where=key,
                fix="see conf/ for what refers to the changed key",
            )
        if key in before and permissions.who(key) == permissions.HAND:
            _refuse_closed(key, key)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if moved := permissions.moves_a_part(changed, after):
        _refuse_closed(
            moved, "a source of data.sources takes a part, and this says which rows are in it"
        )
    reasons = [permissions.unread(key, after) for key in keys]
    if keys and all(reasons):
        raise PawlError(
            "this would change nothing",
            where=keys[0],
            fix=f"{reasons[0]}: change that first, or another key",
        )
    return after


def flat(text: str) -> dict[str, Any]:
    """The leaves of a params.yaml by dotted key; lists, and mappings without content, are
    leaves.
    """

    def leaves(node: Any, prefix: str) -> dict[str, Any]:
        if isinstance(node, dict) and node:
            return {
                key: leaf
                for name in node
                for key, leaf in leaves(
                    node[name], f"{prefix}.{name}" if prefix else str(name)
                ).items()
            }
        return {prefix: node}

    return leaves(OmegaConf.to_container(OmegaConf.create(text), resolve=False), "")


def differences(
    before: dict[str, Any], after: dict[str, Any], named: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """What changed between two sets of parameters: what shapes the model and differs, and of the
    other keys those that are `named`.

    Settings of the judge, the agent, the tracking or the launcher that a person set meanwhile are
    no experiment's change. A key that only one side has was declared or removed since, which is
    nobody's change unless `named` holds it. Named keys come first.
    """
    wanted = set(named)
    own = {
        key
        for key in before.keys() & after.keys()
        if before[key] != after[key] and shapes_model(key)
    }
    keys = {
        key
        for key in own | wanted
        if before.get(key) != after.get(key)
        and not key.startswith(("experiment.", "agent.", "tracking."))
    }
    ordered = sorted(keys, key=lambda key: (key not in wanted, key))
    return [{"key": key, "before": before.get(key), "after": after.get(key)} for key in ordered]


def shapes_model(key: str) -> bool:
    """Whether a parameter decides, seeds included, which model comes out of the training."""
    return key.startswith(("model.", "data.", "train.")) and declared.shapes_result(key)


def fingerprint(params: dict[str, Any]) -> str:
    """A hash of what decides an experiment's result but for luck: the seeds of data and training do
    not count, the ruler's do.
    """
    parts = {key: value for key, value in params.items() if shapes_result(key)}
    return sha256_text(json.dumps(parts, sort_keys=True, default=str))


def shapes_result(key: str) -> bool:
    """Whether a parameter decides what comes out, luck aside."""
    return key not in _LUCK and declared.shapes_result(key)


def ruler(params: dict[str, Any]) -> dict[str, Any]:
    """What makes two experiments' rows comparable: the parameters that say what is asked, and
    how.
    """
    return {
        key: value
        for key, value in params.items()
        if key.split(".")[0] in MEASURING and declared.shapes_result(key)
    }


def require_composed() -> dict[str, Any]:
    """The committed parameters, which must be what conf/ composes to."""
    text = PARAMS.read_text(encoding="utf-8") if PARAMS.exists() else ""
    if text != compose():
        raise PawlError(
            "params.yaml is not what conf/ composes to",
            where="params.yaml",
            fix=(
                "python -m stages.common.config --keep with the overrides to keep, or without any;"
                " then 'dvc repro' and commit"
            ),
        )
    return flat(text)


def edit(values: dict[str, Any]) -> None:
    """Set dotted keys in conf/experiment/current.yaml; comments, order and the `# @package` line
    stay.

    Strings are quoted: what is text here must not become a number or a boolean for another reader's
    YAML.
    """
    write_text(CURRENT, edited(CURRENT, values))


def require_as_planned(planned: dict[str, Any], experiment: dict[str, str]) -> str:
    """The text of params.yaml, once it is certain that the edit of conf/ came out as what was
    planned.
    """
    text = PARAMS.read_text(encoding="utf-8")
    try:
        given = flat(text)
    except OmegaConfBaseException as error:
        raise PawlError(
            f"params.yaml cannot be read: {plain(str(error), 200)}", where=str(PARAMS)
        ) from None
    wanted = {key: value for key, value in planned.items() if not key.startswith("experiment.")}
    wanted |= {f"experiment.{key}": value for key, value in experiment.items()}
    if wrong := sorted(
        key for key in wanted.keys() | given.keys() if wanted.get(key) != given.get(key)
    ):
        raise PawlError(
            f"{wrong[0]} did not come out of conf/ as planned",
            where=f"{CURRENT}, {PARAMS}",
            fix="see what conf/config.yaml lets override it",
        )
    return text
