"""Overrides: what cannot be read says how to quote it, a choice is kept by one command, and a
hypothesis belongs to what it is about.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stages.common import config, overrides
from stages.common.errors import PawlError
from stages.common.files import ROOT


@pytest.mark.parametrize(
    "value", ["a=b", "a#b", "f(x)", "a,b", "it's", "a!b", "é", "{a", 'say "yes"']
)
def test_a_value_that_hydra_cannot_read_is_named_with_a_quoting_that_it_can(value: str) -> None:
    given = f"experiment.hypothesis={value}"
    with pytest.raises(PawlError) as refused:
        overrides.parse(given)
    assert given in refused.value.where
    (advised,) = shlex.split(refused.value.fix.partition("shell: ")[2].split("; for one run")[0])
    assert overrides.parse(advised).value() == value


@pytest.mark.parametrize("given", ["train.seed", "=3", "", "a.b.c"])
def test_what_is_no_override_is_named(given: str) -> None:
    with pytest.raises(PawlError, match="not an override"):
        overrides.parse(given)


def test_composition_and_the_agent_refuse_an_unreadable_value_alike() -> None:
    from agent.run import settings

    for refuse in (config.compose, settings.resolve):
        with pytest.raises(PawlError) as refused:
            refuse(["train.lora_target=q_proj,v_proj"])
        assert (
            "train.lora_target=q_proj,v_proj" in refused.value.where
            and "'train.lora_target=\"q_proj,v_proj\"'" in refused.value.fix
        )


@pytest.mark.slow
@pytest.mark.parametrize("key", ["train.extra.flash_attn", "model.inference.template.think"])
def test_a_key_of_an_open_mapping_is_added_with_a_plus(key: str) -> None:
    chosen = ["data=jsonl", "data.sources.mine.path=data/local/rows.jsonl"]
    with pytest.raises(PawlError) as refused:
        config.compose([*chosen, f"{key}=t"])
    assert f"'+{key}=t'" in refused.value.fix
    config.compose([*chosen, f"+{key}=t"])


@pytest.mark.slow
def test_items_leave_a_train_part_where_training_takes_it_and_nowhere_else() -> None:
    items = ["benchmark=jsonl", "benchmark.tasks.mine.path=data/local/items.jsonl"]
    shared = [
        "data=jsonl",
        "data.sources.mine.path=data/local/items.jsonl",
        "data.sources.mine.part=train",
    ]
    for given, splits in (
        ([*items, *DATA], "halves"),
        ([*items, *shared], "seeded"),
        ([*items, *shared[:2]], "halves"),
    ):
        assert OmegaConf.create(config.compose(given)).benchmark.splits == splits
    with pytest.raises(PawlError, match="takes the train part"):
        config.compose([*items, *shared, "benchmark.splits=halves"])


@pytest.mark.slow
@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_column_is_named_with_a_plus_or_without_one(plus: str) -> None:
    text = config.compose([*DATA, f"{plus}data.sources.mine.columns.question=ticket_text"])
    assert OmegaConf.create(text).data.sources.mine.columns == {"question": "ticket_text"}
    with pytest.raises(PawlError, match="none of our names"):
        config.compose([*DATA, f"{plus}data.sources.mine.columns.qestion=t"])


def test_a_key_that_is_misspelt_deep_in_a_section_is_told_the_right_one() -> None:
    with pytest.raises(PawlError, match=r"did you mean agent\.llm\.model\?"):
        config.compose(["agent.llm.modl=x"])


DATA = ["data=jsonl", "data.sources.mine.path=data/local/rows.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "name", "own"),
    [
        (DATA, "jsonl-rows", False),
        (["data.max_rows=50"], "max_rows-50", False),
        (["model=tiny_random"], "tiny_random", False),
        ([*DATA, "experiment.name=mine"], "mine", False),
        ([*DATA, "experiment.hypothesis=mine are better"], "sums-and-reversals", True),
        (["experiment=banking77"], "banking77", True),
        (["train.learning_rate=5e-4"], "sums-and-reversals", True),
        (["data=sums_and_reversals"], "sums-and-reversals", True),  # what it was before
    ],
)
def test_other_data_another_model_or_other_items_take_no_hypothesis_of_the_former(
    given: list[str], name: str, own: bool
) -> None:
    experiment = OmegaConf.create(config.compose(given)).experiment
    assert experiment.name == name
    assert (experiment.hypothesis != "no hypothesis given") == own


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("conf", "stages/common"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "stages/__init__.py").touch()
    shutil.copy(ROOT / "params.yaml", tmp_path)
    return tmp_path


def run(folder: Path, *argv: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stages.common.config", *argv],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_kept_choice_stays_with_every_comment_and_the_same_command_again_changes_nothing(
    copy: Path,
) -> None:
    current, params = copy / "conf/experiment/current.yaml", copy / "params.yaml"
    before = current.read_text(encoding="utf-8")
    asked = [
        "--keep",
        "agent=llm",
        "agent.llm.base_url=http://127.0.0.1:8000/v1",
        "agent.llm.model=NAME",
        "train.learning_rate=5e-4",
    ]
    assert "current.yaml holds agent=llm" in run(copy, *asked)
    run(copy, "--check")
    kept, composed = current.read_text(encoding="utf-8"), params.read_bytes()
    assert [line for line in before.splitlines() if line not in kept.splitlines()] == []
    assert b"policy: llm" in composed and b"learning_rate: 0.0005" in composed
    assert run(copy, *asked) == "params.yaml is what conf/ composes to\n"
    assert (current.read_text(encoding="utf-8"), params.read_bytes()) == (kept, composed)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["agent=lmm"], "did you mean llm"),
        (["agent=llm", "agent.llm.modl=x"], "agent.llm.model"),
        (["train.learning_rate=-1"], "out of range"),
        (["+train.extra.hf_hub_token=swordfish"], "named like a secret"),
        (["experiment=smoke"], "cp conf/experiment/smoke.yaml"),
        (["~train.extra"], "removal"),
        (["hydra.run.dir=x"], "Hydra's own"),
    ],
)
def test_what_is_refused_is_not_kept(
    asked: list[str], words: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.common import keep

    for module in (config, keep):
        monkeypatch.setattr(module, "CONF", copy / "conf")
    before = (copy / "conf/experiment/current.yaml").read_bytes()
    with pytest.raises(PawlError, match=words):
        keep.keep(asked)
    assert (copy / "conf/experiment/current.yaml").read_bytes() == before


@pytest.mark.slow
def test_a_kept_change_of_data_drops_the_former_hypothesis_and_says_so(copy: Path) -> None:
    told = run(copy, "--keep", *DATA)
    assert (
        "experiment.name: sums-and-reversals -> jsonl-rows" in told
        and "no hypothesis given: say what you expect" in told
    )
    assert "no hypothesis given" in (copy / "conf/experiment/current.yaml").read_text(
        encoding="utf-8"
    )
    run(copy, "--check")


def test_other_data_chosen_in_a_file_by_hand_points_at_the_former_hypothesis(copy: Path) -> None:
    path = copy / "conf/config.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("model: smollm2_135m", "model: tiny_random"),
        encoding="utf-8",
    )
    assert "the hypothesis is still the former one" in run(copy)


@pytest.mark.slow
def test_overrides_that_are_not_kept_say_how_to_keep_them_and_so_does_the_check(copy: Path) -> None:
    assert "--keep" in run(
        copy, "agent=llm", "agent.llm.base_url=http://127.0.0.1:8000/v1", "agent.llm.model=NAME"
    )
    assert "--keep" in run(copy, "--check", code=1)
