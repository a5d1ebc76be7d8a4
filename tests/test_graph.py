"""dvc.yaml against the code: every stage declares what it reads, arrows go down only, and test
results reach no decision.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
import yaml

from stages.common.files import ROOT
from tests.conftest import LOADED

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
FOLDER = {name: spec["cmd"].split()[2].partition(".")[2] for name, spec in STAGES.items()}
# errors, atomic writes, checks and locks do not shape a result: a change of theirs must not retrain
# a model
PLUMBING = frozenset(
    {"errors", "files", "config", "schema", "process", "leash", "doctor", "mistakes", "failure"}
)
PLUMBING |= {
    "intact",
    "redaction",
    "secrets",
    "overrides",
    "keep",
    "compare",
    "gpus",
    "lease",
    "hub",
    "detect",
}
PLUMBING |= {"machine", "parts", "serving"}
PLUMBING |= {"noise", "keys", "reports/base", "reports/noise"}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reached(folder: str, but: frozenset[str] = frozenset()) -> set[str]:
    """Modules of stages/common that a folder imports, directly or through one another, as their
    paths there: items, reports/data.
    """
    todo = {name for path in modules(folder) for name in imports(path)}
    seen: set[str] = set()
    while todo:
        name = todo.pop().removeprefix("stages.common.").replace(".", "/")
        path = ROOT / f"stages/common/{name}.py"
        if name not in seen | but and name.split("/")[0] not in but and path.exists():
            seen.add(name)
            todo |= {part for part in imports(path) if part.startswith("stages.common.")}
    return seen


def loaded(folder: str) -> set[str]:
    """The arguments of load_params(...) in a stage."""
    calls = [
        node
        for path in modules(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    return {
        ast.unparse(argument)
        for call in calls
        if getattr(call.func, "id", "") == "load_params"
        for argument in call.args
    }


@pytest.mark.parametrize("stage", STAGES)
def test_the_parameters_a_stage_loads_are_the_ones_dvc_tracks(stage: str) -> None:
    names = [name for name, folder in FOLDER.items() if folder == FOLDER[stage]]
    assert loaded(f"stages/{FOLDER[stage]}") == {f"*tracked('{names[0]}')"}
    assert all(STAGES[name]["params"] == STAGES[stage]["params"] for name in names)


@pytest.mark.parametrize("stage", STAGES)
def test_the_inputs_a_stage_guards_are_among_its_dependencies(stage: str) -> None:
    for path in modules(f"stages/{FOLDER[stage]}"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load_params":
                guarded = {
                    name
                    for word in node.keywords
                    if word.arg == "inputs"
                    for name in ast.literal_eval(word.value)
                }
                assert guarded <= set(STAGES[stage]["deps"])


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_the_shared_code_that_shapes_its_result(stage: str) -> None:
    declared = {
        dep[len("stages/common/") : -len(".py")]
        for dep in STAGES[stage]["deps"]
        if dep.startswith("stages/common/")
    }
    assert declared == reached(f"stages/{FOLDER[stage]}", PLUMBING)
    assert f"stages/{FOLDER[stage]}" in STAGES[stage]["deps"]


@pytest.mark.parametrize("folder", sorted(set(FOLDER.values())))
def test_a_stage_imports_the_ground_and_itself_and_no_other_stage(folder: str) -> None:
    for path in modules(f"stages/{folder}"):
        for name in imports(path):
            if name.startswith("stages."):
                assert name.split(".")[1] in ("common", folder), f"{path} imports {name}"
            assert not name.startswith("agent"), f"{path} imports {name}"


def test_the_ground_imports_no_stage_and_the_agent_only_the_ground() -> None:
    for path in modules("stages/common"):
        assert not [
            name
            for name in imports(path)
            if name.startswith(("agent", "stages.")) and not name.startswith("stages.common")
        ], path
    for path in modules("agent"):
        assert not [
            name
            for name in imports(path)
            if name.startswith("stages.") and not name.startswith("stages.common")
        ], path


def rooms(folder: str) -> dict[str, set[str]]:
    """The modules and packages directly in a folder, each with those beside it that it imports."""
    package = folder.replace("/", ".")
    place = len(package.split("."))
    found: dict[str, set[str]] = {}
    for path in modules(folder):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[place:] != ("__init__",):
            named = {
                name.split(".")[place] for name in imports(path) if name.startswith(f"{package}.")
            }
            found.setdefault(parts[place], set()).update(named)
    return {
        room: {name for name in named if name in found} - {room} for room, named in found.items()
    }


def floors(arrows: dict[str, set[str]]) -> list[set[str]]:
    """The rooms from the ground up: each floor holds what imports nothing but floors below it.

    Raises:
        AssertionError: some of them import each other in a circle.
    """
    built: list[set[str]] = []
    below: set[str] = set()
    while below != arrows.keys():
        floor = {name for name, needs in arrows.items() if name not in below and needs <= below}
        assert floor, f"a circle among {sorted(arrows.keys() - below)}"
        built.append(floor)
        below |= floor
    return built


def test_a_circle_is_found() -> None:
    assert floors({"a": {"b"}, "b": set()}) == [{"b"}, {"a"}]
    with pytest.raises(AssertionError, match="circle"):
        floors({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()})


def test_the_agent_is_a_few_rooms_on_a_few_floors() -> None:
    arrows = rooms("agent")
    assert {"gates", "knowledge", "propose", "run"} <= arrows.keys()
    assert len(arrows) <= 8
    assert len(floors(arrows)) <= 6


@pytest.mark.parametrize("folder", ["gates", "knowledge", "propose", "run"])
def test_no_modules_of_the_agent_import_each_other_in_a_circle(folder: str) -> None:
    assert floors(rooms(f"agent/{folder}"))


def files_of(stage: str, kind: str) -> set[str]:
    return {
        item if isinstance(item, str) else next(iter(item)) for item in STAGES[stage].get(kind, [])
    }


def test_only_the_report_and_mlflow_read_test_results() -> None:
    results = {
        name
        for stage in STAGES
        for kind in ("outs", "metrics")
        for name in files_of(stage, kind)
        if name.startswith("reports/") and "test." in name
    }
    assert results == {
        "reports/baseline/test.jsonl",
        "reports/baseline/test.json",
        "reports/eval_test/test.jsonl",
        "reports/eval_test/test.json",
    }
    assert not [
        name for stage in STAGES for name in files_of(stage, "metrics") if "test." in name
    ], "dvc exp show would compare by it"
    readers = {
        stage
        for stage in STAGES
        if any("test" in dep for dep in STAGES[stage]["deps"] if dep.startswith("reports/"))
    }
    assert readers == {"track", "report"}


def test_only_evaluation_and_decontamination_read_test_items() -> None:
    readers = {
        stage
        for stage in STAGES
        if "data/benchmark/test" in STAGES[stage]["deps"]
        or "data/benchmark" in STAGES[stage]["deps"]
    }
    assert readers == {"generate_data", "baseline", "eval_test"}


@pytest.mark.slow
def test_only_evaluation_the_page_and_mlflow_import_the_models_of_test_results() -> None:
    folders = {"agent", *(f"stages/{folder}" for folder in FOLDER.values())}
    readers = {folder for folder in folders if "reports/test_results" in reached(folder)}
    assert readers == {"stages/evaluate", "stages/report", "stages/track"}


def test_no_module_of_the_agent_or_the_judge_names_a_test_result() -> None:
    for path in {*modules("stages/judge"), *modules("agent"), *(ROOT / "prompts").rglob("*.j2")}:
        text = path.read_text(encoding="utf-8")
        assert (
            "eval_test" not in text and "test.jsonl" not in text and "benchmark/test" not in text
        ), path
        assert "test_results" not in text, path


def test_git_holds_metrics_plots_and_the_page_and_dvc_the_rest() -> None:
    for stage, spec in STAGES.items():
        for kind in ("outs", "metrics", "plots"):
            for item in spec.get(kind, []):
                name = item if isinstance(item, str) else next(iter(item))
                cached = isinstance(item, str) or item[name].get("cache", True)
                assert cached == (kind == "outs" and stage != "track"), f"{stage}: {name}"
                ignored = (
                    subprocess.run(
                        ["git", "check-ignore", "-q", "--no-index", name], cwd=ROOT
                    ).returncode
                    == 0
                )
                assert ignored == (cached or stage == "track"), (
                    f"{stage}: {name} belongs to {'DVC' if cached else 'Git'}"
                )
    assert (
        subprocess.run(
            ["git", "check-ignore", "-q", "--no-index", "reports/index.html"], cwd=ROOT
        ).returncode
        == 1
    )


def test_every_stage_worth_caching_is_run_cached() -> None:
    # DVC keeps no run of a stage that has an uncached out which is neither metric nor plot
    # (dvc/stage/__init__.py, 3.67)
    uncached = {
        stage
        for stage, spec in STAGES.items()
        for item in spec.get("outs", [])
        if not isinstance(item, str)
    }
    assert uncached == {"track"}, "an earlier result would be paid for again"
    assert {
        stage
        for stage in STAGES
        if not any(files_of(stage, kind) for kind in ("outs", "metrics", "plots"))
    } == {"report"}


def test_stage_modules_are_short() -> None:
    for path in [*modules("stages"), *modules("agent")]:
        limit = 220 if path.name == "__main__.py" else 440
        assert len(path.read_text(encoding="utf-8").splitlines()) <= limit, path


def test_collecting_the_tests_loads_no_heavy_library(request: pytest.FixtureRequest) -> None:
    """Seconds for each worker: a test that needs one imports it, or what imports it, when it
    runs.
    """
    assert request.config.stash[LOADED] == []


def test_no_conditional_expression_stands_in_another() -> None:
    """One thought a line: a second condition is an `if`, or a function with a name."""
    nested = []
    for path in [*modules("stages"), *modules("agent")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.IfExp):
                continue
            parts = [
                part for child in (node.test, node.body, node.orelse) for part in ast.walk(child)
            ]
            if any(isinstance(part, ast.IfExp) for part in parts):
                nested.append(f"{path}:{node.lineno}")
    assert not nested
