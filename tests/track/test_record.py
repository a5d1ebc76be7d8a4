"""What a run is logged as: the key says what it is, and nothing unseen, secret or nameless
gets in.
"""

from __future__ import annotations

import re

import pytest

from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, sha256_file, write_json
from stages.common.looks import take_over
from stages.common.reports.verdict import Verdict
from stages.common.schema import Experiment, Judge
from stages.judge.__main__ import judge_reports
from stages.track.__main__ import SECTIONS
from stages.track.metrics import REPORTS, mlflow_name
from stages.track.record import make_record
from tests.broken import variants
from tests.synthetic import write_losses, write_run


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path, n=20)
    judge_reports(
        tmp_path,
        Judge("rules", "rules", 0.05, 0.01, 0.2),
        Experiment("synthetic", "It helps.", "", "reports/baseline"),
    )
    return tmp_path


@pytest.fixture
def sections():
    params = read_params(*SECTIONS)
    return {name: getattr(params, name) for name in SECTIONS}


def change(path, **values):
    write_json(path, {**read_json(path), **values})


LOCK = """schema: '2.0'
stages:
  train:
    cmd: python -m stages.train
    outs:
    - {path: models/adapter, md5: ADAPTER.dir}
    - {path: reports/train.json, md5: 11111111111111111111111111111111}
  generate_data:
    cmd: python -m stages.generate_data
    outs:
    - {path: data/train, md5: 0123456789abcdef0123456789abcdef.dir}
  build_benchmark:
    cmd: python -m stages.build_benchmark
    outs:
    - {path: data/benchmark/val, md5: 1123456789abcdef0123456789abcdef.dir}
    - {path: data/benchmark/test, md5: 2123456789abcdef0123456789abcdef.dir}
  report:
    cmd: python -m stages.report
"""


def test_the_key_is_of_params_verdict_and_what_the_lock_says_came_out(run, sections):
    keys = []
    for adapter in ("a", "b", "a"):
        (run / "dvc.lock").write_text(LOCK.replace("ADAPTER", adapter))
        keys.append(make_record(run, sections).key)
    change(run / "reports" / "train.json", runtime_s=1.0, seconds=2.0, new_figure=7.0)
    (run / "dvc.lock").write_text((run / "dvc.lock").read_text().replace("1" * 32, "9" * 32))
    keys.append(make_record(run, sections).key)
    sections["tracking"].experiment = "elsewhere"
    keys.append(make_record(run, sections).key)
    change(run / "reports" / "judge.json", outcome="reject", accepted=False)
    keys.append(make_record(run, sections).key)
    assert keys[0] == keys[2] == keys[3] == keys[4] and len(set(keys)) == 3


def test_what_shapes_no_result_makes_no_new_run(run, sections):
    """What dvc.yaml tracks for a stage before report and track is a run's own; a timeout, a retry
    or a port is not.
    """
    (run / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    before = make_record(run, sections).key

    def after(section, name, value):
        old, place = getattr(sections[section], name), sections[section]
        setattr(place, name, value)
        key = make_record(run, sections).key
        setattr(place, name, old)
        return key

    for section, name, value in (
        ("launcher", "timeout_h", 1.0),
        ("launcher", "checkpoint_steps", 7),
        ("evaluate", "retries", 9),
        ("evaluate", "concurrency", 3),
        ("engine", "startup_timeout_s", 9.0),
        ("engine", "gpu_memory_utilization", 0.5),
        ("tracking", "experiment", "elsewhere"),
    ):
        assert after(section, name, value) == before, f"{section}.{name}"
    for section, name, value in (
        ("train", "learning_rate", 0.5),
        ("launcher", "workers", 2),
        ("evaluate", "seed", 9),
        ("engine", "extra_args", ["--x"]),
        ("judge", "alpha", 0.01),
        ("data", "seed", 99),
        ("model", "dtype", "float16"),
        ("experiment", "hypothesis", "another"),
    ):
        assert after(section, name, value) != before, f"{section}.{name}"


@pytest.mark.parametrize(
    "lock", ["", "[]", "stages: {a: {cmd: x}}", "stages: {a: {outs: [{path: x}]}}", "}{"]
)
def test_any_lock_gives_a_record(run, sections, lock):
    (run / "dvc.lock").write_text(lock)
    assert make_record(run, sections).datasets == []


def test_data_sets_are_named_with_their_hashes_and_uses(run, sections):
    (run / "dvc.lock").write_text(LOCK)
    found = {each.context: each for each in make_record(run, sections).datasets}
    assert {use: each.digest[0] for use, each in found.items()} == {
        "training": "0",
        "validation": "1",
        "test": "2",
    }
    assert (
        found["training"].rows == 634
        and found["validation"].rows == 40
        and all(len(each.digest) <= 36 for each in found.values())
    )


def test_a_sweep_and_a_session_are_parents(run, sections, monkeypatch):
    for name in ("PAWL_SESSION", "DVC_EXP_BASELINE_REV", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert make_record(run, sections).parent is None
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "c" * 40)
    monkeypatch.setenv("DVC_EXP_NAME", "fit-lynx")
    swept = make_record(run, sections)
    assert (
        swept.parent.kind == "sweep"
        and swept.parent.name == "sweep from ccccccc"
        and "fit-lynx" in swept.name
    )
    assert not swept.champion, "one of a sweep is no champion before it is adopted"
    monkeypatch.setenv("PAWL_SESSION", "2026-11-29 night")
    assert make_record(run, sections).parent.kind == "session"
    assert make_record(run, sections).key == swept.key


def test_the_page_is_logged_only_with_its_own_verdict(run, sections):
    page = run / "reports/index.html"
    page.write_text(
        f'<meta name="verdict-sha256" content="{sha256_file(run / "reports/judge.json")}">'
    )
    assert (page, "") in make_record(run, sections).artifacts
    change(run / "reports" / "judge.json", outcome="reject", accepted=False)
    assert (page, "") not in make_record(run, sections).artifacts


def test_what_was_measured_on_test_items_is_apart(run, sections):
    record = make_record(run, sections)
    places = {path.name: where for path, where in record.artifacts}
    assert {
        where.split("/")[0] for path, where in record.artifacts if path.name == "test.json"
    } == {"test"} and places["loss.csv"] == "reports"
    scores = [
        read_json(run / f"reports/{name}/test.json")["overall"]["accuracy"]
        for name in ("eval_test", "baseline")
    ]
    values = {metric.name: metric.value for metric in record.metrics}
    assert [values["test/overall/accuracy"], values["test/baseline/overall/accuracy"]] == scores
    assert not [name for name in values if "test" in name and not name.startswith("test/")]


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


def test_scores_evidence_and_losses_have_their_names_and_steps(run, sections):
    record = make_record(run, sections)
    steps = {}
    for metric in record.metrics:
        steps.setdefault(metric.name, []).append(metric.step)
    assert {
        "val/chain_sum/accuracy",
        "val/overall/lenient",
        "baseline_val/overall/accuracy",
        "evidence/overall/p_better",
    } <= set(steps)
    assert steps["loss/train"] == [5 * k for k in range(1, 17)] and steps["train/tokens_per_s"] == [
        80
    ]
    assert "human eyes" in record.tags["pawl.test_scores"]


def test_a_password_in_an_address_is_left_out(run, sections):
    sections["engine"].base_url = "https://user:hunter2@host/v1"
    assert make_record(run, sections).params["engine.base_url"] == "https://user:[removed]@host/v1"


def test_long_and_hostile_text_is_cut_and_visible(run, sections):
    sections["experiment"].hypothesis = "\x00\x1b[31m" + "x" * 100_000
    value = make_record(run, sections).params["experiment.hypothesis"]
    assert len(value) <= 6000 and "\x00" not in value and "\x1b" not in value


@pytest.mark.parametrize(
    "name", ["a/../b", "/", "", "a//b", "..", "sum(1)", "x" * 500, "ünï:cödé", "../../etc/passwd"]
)
def test_every_name_becomes_one_that_mlflow_takes(name):
    made = mlflow_name(name)
    assert (
        re.fullmatch(r"[/\w.\- :]{1,250}", made)
        and ".." not in made.split("/")
        and not made.startswith("/")
        and "//" not in made
    )


def test_different_names_stay_different():
    assert (
        mlflow_name("a(b") != mlflow_name("a)b")
        and mlflow_name("val/chain_sum/accuracy") == "val/chain_sum/accuracy"
    )


def test_a_missing_report_is_named(run, sections):
    (run / "reports" / "loss.csv").unlink()
    with pytest.raises(PawlError) as caught:
        make_record(run, sections)
    assert "loss.csv" in caught.value.where


def test_what_the_teacher_cost_is_logged(run, sections):
    usage = {"model": "m", "requests": 7, "prompt_tokens": 70, "output_tokens": 21, "cost": 0.5}
    change(run / "reports" / "generate_data.json", teacher={"strong": usage})
    found = {
        metric.name: metric.value
        for metric in make_record(run, sections).metrics
        if metric.name.startswith("teacher/")
    }
    assert found == {
        f"teacher/strong/{name}": float(value) for name, value in usage.items() if name != "model"
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_broken_in_one_place_is_logged_or_refused_and_never_a_bug(run, sections, name):
    assert make_record(run, sections).champion, "the control: nothing is broken yet"
    path = run / "reports" / name
    whole = read_json(path)
    for what, text in variants(whole, 12, seed=len(name)):
        path.write_text(text)
        try:
            record = make_record(run, sections)
            take_over([run], Verdict.read(run / "reports/judge.json"))
        except PawlError as error:
            assert error.where and str(error).count("\n") <= 2, what
            continue
        assert all(abs(metric.value) < 2**63 for metric in record.metrics), what
        if what.startswith(("outcome", "accepted", "guards")) and not re.match(
            r"guards(\.\d+\.(guard|detail))?: (?!removed)", what
        ):
            assert not record.champion or re.match(r"guards\.\d+: (removed|\{)", what), what


@pytest.mark.parametrize(
    "change_",
    [{"accepted": None}, {"guards": []}, {"guards": [{"guard": "complete", "passed": False}]}],
)
def test_an_acceptance_that_its_guards_do_not_carry_is_refused(run, sections, change_):
    change(run / "reports/judge.json", **change_)
    with pytest.raises(PawlError, match=r"accepted should be|guards did not all pass"):
        make_record(run, sections)
