"""A sweep's winner goes into experiments/ like any other experiment: tried against the incumbent,
kept only if it is proven better.
"""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest

from agent.run import adopt, workspace
from stages.common import failure, process
from stages.common.errors import PawlError
from tests.agent.toy_pipeline import figures, verdict


@pytest.fixture
def swept(started):
    """A repository in which `dvc exp run` has tried two learning rates, and whose tree holds the
    second one.
    """
    for name, rate in (("sad-newt", 0.002), ("fit-lynx", 0.0001)):
        done = started.run(
            "dvc", "exp", "run", "-q", "-n", name, "-S", f"train.learning_rate={rate}"
        )
        assert done.returncode == 0, done.stderr
    return started


@pytest.mark.e2e
def test_an_applied_winner_is_put_to_the_test_and_recorded(swept):
    assert not swept.clean(), "as after dvc exp apply"
    done = swept.agent("adopt", "fit-lynx")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((swept.root / "experiments/0003-fit-lynx/record.json").read_text())
    assert record["status"] == "KEPT" and record["incumbent"].startswith("experiments/0002")
    assert record["changes"] == [{"key": "train.learning_rate", "before": 0.0005, "after": 0.0001}]
    assert (
        "one of 2 of its sweep" in record["hypothesis"] and "accuracy 0.975" in record["hypothesis"]
    )
    assert "0.0001" in (swept.root / "conf/experiment/current.yaml").read_text() and swept.clean()
    again = swept.agent("adopt", "fit-lynx")
    assert again.returncode == 1 and "changed nothing" in again.stderr


@pytest.mark.e2e
def test_one_that_is_no_better_is_recorded_and_put_back(swept):
    swept.git("checkout", "-q", "--", ".")
    swept.run("dvc", "checkout", "-q", "--force")
    before = swept.state()
    done = swept.agent("adopt", "sad-newt", "--why", "a large step is enough")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((swept.root / "experiments/0003-sad-newt/record.json").read_text())
    assert record["status"] == "DISCARDED" and record["hypothesis"] == "a large step is enough"
    assert swept.state() == before and swept.clean()


@pytest.mark.e2e
def test_a_change_of_somebodys_own_is_not_put_back(swept):
    (swept.root / "prompts").mkdir(exist_ok=True)
    (swept.root / "conf/train/lora.yaml").open("a").write("# mine\n")
    done = swept.agent("adopt", "fit-lynx")
    assert done.returncode == 1 and "conf/train/lora.yaml" in done.stderr
    assert "# mine" in (swept.root / "conf/train/lora.yaml").read_text()


@pytest.fixture
def applied(monkeypatch, tmp_path):
    """A repository as `dvc exp apply` leaves it, and the commit of the experiment that was
    applied.
    """
    for module in (adopt, workspace, process, failure):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(adopt, "LOOKS", tmp_path / "experiments/looks.jsonl")
    monkeypatch.setattr(workspace, "_DVC", ["true"])
    for name in ("experiments", "reports", ".pawl"):
        (tmp_path / name).mkdir()

    def write(rate):
        (tmp_path / "params.yaml").write_text(f"train: {{learning_rate: {rate}}}\n")
        (tmp_path / "reports/index.html").write_text(f"the page of {rate}")

    write(1)
    (tmp_path / "experiments/looks.jsonl").write_text("1\n")
    (tmp_path / ".gitignore").write_text(".pawl\n")
    workspace.git("init", "-q")
    commit = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "commit", "-qm", "x")
    workspace.git("add", "."), workspace.git(*commit)
    write(2)
    workspace.git(*commit, "-a")
    experiment = workspace.head()
    workspace.git("reset", "-q", "--hard", "HEAD^")
    write(2)
    return tmp_path, experiment


@pytest.mark.parametrize(
    "name", ["no-such", "--help-me", "HEAD~99", "-x", "../../etc/passwd", "x y", ""]
)
def test_an_unknown_name_is_a_clear_error_and_no_failed_stage(applied, name):
    with pytest.raises(PawlError, match="no such experiment"):
        adopt.command(argparse.Namespace(name=name, why=""))
    assert not (applied[0] / ".pawl/failure").exists(), "a mistyped name is nothing to explain"


def test_what_was_applied_is_put_back_but_for_looks_and_the_page(applied):
    root, experiment = applied
    (root / "experiments/looks.jsonl").write_text("1\n2\n")
    (root / "reports/index.html").write_text("a newer page")
    adopt.put_back_applied(experiment)
    assert workspace.changed() == ["experiments/looks.jsonl", "reports/index.html"]
    assert (root / "experiments/looks.jsonl").read_text() == "1\n2\n" and (
        root / "reports/index.html"
    ).read_text() == "a newer page"
    assert "learning_rate: 1" in (root / "params.yaml").read_text()
    (root / "params.yaml").write_text("mine")
    adopt.put_back_applied(experiment)
    assert (root / "params.yaml").read_text() == "mine"


def test_the_looks_that_a_sweep_took_are_taken_over_once(monkeypatch, tmp_path):
    held = {
        "a": '{"candidate": "1"}\n{"candidate": "2"}\n',
        "b": '{"looks": 2}\n{"candidate": "1"}\n{"candidate": "3"}\n',
    }
    monkeypatch.setattr(adopt, "LOOKS", tmp_path / "experiments/looks.jsonl")
    monkeypatch.setattr(adopt, "ROOT", tmp_path)
    monkeypatch.setattr(
        adopt,
        "_looks",
        lambda commits: (line for commit in commits for line in held[commit].splitlines()),
    )
    (tmp_path / "experiments").mkdir()
    adopt.LOOKS.write_text('{"candidate": "1"}\n')
    assert adopt.take_over_looks(["a", "b"]) == 2 and adopt.take_over_looks(["a", "b"]) == 0
    found = map(json.loads, adopt.LOOKS.read_text().splitlines())
    assert [line["candidate"] for line in found if "candidate" in line] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "value", ["a b", "it's", 'say "x"', "a\\b", "1e-4", "true", "null", "[1]", "a,b", "${x}", ""]
)
def test_a_value_survives_the_command_line(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(f"model.path={adopt._value(value)}").value()
    assert str(parsed.text if hasattr(parsed, "text") else parsed) == value


@pytest.mark.parametrize(
    ("primary", "told"),
    [
        ("", "accuracy 0.500, +0.000 on 80 validation items"),
        ("sums", "accuracy 0.750, +0.250 on 40 validation items of sums"),
    ],
)
def test_what_is_claimed_has_the_figures_that_decided(monkeypatch, primary, told):
    whole = verdict(
        figures(0.5, 0.5) | {"n": 80}, "accept", name="one", incumbent="reports/baseline"
    )
    whole["evidence"] |= {
        "primary": primary,
        "benchmarks": {"sums": figures(0.75, 0.5) | {"n": 40}},
    }
    held = [json.dumps(whole), "[]", "{}", "{"]
    monkeypatch.setattr(workspace, "call", lambda argv, check: SimpleNamespace(stdout=held[0]))
    assert adopt.hypothesis("fit-lynx", "c" * 40, ["c" * 40]).endswith(told)
    while len(held) > 1:
        del held[0]
        assert adopt.hypothesis("fit-lynx", "c" * 40, ["c" * 40]).endswith("no figures")


def test_a_ruler_that_differs_is_refused(monkeypatch):
    monkeypatch.setattr(
        adopt.settings, "require_composed", lambda: {"benchmark.seed": 1, "train.seed": 1}
    )
    monkeypatch.setattr(
        adopt, "_show", lambda commit, path: "benchmark: {seed: 2}\ntrain: {seed: 1}\n"
    )
    with pytest.raises(PawlError, match="may not change benchmark"):
        adopt.settings.parse(adopt.overrides("c" * 40))


def test_a_refusal_is_no_failure_of_a_stage_that_would_hide_the_real_one(monkeypatch, tmp_path):
    def refuse(name: str, why: str) -> None:
        raise PawlError("no such experiment")

    for module in (process, failure):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(adopt, "adopt", refuse)
    with pytest.raises(PawlError):
        adopt.command(argparse.Namespace(name="x", why=""))
    assert not list(tmp_path.glob(".pawl/failure/*"))
