"""Each key of the open sections has one decision, and nothing has one by accident."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest

from agent.gates import permissions, reach
from agent.knowledge.library import open_library
from agent.run import preflight, settings
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.schema import SECTIONS


def leaves(section: type, prefix: str) -> Iterator[str]:
    hints = get_type_hints(section)
    for spec in fields(section):
        kind = hints[spec.name]
        inside = next((part for part in get_args(kind) if is_dataclass(part)), None)
        if is_dataclass(kind):
            yield from leaves(kind, f"{prefix}.{spec.name}")  # type: ignore[arg-type]
        elif inside:
            yield from leaves(inside, f"{prefix}.{spec.name}.*")
        else:
            yield f"{prefix}.{spec.name}"


def test_every_declared_key_has_exactly_one_decision() -> None:
    declared = {key for name in permissions.OPEN for key in leaves(SECTIONS[name], name)}
    decided = Counter(pattern for patterns in permissions.MAY.values() for pattern in patterns)
    assert set(decided) == declared and set(decided.values()) == {1}
    assert sorted((*permissions.OPEN, *permissions.CLOSED)) == sorted(SECTIONS)
    assert all(permissions.who(key.replace("*", "mine")) for key in declared)


def declared() -> list[str]:
    return [key for name in permissions.OPEN for key in leaves(SECTIONS[name], name)]


@pytest.mark.parametrize("pattern", declared())
def test_the_gate_and_try_ask_the_one_list(pattern: str) -> None:
    key = pattern.replace("*", "mine")
    level = permissions.who(key)
    kind = "model_variant" if key.startswith("model.") else "parameter"
    asked = {
        f"data.sources.{tier}.{name}": value
        for tier in ("strong", "weak")
        for name, value in (("recipe", "self"), ("tier", tier))
    }
    assert (reach.why_not(key, kind, asked) == "") is (level == permissions.LOOP)
    if level == permissions.HAND:
        with pytest.raises(PawlError, match="guards the benchmark"):
            settings.parse([f"{key}=1"])
    else:
        assert settings.parse([f"{key}=1"]) == [key]


def contract(begin: str, end: str) -> str:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    return text[text.index(f"**{begin}**") : text.index(f"**{end}**")]


def named(text: str) -> set[str]:
    """Keys of open sections that a text names in backticks."""
    return set(re.findall(rf"`((?:{'|'.join(permissions.OPEN)})\.[\w.*]+)`", text))


def test_the_contract_says_what_the_list_says() -> None:
    may, may_not = contract("May", "May not"), contract("May not", "The gates")
    assert {permissions.who(key) for key in named(may) - {"train.extra", "model.source"}} == {
        permissions.LOOP
    }
    closed = {key: permissions.who(key.replace("*", "mine")) for key in named(may_not)}
    assert set(permissions.MAY[permissions.HAND]) == {
        key for key, who in closed.items() if who == permissions.HAND
    }
    assert permissions.LOOP not in closed.values()
    assert "" not in closed.values()


def test_open_arguments_of_the_trainer_exist_and_none_of_them_is_a_declared_parameter() -> None:
    library = open_library()
    assert library is not None
    assert set(permissions.LOOP_EXTRA) - {"warmup_steps"} <= set(library.arguments())
    declared = {spec.name for spec in fields(SECTIONS["train"])}
    assert not declared & set(permissions.LOOP_EXTRA)


def test_every_decided_reader_names_declared_keys() -> None:
    declared = {key for name in permissions.OPEN for key in leaves(SECTIONS[name], name)}
    deciders = {decider for decider, _ in permissions._READ_IF.values()}
    assert deciders <= declared


@pytest.mark.slow
@pytest.mark.parametrize(
    "override", ["model.repo=a/b", "train.pref_beta=0.3", "data.teacher.strong.temperature=0.5"]
)
def test_a_try_that_would_change_nothing_is_refused(override: str) -> None:
    with pytest.raises(PawlError, match="would change nothing") as refused:
        settings.resolve([override])
    assert "is not read" in str(refused.value.fix)


@pytest.mark.parametrize(
    "key",
    [
        "data.seed",
        "data.sources.mine.answers",
        "data.sources.mine.columns.question",
        "data.sources.mine.path",
    ],
)
def test_what_says_which_rows_are_in_a_part_is_closed_where_a_source_takes_one(key: str) -> None:
    assert permissions.moves_a_part({key}, {"data.sources.mine.part": "train"}) == key
    assert permissions.moves_a_part({key}, {"data.sources.mine.part": "all"}) == ""
    assert (
        permissions.moves_a_part({"data.sources.mine.count"}, {"data.sources.mine.part": "train"})
        == ""
    )


def test_an_argument_that_the_training_stage_refuses_is_a_refusal_of_try_and_no_crash() -> None:
    with pytest.raises(PawlError, match="dataset_dir is set by the pipeline"):
        preflight.require_trainable(["train.extra.dataset_dir=x"])
    preflight.require_trainable(["data.max_rows=100"])
