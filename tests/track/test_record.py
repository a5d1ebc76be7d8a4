"""What a run is logged as: the key says what it is, and nothing unseen, secret or nameless gets in."""

from __future__ import annotations

import re

import pytest

from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import read_json, write_json
from stages.common.schema import Experiment, Judge
from stages.judge.__main__ import judge_reports
from stages.track.__main__ import SECTIONS
from stages.track.record import make_record, mlflow_name
from tests.synthetic import write_losses, write_run


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path, n=20)
    judge_reports(tmp_path, Judge("rules", "rules", 0.05, 0.01, 0.2), Experiment("synthetic", "It helps.", "", "reports/baseline"))
    return tmp_path


@pytest.fixture
def sections():
    params = read_params(*SECTIONS)
    return {name: getattr(params, name) for name in SECTIONS}


def change(path, **values):
    write_json(path, {**read_json(path), **values})


def test_the_key_does_not_depend_on_times_or_place(run, sections, tmp_path_factory):
    first = make_record(run, sections).key
    for name in ("eval_val/val.json", "eval_test/test.json", "baseline/val.json", "train.json"):
        change(run / "reports" / name, runtime_s=9999.0)
    change(run / "reports" / "train.json", tokens_per_s=1.0, peak_memory_gib=99.0)
    elsewhere = tmp_path_factory.mktemp("clone")
    (run / "reports").rename(elsewhere / "reports")
    assert make_record(elsewhere, sections).key == first


def test_the_key_changes_with_params_results_and_losses(run, sections):
    keys = {make_record(run, sections).key}
    sections["train"].learning_rate /= 2
    keys.add(make_record(run, sections).key)
    change(run / "reports" / "train.json", final_loss=0.5)
    keys.add(make_record(run, sections).key)
    write_losses(run / "reports" / "loss.csv", [1.0, 0.5])
    keys.add(make_record(run, sections).key)
    assert len(keys) == 4


def test_test_scores_are_apart_and_losses_have_their_steps(run, sections):
    record = make_record(run, sections)
    names = {metric.name for metric in record.metrics}
    scores = read_json(run / "reports/eval_test/test.json")["overall"]["accuracy"]
    assert [m.value for m in record.metrics if m.name == "test/overall/accuracy"] == [scores]
    assert {"val/chain_sum/accuracy", "val/overall/lenient", "baseline_val/overall/accuracy", "evidence/overall/p_better"} <= names
    assert "human eyes" in record.tags["pawl.test_scores"]
    assert [m.step for m in record.metrics if m.name == "loss/train"] == [5 * k for k in range(1, 17)]


def test_a_password_in_an_address_is_left_out(run, sections):
    sections["engine"].base_url = "https://user:hunter2@host/v1"
    assert make_record(run, sections).params["engine.base_url"] == "https://***@host/v1"


def test_long_and_hostile_text_is_cut_and_visible(run, sections):
    sections["experiment"].hypothesis = "\x00\x1b[31m" + "x" * 100_000
    value = make_record(run, sections).params["experiment.hypothesis"]
    assert len(value) <= 6000 and "\x00" not in value and "\x1b" not in value


@pytest.mark.parametrize("name", ["a/../b", "/", "", "a//b", "..", "sum(1)", "x" * 500, "ünï:cödé", "../../etc/passwd"])
def test_every_name_becomes_one_that_mlflow_takes(name):
    made = mlflow_name(name)
    assert re.fullmatch(r"[/\w.\- :]{1,250}", made) and ".." not in made.split("/") and not made.startswith("/") and "//" not in made


def test_different_names_stay_different():
    assert mlflow_name("a(b") != mlflow_name("a)b") and mlflow_name("val/chain_sum/accuracy") == "val/chain_sum/accuracy"


def test_a_missing_report_is_named(run, sections):
    (run / "reports" / "loss.csv").unlink()
    with pytest.raises(PawlError) as caught:
        make_record(run, sections)
    assert "loss.csv" in caught.value.where


def test_what_the_teacher_cost_is_logged(run, sections):
    usage = {"model": "m", "requests": 7, "prompt_tokens": 70, "output_tokens": 21, "cost": 0.5}
    change(run / "reports" / "generate_data.json", teacher={"strong": usage})
    found = {metric.name: metric.value for metric in make_record(run, sections).metrics if metric.name.startswith("teacher/")}
    assert found == {f"teacher/strong/{name}": float(value) for name, value in usage.items() if name != "model"}
