"""The configuration: whatever conf/ offers composes, what params.yaml says is what conf/ says, and
mistakes are named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stages.common import config
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.schema import SECTIONS

OPTIONS = sorted(
    f"{path.parent.relative_to(ROOT / 'conf')}={path.stem}"
    for path in (ROOT / "conf").rglob("*.yaml")
    if path.parent != ROOT / "conf"
)


def test_every_group_of_conf_is_known_and_has_an_option() -> None:
    groups = {option.partition("=")[0] for option in OPTIONS}
    assert groups == set(SECTIONS), "a group without a schema section, or a section without a group"


def _one_of_each_group() -> list[list[str]]:
    """The options in as few compositions as hold each once: an experiment alone, since it chooses
    options of other groups itself.
    """
    options: dict[str, list[str]] = {}
    for option in OPTIONS:
        options.setdefault(option.partition("=")[0], []).append(option)
    alone = [[option] for option in options.pop("experiment")]
    return alone + [[option for option in row if option] for row in zip_longest(*options.values())]


@pytest.mark.slow
@pytest.mark.parametrize("row", _one_of_each_group(), ids=" ".join)
def test_every_option_composes_and_validates(row: list[str]) -> None:
    composed = OmegaConf.create(config.compose(row))
    for group in (option.partition("=")[0] for option in row):
        assert group == "experiment" or composed[group].name, (
            f"{group} needs a name: key, which exp run does not record otherwise"
        )


def test_every_option_is_composed_once() -> None:
    assert sorted(option for row in _one_of_each_group() for option in row) == OPTIONS


def test_params_yaml_is_what_conf_composes_to_byte_for_byte() -> None:
    assert (ROOT / "params.yaml").read_text(encoding="utf-8") == config.compose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.learning_rat=1e-3", ["train.learning_rat", "did you mean train.learning_rate"]),
        (
            "+train.learning_rte=1e-3",
            ["unknown key train.learning_rte", "did you mean train.learning_rate"],
        ),
        ("train.learning_rate=abc", ["abc", "train.learning_rate"]),
        ("train.learning_rate=-1", ["train.learning_rate is -1.0", "above 0 and at most 1"]),
        ("train.learning_rate=nan", ["train.learning_rate is nan"]),
        ("train.lora_rank=1.5", ["1.5", "train.lora_rank"]),
        ("train.seed=???", ["train.seed", "no value"]),
        ("engine.kind=tgi", ["engine.kind is 'tgi'", "transformers, vllm, vllm_cpu, external"]),
        ("model=smollm2", ["no option 'smollm2'", "did you mean smollm2_135m"]),
        ("model.sha256=''", ["model.sha256 is empty", "model.source is 'package'"]),
        ("data.sources.chain_sum.prompt=hello", ["no place for the question"]),
        (
            "engine.api_key_env=${oc.env:HOME}",
            ["${oc.env:...}", "from the environment", "the override 'engine.api_key_env"],
        ),
        ("+trian=1", ["unknown section trian", "did you mean train"]),
        ("engine.extra_args=['--api-key=swordfish']", ["carries a key", "engine.extra_args"]),
        ("engine.base_url='http://user:pw@host/v1'", ["may be a secret", "engine.api_key_env"]),
        ("engine.base_url='http://host/v1?key=1'", ["may be a secret"]),
        ("engine.api_key_env=sk-abc", ["not the name of an environment variable"]),
        (
            "benchmark=jsonl benchmark.tasks.mine.path=data/local/../benchmark/test/x.jsonl",
            ["data/local/"],
        ),
        (
            "data.sources.chain_sum.kind=web",
            ["data.sources.chain_sum.kind is 'web'", "procedural, jsonl, wheel"],
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(override: str, words: list[str]) -> None:
    with pytest.raises(PawlError) as refused:
        config.compose(override.split())
    for word in words:
        assert word in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 5


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """conf/, the ground and params.yaml in a folder of their own, to break."""
    for name in ("conf", "stages/common"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "stages/__init__.py").touch()
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


def compose_in(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stages.common.config", *argv],
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "conf/train/lora.yaml",
            "lora_rank: 16",
            "lora_rnak: 16",
            ["lora_rnak", "did you mean train.lora_rank", "conf/train/lora.yaml:"],
        ),
        (
            "conf/train/lora.yaml",
            "learning_rate: 1.0e-3",
            "learning_rate: abc",
            ["abc", "conf/train/lora.yaml:5"],
        ),
        ("conf/train/lora.yaml", "lora_rank: 16", "lora_rank: [16", ["YAML", "lora.yaml:"]),
        (
            "conf/experiment/current.yaml",
            "experiment:\n",
            "train:\n  learning_rate: -2\nexperiment:\n",
            ["current.yaml:4", "out of range"],
        ),
        (
            "conf/train/lora.yaml",
            "max_steps: -1",
            "max_steps: abc",
            ["abc", "conf/train/lora.yaml:7"],
        ),
        (
            "conf/judge/rules.yaml",
            "kind: rules",
            "kind: ${oc.env:HOME}",
            ["from the environment", "conf/judge/rules.yaml:3 (judge.kind)"],
        ),
        (
            "conf/config.yaml",
            "train: lora",
            "train: lara",
            ["no option 'lara'", "did you mean lora"],
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_file_and_line_and_writes_nothing(
    copy: Path, file: str, old: str, new: str, words: list[str]
) -> None:
    before = (copy / "params.yaml").read_bytes()
    text = (copy / file).read_text(encoding="utf-8")
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    done = compose_in(copy)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert (copy / "params.yaml").read_bytes() == before


@pytest.mark.slow
def test_check_fails_on_drift_and_writes_nothing(copy: Path) -> None:
    params = copy / "params.yaml"
    params.write_text(
        params.read_text(encoding="utf-8").replace("lora_rank: 16", "lora_rank: 8"),
        encoding="utf-8",
    )
    drifted = params.read_bytes()
    done = compose_in(copy, "--check")
    assert done.returncode == 1 and "train.lora_rank: 8 -> 16" in done.stderr
    assert params.read_bytes() == drifted
    assert compose_in(copy).returncode == 0
    assert compose_in(copy, "--check").returncode == 0


@pytest.mark.parametrize("name", ["dvc.lock", "params.yaml", "conf/train/lora.yaml"])
def test_conflict_markers_are_named_with_their_line(copy: Path, name: str) -> None:
    path = copy / name
    text = path.read_text(encoding="utf-8") if path.exists() else "schema: '2.0'\n"
    path.write_text(f"{text}<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> other\n", encoding="utf-8")
    program = (
        "from stages.common import config, errors\nerrors.run_main('x', lambda:"
        " config.load_params('train').__enter__() and None)"
    )
    done = (
        compose_in(copy)
        if name != "params.yaml"
        else subprocess.run(
            [sys.executable, "-c", program], cwd=copy, capture_output=True, text=True
        )
    )
    assert done.returncode == 1
    assert f"{name}:{len(text.splitlines()) + 1}" in done.stderr and "merge conflict" in done.stderr


GUARDED = """
import sys, pathlib
from stages.common.config import load_params
from stages.common.errors import run_main
def main():
    with load_params("train", "data.seed") as params:
        {edit}
run_main("stage", main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (
            (
                "p = pathlib.Path('params.yaml'); p.write_text(p.read_text().replace('lora_rank:"
                " 16', 'lora_rank: 4'))"
            ),
            "train in params.yaml was edited",
        ),
        (
            (
                "p = pathlib.Path('params.yaml'); p.write_text(p.read_text().replace('seed: 7',"
                " 'seed: 8'))"
            ),
            "data.seed in params.yaml was edited",
        ),
        ("p = pathlib.Path('params.yaml'); p.unlink()", "params.yaml is missing"),
        (
            (
                "p = pathlib.Path('stages/common/items.py'); import stages.common.items, time;"
                " time.sleep(0.05); p.write_text(p.read_text())"
            ),
            "edited while this stage ran",
        ),
    ],
)
def test_a_stage_fails_when_its_parameters_or_code_change_while_it_runs(
    copy: Path, edit: str, word: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GUARDED.format(edit=edit)], cwd=copy, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert word in done.stderr


def test_an_edit_of_an_input_fails_the_stage_and_of_an_untracked_value_does_not(copy: Path) -> None:
    (copy / "data/local").mkdir(parents=True)
    program = GUARDED.replace(
        '"data.seed")', '"data.seed", untracked=["launcher.timeout_h"], inputs=["data/local"])'
    )
    for edit, code in (
        (
            (
                "p = pathlib.Path('params.yaml'); p.write_text(p.read_text().replace('timeout_h:"
                " 100.0', 'timeout_h: 2.0'))"
            ),
            0,
        ),
        ("import time; time.sleep(0.05); pathlib.Path('data/local/rows.jsonl').touch()", 1),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(edit=edit)],
            cwd=copy,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
    assert "rows.jsonl" in done.stderr


def test_a_file_from_the_future_is_no_edit_and_a_removed_input_is_one(copy: Path) -> None:
    """Another machine's clock, or `touch -d '+2 hours'`: a clock says nothing about what changed
    while the stage ran.
    """
    (copy / "data/local").mkdir(parents=True)
    for name in ("data/local/rows.jsonl", "stages/common/items.py", "stages/common/config.py"):
        (copy / name).touch()
        os.utime(copy / name, (time.time() + 7200,) * 2)
    program = GUARDED.replace('"data.seed")', '"data.seed", inputs=["data/local"])')
    for edit, code in (
        ("import stages.common.items", 0),
        ("pathlib.Path('data/local/rows.jsonl').unlink()", 1),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(edit=edit)],
            cwd=copy,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
    assert "edited while this stage ran" in done.stderr and "rows.jsonl" in done.stderr


def test_an_edit_of_what_a_stage_does_not_read_is_allowed(copy: Path) -> None:
    edit = (
        "p = pathlib.Path('params.yaml'); p.write_text(p.read_text().replace('alpha: 0.05', 'alpha:"
        " 0.01'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", GUARDED.format(edit=edit)], cwd=copy, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_stage_cannot_read_what_it_did_not_declare() -> None:
    params = config.read_params("train.cutoff_len")
    assert params.train.cutoff_len == 256
    with pytest.raises(AttributeError):
        _ = params.train.learning_rate
    with pytest.raises(AttributeError):
        _ = params.judge


def test_exponent_floats_stay_floats_in_params_yaml(copy: Path) -> None:
    text = (copy / "conf/train/lora.yaml").read_text(encoding="utf-8").replace("1.0e-3", "8e-4")
    (copy / "conf/train/lora.yaml").write_text(text, encoding="utf-8")
    assert compose_in(copy).returncode == 0
    assert config.read_params("train", path=copy / "params.yaml").train.learning_rate == 0.0008


@pytest.mark.slow
def test_thoughts_in_training_that_evaluation_would_score_are_refused() -> None:
    with pytest.raises(PawlError, match="does not take it off") as refused:
        config.compose(["data.think_tags=true"])
    config.compose(["data.think_tags=true", *re.findall(r'"(.*?)"', refused.value.fix)])
    with pytest.raises(PawlError, match="does not take it off"):
        config.compose(
            ["data.think_tags=true", "evaluate.think_open='<t>'", "evaluate.think_close='</t>'"]
        )
    config.compose(["data.think_tags=true", "model=qwen3"])


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(PawlError, match=r"model\.date is '26 July'"):
        config.compose(["model.date=26 July"])
