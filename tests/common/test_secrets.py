"""No secret reaches params.yaml: whatever is spelled how, nothing there asks the environment, and
what looks like a secret is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from stages.common import config, secrets
from stages.common.errors import PawlError
from stages.common.files import ROOT, flatten
from tests.conftest import copy_repository, run_in

CANARY = "canary-Zr81"
SPELLINGS = [
    "${oc.env:PAWL_CANARY}",
    "${oc.${experiment.name}:PAWL_CANARY}",
    "${${experiment.parent}.${experiment.name}:PAWL_CANARY}",
    "a ${oc.decode:${oc.env:PAWL_CANARY}} b",
    "${oc.create:{a:${oc.env:PAWL_CANARY}}}",
    "${oc.select:x,${oc.env:PAWL_CANARY}}",
    "${oc.deprecated:x,${oc.env:PAWL_CANARY}}",
    "${ oc.env : PAWL_CANARY }",
    # escaped: it would stand in params.yaml as it is, for the next reader to resolve
    "\\${oc.env:PAWL_CANARY}",
    "${hydra:job.name}",
    "${now:%Y}",
]


def composed(key: str, value: object) -> DictConfig:
    """What conf/ composes to, with one more value in it, as Hydra would hand it on."""
    whole = OmegaConf.load(ROOT / "params.yaml")
    assert isinstance(whole, DictConfig)
    OmegaConf.update(whole, key, value)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("text", SPELLINGS)
@pytest.mark.parametrize("key", ["experiment.hypothesis", "train.extra.run_name"])
def test_no_value_of_the_environment_can_be_composed_whatever_the_spelling(
    key: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_CANARY", CANARY)
    whole = composed(key, text)
    whole.experiment.name, whole.experiment.parent = "env", "oc"
    with pytest.raises(PawlError) as refused:
        config.check(whole)
    assert "from the environment" in str(refused.value) and CANARY not in str(refused.value)
    assert refused.value.where.startswith(key.partition(".")[0])


@pytest.mark.parametrize(
    "override",
    ["model=${oc.env:PAWL_CANARY}", "experiment.hypothesis='${oc.${experiment.name}:PAWL_CANARY}'"],
)
def test_no_override_shows_or_writes_a_value_of_the_environment(
    override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_CANARY", CANARY)
    with pytest.raises(PawlError) as refused:
        config.compose(["experiment.name=env", override])
    assert CANARY not in str(refused.value)


def test_a_params_yaml_written_by_hand_reads_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_CANARY", CANARY)
    whole = OmegaConf.load(ROOT / "params.yaml")
    whole.experiment.hypothesis = "${oc.env:PAWL_CANARY}"
    OmegaConf.save(whole, tmp_path / "params.yaml")
    with pytest.raises(PawlError, match="from the environment"):
        config.read_params("experiment", path=tmp_path / "params.yaml")


COMPOSED_BY_DVC = """
import pathlib, sys
from dvc.utils.hydra import compose_and_dump
compose_and_dump(pathlib.Path("params.yaml"), f"{sys.argv[1]}/conf", None, "config", f"{sys.argv[1]}/conf/plugins", sys.argv[2:])
"""


@pytest.mark.slow
def test_dvc_composes_under_the_same_checks_and_writes_nothing(tmp_path: Path) -> None:
    """As `dvc exp run` calls it: in a process that knows nothing of Pawl but conf/plugins."""
    for override in (
        "experiment.hypothesis='${oc.${experiment.name}:PAWL_CANARY}'",
        "train.seed=-1",
    ):
        argv = [
            sys.executable,
            "-P",
            "-c",
            COMPOSED_BY_DVC,
            str(ROOT),
            "experiment.name=env",
            override,
        ]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PAWL_CANARY": CANARY},
        )
        assert done.returncode == 1 and CANARY not in done.stderr
        assert "PawlError" in done.stderr and not (tmp_path / "params.yaml").exists()


@pytest.mark.e2e
def test_dvc_exp_run_refuses_a_secret_and_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    folder = copy_repository(tmp_path / "clone")
    for override in (
        "experiment.hypothesis='${oc.${experiment.name}:PAWL_CANARY}'",
        f"+train.extra.hf_hub_token={CANARY}",
        "train.seed=-1",
    ):
        for more in ([], ["--queue"]):
            argv = ("dvc", "exp", "run", *more, "-S", "experiment.name=env", "-S", override)
            done = run_in(folder, *argv, ok=False, env={"PAWL_CANARY": CANARY})
            assert done.returncode and CANARY not in done.stdout + done.stderr
            assert not run_in(folder, "git", "status", "--porcelain").stdout
    stored = run_in(
        folder, "git", "log", "--all", "--reflog", "-p", "--", "params.yaml", ".dvc"
    ).stdout
    assert "params.yaml" in stored and CANARY not in stored


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.extra.hf_hub_token", CANARY),
        ("train.extra.swanlab_api_key", CANARY),
        ("data.sources.chain_sum.settings.password", CANARY),
        ("data.sources.chain_sum.settings.my-access-key", CANARY),
        ("model.inference.template.auth", CANARY),
        ("train.extra.run_name", "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"),
        ("train.extra.run_name", "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"),
        ("model.path", f"https://user:{CANARY}@example.org/x"),
        ("experiment.hypothesis", "it works with AKIAIOSFODNN7EXAMPLE in it"),
        ("experiment.hypothesis", "mQ3vX9pLw2TzR7kYb5NcJ8sHd4GfA6eU"),
        (
            "tracking.experiment",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        ),
        ("data.sources.chain_sum.settings.words", ["one", "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"]),
    ],
)
def test_what_looks_like_a_secret_is_refused_by_key_and_not_shown(key: str, value: object) -> None:
    with pytest.raises(PawlError) as refused:
        config.check(composed(key, value))
    assert refused.value.where == key and "params.yaml is committed" in str(refused.value)
    assert CANARY not in str(refused.value) and str(value) not in str(refused.value)


def test_the_override_of_a_secret_is_named_without_its_value() -> None:
    with pytest.raises(PawlError) as refused:
        config.compose([f"+train.extra.hf_hub_token={CANARY}"])
    assert "where: the override '+train.extra.hf_hub_token'" in str(
        refused.value
    ) and CANARY not in str(refused.value)


def test_a_secret_of_the_environment_is_refused_under_any_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "correct horse battery")
    with pytest.raises(PawlError, match=r"experiment\.hypothesis"):
        config.check(composed("experiment.hypothesis", "the correct horse battery wins"))


def test_no_value_that_conf_offers_looks_like_a_secret() -> None:
    for path in (ROOT / "conf").rglob("*.yaml"):
        for key, value in flatten(OmegaConf.to_container(OmegaConf.load(path))).items():
            assert not secrets.looks_secret(str(value)), f"{path}: {key}"
