"""One declaration says of each key whether it shapes a result, and dvc.yaml tracks what does."""

from __future__ import annotations

import ast
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

from stages.common import keys
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.schema import SECTIONS

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
READ_OTHERWISE = ("model.inference.",)  # evaluate=recommended takes it over into evaluate.*


def declared(kind: Any, prefix: str) -> list[str]:
    """The keys below a section, with `x` for the name of a source or task."""
    if get_origin(kind) is dict and is_dataclass(get_args(kind)[1]):
        return declared(get_args(kind)[1], f"{prefix}.x")
    if not is_dataclass(kind):
        return [prefix]
    hints = get_type_hints(kind)
    return [
        key for each in fields(kind) for key in declared(hints[each.name], f"{prefix}.{each.name}")
    ]


ALL = [key for section, kind in SECTIONS.items() for key in declared(kind, section)]
SHAPING = [key for key in ALL if keys.shapes_result(key)]


def is_tracked(key: str) -> bool:
    parts = key.split(".")
    above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return any(
        above & set(stage["params"])
        for name, stage in STAGES.items()
        if name not in ("report", "track")
    )


@pytest.mark.parametrize("key", SHAPING)
def test_a_key_that_shapes_a_result_makes_dvc_run_a_stage_again(key: str) -> None:
    assert is_tracked(key) or key.startswith(READ_OTHERWISE), f"dvc.yaml names {key} nowhere"


@pytest.mark.parametrize("stage", ["baseline", "eval_val", "eval_test"])
def test_an_evaluation_runs_again_for_what_shapes_it_alone(stage: str) -> None:
    assert [key for key in keys.tracked(stage) if not keys.shapes_result(key)] == []


def untracked(stage: str) -> list[str]:
    tree = ast.parse((ROOT / "stages" / stage / "__main__.py").read_text(encoding="utf-8"))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load_params"
    ]
    return [
        key
        for call in calls
        for word in call.keywords
        if word.arg == "untracked"
        for key in ast.literal_eval(word.value)
    ]


def test_what_an_evaluation_reads_untracked_shapes_nothing() -> None:
    # a permission: without it the evaluation is refused
    allowed = {"benchmark.allow_code_execution"}
    assert [
        key for key in untracked("evaluate") if keys.shapes_result(key) and key not in allowed
    ] == []


@pytest.mark.parametrize(
    ("key", "shapes"),
    [
        ("train.learning_rate", True),
        ("train.extra.use_badam", True),
        ("train.extra.logging_dir.name", True),
        ("data.sources.mine.licence", False),
        ("data.sources.mine.settings.licence", True),
        ("data.teacher.strong.timeout_s", False),
        ("data.teacher.strong.model", True),
        ("engine.gpu_memory_utilization", False),
        ("engine.judge.retries", False),
        ("launcher.workers", True),
        ("launcher.timeout_h", False),
        ("agent.seed", False),
        ("benchmark.tasks.a.prompt", True),
        ("nonsense.key", True),
    ],
)
def test_a_key_shapes_a_result_unless_its_declaration_denies_it(key: str, shapes: bool) -> None:
    assert keys.shapes_result(key) is shapes


@pytest.mark.parametrize(
    "text", ["", "stages: 3", "stages: {train: {}}", "stages: [\n", "<<<<<<< ours\n"]
)
def test_a_broken_dvc_yaml_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(keys, "ROOT", tmp_path)
    with pytest.raises(PawlError, match="stage train") as raised:
        keys.tracked("train")
    assert "dvc.yaml" in raised.value.where
