"""Compose conf/ into params.yaml, the committed lockfile of the configuration that DVC reads.

python -m stages.common.config                                    write params.yaml
python -m stages.common.config --check                            exit 1 where params.yaml is not what conf/ composes to
python -m stages.common.config experiment=smoke train.seed=1      compose with Hydra overrides
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, flatten, write_text
from stages.common.schema import SECTIONS, Config, validate

PARAMS = ROOT / "params.yaml"
CONF = ROOT / "conf"
_STARTED = time.time()


def compose(overrides: Sequence[str] = ()) -> str:
    """Compose conf/config.yaml with Hydra overrides and return the text of params.yaml, through the call that DVC itself makes.

    Raises:
        PawlError: an unknown key (names the nearest), a wrong type, a value out of range, a missing group option.
    """
    from dvc.utils.hydra import compose_and_dump
    from hydra.errors import HydraException

    for path in [*CONF.rglob("*.yaml"), ROOT / "dvc.lock", ROOT / "dvc.yaml"]:
        _refuse_conflict_markers(path)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "params.yaml"
        try:
            compose_and_dump(target, str(CONF), None, "config", str(CONF / "plugins"), list(overrides))
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise _located(_explain(error), overrides) from None
        text = target.read_text(encoding="utf-8")
    whole = OmegaConf.create(text)
    assert isinstance(whole, DictConfig)
    for section in SECTIONS:
        try:
            _section(whole, section, CONF)
        except PawlError as error:
            raise _located(error, overrides) from None
    return text


@contextmanager
def load_params(*keys: str, untracked: Sequence[str] = (), inputs: Sequence[str] = ()) -> Iterator[Config]:
    """Give what `keys` name of params.yaml, checked: "train", or "train.cutoff_len" for one value; the rest is absent.

    DVC reads params.yaml, code and inputs again after a stage ends, and would record this run's result under what it finds then.
    So the block fails on exit if those values, a module or template that it uses, or a file below `inputs` changed meanwhile.

    Args:
        keys: the stage's `params:` in dvc.yaml.
        untracked: values that shape no result (timeouts, retries), so that DVC does not know them and the guard lets them change.
        inputs: folders that people edit, among the stage's `deps:`.

    Raises:
        PawlError: broken or missing params.yaml, an unknown key, a value out of range, a change while the stage ran.
    """
    before = read_params(*keys, *untracked)
    yield before
    after = read_params(*keys)
    for key in keys:
        section, _, name = key.partition(".")
        old, new = getattr(before, section), getattr(after, section)
        if (getattr(old, name) != getattr(new, name)) if name else (old != new):
            raise PawlError(
                f"{key} in params.yaml was edited while this stage ran",
                where=str(PARAMS),
                fix="its result does not count, since DVC would record it under the new values: run 'dvc repro' again",
            )
    if path := _edited_since_start(inputs):
        raise PawlError("edited while this stage ran", where=str(path), fix="its result does not count: run 'dvc repro' again")


def _edited_since_start(inputs: Sequence[str]) -> Path | None:
    """A module, template or input of this stage that is younger than the process."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    modules = {Path(file) for file in files if file and file.startswith(f"{ROOT}/stages/")}
    templates = {path for module in modules for path in module.parent.glob("*.j2")}
    data = {path for name in inputs for path in (ROOT / name).rglob("*")}
    return next((path for path in sorted(modules | templates | data) if path.is_file() and path.stat().st_mtime > _STARTED), None)


def read_params(*keys: str, path: Path = PARAMS) -> Config:
    """Read and check parts of a params.yaml, without the guard of `load_params`."""
    _refuse_conflict_markers(path)
    try:
        whole = OmegaConf.load(path)
    except FileNotFoundError:
        raise PawlError("params.yaml is missing", where=str(path), fix="python -m stages.common.config") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise PawlError(
            f"params.yaml is not valid YAML: {_first_line(error)}", where=str(path), fix="python -m stages.common.config"
        ) from None
    if not isinstance(whole, DictConfig):
        raise PawlError("params.yaml is not a mapping of sections", where=str(path), fix="python -m stages.common.config")
    params: Any = SimpleNamespace()  # not a Config: a section that the stage did not ask for must not be there
    for key in keys:
        section, _, name = key.partition(".")
        try:
            value = _section(whole, section, path)
        except PawlError as error:
            error.where = f"{path.name}, {error.where}"
            raise
        if name:  # only what the stage declares in dvc.yaml can be read
            value, full = getattr(params, section, SimpleNamespace()), value
            setattr(value, name, getattr(full, name))
        setattr(params, section, value)
    return cast(Config, params)


def _section(whole: DictConfig, section: str, origin: Path) -> Any:
    """One section as its dataclass, with types, ranges and missing values checked."""
    if section not in whole:
        raise PawlError(f"the section {section!r} is missing", where=str(origin), fix="python -m stages.common.config")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(SECTIONS[section]), whole[section])
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise PawlError(f"{section}.{missing[0]} has no value", where=f"{section}.{missing[0]}", fix=f"set {section}.{missing[0]}")
        value = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise _explain(error, prefix=section) from None
    validate(value, section)
    return value


def _explain(error: Exception, prefix: str = "") -> PawlError:
    """Turn Hydra's or OmegaConf's error into: which key, in which file, and what was probably meant."""
    while isinstance(error.__cause__, Exception):  # Hydra wraps the error that knows the key
        error = error.__cause__
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return PawlError(f"not valid YAML: {error.problem}", where=f"{error.problem_mark.name}:{error.problem_mark.line + 1}")
    text = str(error)
    unknown = re.search(r"Key '([^']+)' (?:is not in struct|not in '\w+')", text)
    named = re.search(r"full_key: ([\w.\-]+)", text)
    key = getattr(error, "full_key", None) or (named[1] if named else unknown[1] if unknown else "")
    if prefix and not key.startswith(f"{prefix}."):
        key = f"{prefix}.{key}" if key else prefix
    if unknown:
        near = difflib.get_close_matches(key, _known_keys(), n=1, cutoff=0.5)
        fix = f"did you mean {near[0]}?" if near else "see stages/common/schema.py for the known keys"
        return PawlError(f"unknown key {key}", where=key, fix=fix)
    if option := re.search(r"Could not find '([^']+)'", text):
        group, _, name = option[1].rpartition("/")
        options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.4)
        return PawlError(
            f"no option {name!r} in conf/{group}/", fix=f"{f'did you mean {near[0]}? ' if near else ''}There are: {', '.join(options)}"
        )
    return PawlError(_first_line(error), where=key, fix=f"correct {key}" if key else "")


def _first_line(error: Exception) -> str:
    """The first line that says something: Hydra opens with the name of the file's group, which `where` names better."""
    lines = [line for line in str(error).strip().splitlines() if not re.match(r"In '[^']*': \w+ raised", line)]
    return lines[0] if lines else type(error).__name__


def _known_keys(kind: type = Config, prefix: str = "") -> list[str]:
    keys = []
    for spec in fields(kind):
        key = f"{prefix}{spec.name}"
        keys.append(key)
        part = SECTIONS.get(spec.name) if kind is Config else None
        if part and is_dataclass(part):
            keys += _known_keys(part, f"{key}.")
    return keys


def _located(error: PawlError, overrides: Sequence[str]) -> PawlError:
    """Say where the key in `where` was written: on the command line, or in which file and line of conf/."""
    given = [override for override in overrides if override.lstrip("+~").partition("=")[0] == error.where]
    error.where = f"the override {given[-1]!r}" if given else _locate(error.where)
    return error


def _locate(key: str) -> str:
    """Where a dotted key is written in conf/, most specific file first; the key itself where it is in no file."""
    parts = key.split(".")
    best: tuple[int, str] = (0, key)
    for path in sorted(CONF.rglob("*.yaml")):
        try:
            node = yaml.compose(path.read_text(encoding="utf-8"))
        except yaml.YAMLError:
            continue
        # a group's file holds the section's content, an experiment's the whole tree
        inside = parts[1:] if path.parent.name == parts[0] and path.parent.name != "experiment" else parts
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


def _refuse_conflict_markers(path: Path) -> None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            fix = (
                "take one side: 'git checkout --ours dvc.lock', then 'dvc repro'"
                if path.name == "dvc.lock"
                else "resolve the conflict, then run again"
            )
            raise PawlError("an unresolved merge conflict", where=f"{path.relative_to(ROOT)}:{number}", fix=fix)


def changes(old: str, new: str) -> list[str]:
    """The keys in which two params.yaml differ, one line each: 'train.learning_rate: 0.001 -> 0.0005'."""
    before, after = (flatten(OmegaConf.to_container(OmegaConf.create(text))) for text in (old, new))
    keys = sorted(before.keys() | after.keys())
    return [f"{key}: {before.get(key, '(none)')} -> {after.get(key, '(none)')}" for key in keys if before.get(key) != after.get(key)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stages.common.config", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="Hydra overrides, such as train.learning_rate=5e-4 or experiment=smoke")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if params.yaml differs from the composition")
    args = parser.parse_args()
    new = compose(args.overrides)
    old = PARAMS.read_text(encoding="utf-8") if PARAMS.exists() else ""
    if old == new:
        print("params.yaml is what conf/ composes to")
        return 0
    try:
        differences = changes(old, new)
    except (yaml.YAMLError, OmegaConfBaseException):
        differences = ["it was not valid YAML"]
    shown = "\n".join(f"  {line}" for line in differences[:20] or ["only its form differs"])
    if args.check:
        raise PawlError(f"params.yaml is not what conf/ composes to:\n{shown}", where="params.yaml", fix="python -m stages.common.config")
    write_text(PARAMS, new)
    print(f"params.yaml written{'' if old else ' (new)'}" + (f":\n{shown}" if old else ""))
    return 0


if __name__ == "__main__":
    run_main("config", main)
