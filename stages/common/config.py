"""Compose conf/ into params.yaml, the committed lockfile of the configuration that DVC reads.

python -m stages.common.config
    write params.yaml
python -m stages.common.config --check
    exit 1 where params.yaml is not what conf/ composes to
python -m stages.common.config experiment=smoke train.seed=1
    compose with Hydra overrides, for this once
python -m stages.common.config --keep agent=llm train.seed=1
    write them into conf/experiment/current.yaml, to stay
"""

from __future__ import annotations

import argparse
import copy
import difflib
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, flatten, write_text
from stages.common.intact import State, changed, check_inputs, state
from stages.common.mistakes import CONF, explain, first_line, located
from stages.common.overrides import NO_HYPOTHESIS, SUBJECT, name_of, parse, with_plus, written_key
from stages.common.parts import settle
from stages.common.redaction import redact
from stages.common.schema import SECTIONS, Config, check_together, validate
from stages.common.secrets import close_resolvers, refuse_secrets

PARAMS = ROOT / "params.yaml"
_AT_START = state(["stages"])

close_resolvers()  # params.yaml is read without them too


def compose(overrides: Sequence[str] = (), conf: Path | None = None) -> str:
    """Compose conf/config.yaml with Hydra overrides and return the text of params.yaml, through the
    call that DVC itself makes.

    Raises:
        PawlError: an unknown key (names the nearest), a wrong type, a value out of range, a missing
            group option.
    """
    from dvc.utils.hydra import compose_and_dump
    from hydra.errors import HydraException

    conf = conf or CONF
    for override in overrides:
        parse(override)
    for path in [*conf.rglob("*.yaml"), ROOT / "dvc.lock", ROOT / "dvc.yaml"]:
        _refuse_conflict_markers(path)
    guard_composition()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "params.yaml"
        try:
            compose_and_dump(
                target,
                str(conf),
                None,
                "config",
                str(CONF / "plugins"),
                list(map(with_plus, overrides)),
            )
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise located(explain(error), overrides) from None
        return target.read_text(encoding="utf-8")


def guard_composition() -> None:
    """Check whatever Hydra composes in this process before anyone can write it: here, and in
    `dvc exp run`, through conf/plugins.
    """
    from hydra._internal.hydra import Hydra

    close_resolvers()
    if not hasattr(Hydra.compose_config, "__wrapped__"):
        Hydra.compose_config = _checked(Hydra.compose_config)  # type: ignore[method-assign]


def _checked(compose_config: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    @functools.wraps(compose_config)
    def composed(
        hydra: Any, config_name: str | None, overrides: list[str], *args: Any, **kwargs: Any
    ) -> DictConfig:
        whole = compose_config(hydra, config_name, overrides, *args, **kwargs)
        try:
            settle(whole)
            check(whole)
        except OmegaConfBaseException as error:
            raise located(explain(error), overrides) from None
        except PawlError as error:
            raise located(error, overrides) from None
        written = {written_key(override) for override in overrides}
        if {key.split(".")[0] for key in written} & {*SUBJECT} and not {
            "experiment",
            "experiment.hypothesis",
        } & written:
            present = compose_config(hydra, config_name, [], *args, **kwargs)
            settle(present)
            if _subject(whole) != _subject(present):
                # that of the file is about another model, other data or other items
                whole.experiment.hypothesis = NO_HYPOTHESIS
                whole.experiment.name = (
                    whole.experiment.name if "experiment.name" in written else name_of(overrides)
                )
        return whole

    return composed


def _subject(whole: DictConfig) -> list[Any]:
    return [OmegaConf.to_container(whole[section], resolve=True) for section in SUBJECT]


def check(composed: DictConfig) -> None:
    """Check a composition as a reader of params.yaml would find it: sections, types, ranges, and no
    secret in it.

    Raises:
        PawlError: `where` is the dotted key.
        OmegaConfBaseException: a value refers to what is not there, or to a resolver.
    """
    plain = copy.deepcopy(composed)
    with open_dict(plain):
        plain.pop("hydra", None)
    for key, value in flatten(OmegaConf.to_container(plain)).items():
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.select(plain, key)
            except OmegaConfBaseException as error:
                raise explain(error, key=key) from None
    OmegaConf.resolve(plain)
    whole = OmegaConf.create(OmegaConf.to_yaml(plain))
    assert isinstance(whole, DictConfig)
    _refuse_unknown_sections(whole, "params.yaml")
    check_together(Config(**{section: _section(whole, section, CONF) for section in SECTIONS}))
    refuse_secrets(OmegaConf.to_container(whole))


@contextmanager
def load_params(
    *keys: str, untracked: Sequence[str] = (), inputs: Sequence[str] = ()
) -> Iterator[Config]:
    """Give what `keys` name of params.yaml, checked: "train", or "train.cutoff_len" for one value;
    the rest is absent.

    DVC reads params.yaml, code and inputs again after a stage ends, and would record this run's
    result under what it finds then. So the block fails on exit if those values, a module or
    template that it uses, or a file below `inputs` changed meanwhile.

    Args:
        keys: the stage's `params:` in dvc.yaml, see `stages.common.keys.tracked`.
        untracked: values that shape no result (timeouts, retries), so that DVC does not know them
            and the guard lets them change.
        inputs: folders that people edit, among the stage's `deps:`.

    Raises:
        PawlError: broken or missing params.yaml, an unknown key, a value out of range, a change
            while the stage ran, a file that is not what the stage before made (see
            `stages.common.intact`).
    """
    check_inputs()
    given = state(inputs)
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
                fix=(
                    "its result does not count, since DVC would record it under the new values: run"
                    " 'dvc repro' again"
                ),
            )
    if path := _edited(inputs, given):
        raise PawlError(
            "edited while this stage ran",
            where=str(path),
            fix="its result does not count: run 'dvc repro' again",
        )


def _edited(inputs: Sequence[str], given: State) -> Path | None:
    """A module, template or input of this stage that is another one than when the process, or the
    block, began.
    """
    # ours alone are asked: OpenCompass's are loaded when one looks into them (lazy.py)
    ours = [
        module
        for name, module in list(sys.modules.items())
        if name == "__main__" or name.startswith("stages.")
    ]
    files = [getattr(module, "__file__", None) for module in ours]
    modules = {Path(file) for file in files if file and file.startswith(f"{ROOT}/stages/")}
    now, data = state(["stages"]), state(inputs)
    used = {
        path
        for path in _AT_START | now
        if path in modules
        or (path.suffix == ".j2" and path.parent in {each.parent for each in modules})
    }
    return changed(_AT_START, now, used) or changed(given, data, given | data)


def read_params(*keys: str, path: Path = PARAMS) -> Config:
    """Read and check parts of a params.yaml, without the guard of `load_params`."""
    _refuse_conflict_markers(path)
    try:
        whole = OmegaConf.load(path)
    except FileNotFoundError:
        raise PawlError(
            "params.yaml is missing", where=str(path), fix="python -m stages.common.config"
        ) from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise PawlError(
            f"params.yaml is not valid YAML: {first_line(error)}",
            where=str(path),
            fix="python -m stages.common.config",
        ) from None
    if not isinstance(whole, DictConfig):
        raise PawlError(
            "params.yaml is not a mapping of sections",
            where=str(path),
            fix="python -m stages.common.config",
        )
    _refuse_unknown_sections(whole, path.name)
    # not a Config: a section that the stage did not ask for must not be there
    params: Any = SimpleNamespace()
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


def _refuse_unknown_sections(whole: DictConfig, where: str) -> None:
    for name in map(str, whole):
        if name not in SECTIONS:
            near = difflib.get_close_matches(name, SECTIONS, n=1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else f"the sections are: {', '.join(SECTIONS)}"
            raise PawlError(f"unknown section {name}", where=where, fix=fix)


def _section(whole: DictConfig, section: str, origin: Path) -> Any:
    """One section as its dataclass, with types, ranges and missing values checked."""
    if section not in whole:
        raise PawlError(
            f"the section {section!r} is missing",
            where=str(origin),
            fix="python -m stages.common.config",
        )
    try:
        merged = OmegaConf.merge(_schema(section), whole[section])
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise PawlError(
                f"{section}.{missing[0]} has no value",
                where=f"{section}.{missing[0]}",
                fix=f"set {section}.{missing[0]}",
            )
        value = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise explain(error, prefix=section) from None
    validate(value, section)
    return value


@functools.cache
def _schema(section: str) -> Any:
    """What a section may hold; merging copies it."""
    return OmegaConf.structured(SECTIONS[section])


def _refuse_conflict_markers(path: Path) -> None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            fix = (
                "take one side: 'git checkout --ours dvc.lock', 'git add dvc.lock', then 'dvc"
                " repro'"
                if path.name == "dvc.lock"
                else "resolve the conflict, then run again"
            )
            raise PawlError(
                "an unresolved merge conflict", where=f"{path.relative_to(ROOT)}:{number}", fix=fix
            )


def changes(old: str, new: str) -> list[str]:
    """The keys in which two params.yaml differ, one line each: 'train.learning_rate: 0.001 ->
    0.0005'.
    """
    before, after = (flatten(OmegaConf.to_container(OmegaConf.create(text))) for text in (old, new))
    # what it is about comes first
    keys = sorted(
        before.keys() | after.keys(), key=lambda key: (not key.startswith("experiment."), key)
    )
    return [
        f"{key}: {before.get(key, '(none)')} -> {after.get(key, '(none)')}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m stages.common.config",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        help="Hydra overrides, such as train.learning_rate=5e-4 or experiment=smoke",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 if params.yaml differs from the composition",
    )
    how.add_argument(
        "--keep",
        action="store_true",
        help="write the overrides into conf/experiment/current.yaml, to stay",
    )
    args = parser.parse_args()
    if args.keep:
        from stages.common.keep import keep

        keep(args.overrides)
    new = compose(() if args.keep else args.overrides)
    old = PARAMS.read_text(encoding="utf-8") if PARAMS.exists() else ""
    if old == new:
        print("params.yaml is what conf/ composes to")
        return 0
    try:
        differences = changes(old, new)
    except (yaml.YAMLError, OmegaConfBaseException):
        differences = ["it was not valid YAML"]
    changed = {line.partition(":")[0] for line in differences}
    if len(differences) > 20:
        differences = [
            *differences[:19],
            f"... and {len(differences) - 19} more: git diff params.yaml",
        ]
    listed = "\n".join(f"  {redact(line)}" for line in differences or ["only its form differs"])
    if args.check:
        fix = (
            "python -m stages.common.config, which takes what conf/ says; to keep overrides: python"
            " -m stages.common.config --keep ..."
        )
        raise PawlError(
            f"params.yaml is not what conf/ composes to:\n{listed}", where="params.yaml", fix=fix
        )
    write_text(PARAMS, new)
    print(f"params.yaml written{'' if old else ' (new)'}" + (f":\n{listed}" if old else ""))
    if (
        old
        and {key.split(".")[0] for key in changed} & {*SUBJECT}
        and "experiment.hypothesis" not in changed
    ):
        print(
            "the hypothesis is still the former one: write what you expect of this into"
            " conf/experiment/current.yaml"
        )
    if f"\n  hypothesis: {NO_HYPOTHESIS}\n" in new:
        print(
            "no hypothesis given: say what you expect, with experiment.hypothesis='...' or in"
            " conf/experiment/current.yaml"
        )
    if args.overrides and not args.keep:
        print(
            "the overrides stand in params.yaml alone: --keep before them keeps them in"
            " conf/experiment/current.yaml, for the agent too"
        )
    return 0


if __name__ == "__main__":
    run_main("config", main)
