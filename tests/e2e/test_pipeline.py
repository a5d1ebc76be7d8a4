"""The real pipeline, real engines and a real trainer, on a tiny random model: caching, kills,
sweeps, tracking.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, copy_repository, run_in

pytestmark = pytest.mark.e2e

STAGES = [
    "fetch_model",
    "build_benchmark",
    "generate_data",
    "baseline",
    "train",
    "eval_val",
    "eval_test",
    "judge",
    "report",
    "track",
]
# figures of time and memory are the only ones that may differ between two runs of the same thing
TIMES = {
    "runtime_s",
    "tokens_per_s",
    "tflop_per_s",
    "utilisation",
    "peak_memory_gib",
    "peak_gpu_memory_gib",
    "seconds",
}


def prepared(folder: Path) -> Path:
    """A smoke-sized copy of the repository that `make run` works in, with this environment."""
    copy_repository(folder, "smoke")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def make_run(folder: Path) -> str:
    return run_in(folder, "make", "run").stdout


def ran(output: str) -> list[str]:
    """The stages that DVC really ran, in name order (not those that it took from its cache)."""
    return sorted(re.findall(r"Running stage '(\w+)'", output))


def reports(folder: Path) -> dict[str, Any]:
    """Every report but the page and its timings, for comparison."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(part) for key, part in value.items() if key not in TIMES}
        return [timeless(part) for part in value] if isinstance(value, list) else value

    found: dict[str, Any] = {}
    for path in sorted((folder / "reports").rglob("*")):
        if path.suffix == ".json":
            found[str(path.relative_to(folder))] = timeless(
                json.loads(path.read_text(encoding="utf-8"))
            )
        elif path.suffix in (".jsonl", ".csv", ".md") and path.is_file():
            found[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
    return found


def edit_params(folder: Path, *overrides: str) -> None:
    run_in(folder, sys.executable, "-m", "stages.common.config", *overrides)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A finished run and its reports; the tests below go on in the same working tree, one after the
    other.
    """
    folder = prepared(tmp_path_factory.mktemp("smoke"))
    output = make_run(folder)
    assert ran(output) == sorted(STAGES)
    yield folder, reports(folder)


def test_a_run_reports_every_stage_and_every_item(smoke: tuple[Path, dict[str, Any]]) -> None:
    folder, found = smoke
    assert (folder / "reports/index.html").stat().st_size > 2000
    for name, split, items in (
        ("baseline", "val", 16),
        ("baseline", "test", 12),
        ("eval_val", "val", 16),
        ("eval_test", "test", 12),
    ):
        assert len(found[f"reports/{name}/{split}.jsonl"].splitlines()) == items
        assert found[f"reports/{name}/{split}.json"]["overall"]["n"] == items
    assert found["reports/judge.json"]["outcome"] in (
        "reject",
        "inconclusive",
    ), "a random model cannot be proven better"
    assert not list(folder.rglob("*.partial"))


def test_a_second_repro_runs_nothing(smoke: tuple[Path, dict[str, Any]]) -> None:
    folder, found = smoke
    assert ran(make_run(folder)) == []
    assert reports(folder) == found


def test_a_change_of_the_judge_runs_only_what_follows_it(
    smoke: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = smoke
    edit_params(folder, "judge.alpha=0.01")
    assert ran(run_in(folder, "dvc", "repro").stdout) == ["judge", "report", "track"]


def test_a_learning_rate_changed_and_changed_back_retrains_nothing_and_is_tracked_once(
    smoke: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = smoke
    edit_params(folder, "train.learning_rate=5e-4")
    assert "train" in ran(run_in(folder, "dvc", "repro").stdout)
    for overrides in ([], ["train.learning_rate=5e-4"], []):
        edit_params(folder, *overrides)
        back = ran(run_in(folder, "dvc", "repro").stdout)
        assert not set(back) & {
            "fetch_model",
            "build_benchmark",
            "generate_data",
            "baseline",
            "train",
            "eval_val",
            "eval_test",
        }
    assert reports(folder) == found
    runs = tracked(folder)
    assert len(runs) == 3, "three configurations, six repros"
    for run in runs:
        assert (
            run["status"] == "FINISHED"
            and run["complete"] == "true"
            and run["losses"] == [1, 2, 3, 4]
        )
        assert (
            {"data_card.md", "judge.json", "train.json", "loss.csv"} <= set(run["reports"])
            and run["page"]
            and run["inputs"] == 3
        )


TRACKED = """
import json, pathlib
from mlflow.tracking import MlflowClient
client = MlflowClient("sqlite:///" + str(pathlib.Path("mlflow.db").resolve()))
found = []
for run in client.search_runs([client.get_experiment_by_name("pawl").experiment_id]):
    id, tags = run.info.run_id, run.data.tags
    found.append({
        "id": id, "status": run.info.status, "complete": tags.get("pawl.complete"), "kind": tags.get("pawl.kind", "run"),
        "parent": tags.get("mlflow.parentRunId"), "rate": run.data.params.get("train.learning_rate"),
        "losses": sorted(point.step for point in client.get_metric_history(id, "loss/train")), "inputs": len(run.inputs.dataset_inputs),
        "reports": [pathlib.Path(each.path).name for each in client.list_artifacts(id, "reports")],
        "page": "index.html" in [each.path for each in client.list_artifacts(id)],
    })
print(json.dumps(found))
"""


def tracked(folder: Path) -> list[dict[str, Any]]:
    """Every run in the working tree's MLflow store."""
    return json.loads(run_in(folder, sys.executable, "-c", TRACKED).stdout.splitlines()[-1])


def test_an_experiment_that_is_not_proven_better_is_recorded_and_put_back(
    smoke: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = smoke
    edit_params(folder)
    run_in(folder, "dvc", "repro")
    run_in(folder, "git", "add", "-A")
    run_in(folder, "git", "commit", "-qm", "a run")
    params = (folder / "params.yaml").read_bytes()
    run_in(
        folder,
        sys.executable,
        "-m",
        "agent",
        "try",
        "train.learning_rate=5e-4",
        "--why",
        "half the rate; forgets less",
    )
    records = json.loads(run_in(folder, sys.executable, "-m", "agent", "history", "--json").stdout)
    assert len(records) == 2 and records[1]["status"] in ("DISCARDED", "INCONCLUSIVE")
    assert (
        records[1]["hypothesis"] == "half the rate; forgets less"
        and records[1]["evidence"]["n"] == 16
    )
    assert (folder / "params.yaml").read_bytes() == params and reports(folder) == found
    assert run_in(folder, "git", "status", "--porcelain").stdout == ""
    assert ran(run_in(folder, "dvc", "repro").stdout) == []
    again = run_in(
        folder,
        sys.executable,
        "-m",
        "agent",
        "try",
        "train.learning_rate=5e-4",
        "--why",
        "again",
        ok=False,
    )
    assert again.returncode == 1 and "0002" in again.stderr, "a repeat is refused by name"


def test_a_sweep_on_two_workers_is_trained_tracked_shown_and_adopted(
    smoke: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = smoke
    before = tracked(folder)
    queued = run_in(
        folder, "dvc", "exp", "run", "--queue", "-S", "train.learning_rate=choice(1e-4,3e-4)"
    ).stdout
    names = re.findall(r"Queued experiment '([\w-]+)'", queued)
    assert len(names) == 2
    run_in(folder, "dvc", "queue", "start", "-j", "2")
    deadline = time.time() + 900
    while time.time() < deadline:
        status = run_in(folder, "dvc", "queue", "status").stdout
        if not re.search(r"\b(Running|Queued)\b", status):
            break
        time.sleep(3)
    assert len(re.findall(r"\bSuccess\b", status)) == 2, (
        status + run_in(folder, "dvc", "queue", "logs", names[0], ok=False).stdout
    )

    runs = [run for run in tracked(folder) if run["id"] not in {run["id"] for run in before}]
    (parent,) = [run for run in runs if run["kind"] == "sweep"]
    children = [run for run in runs if run["parent"] == parent["id"]]
    assert {run["rate"] for run in children} == {"0.0001", "0.0003"} and len(runs) == 3, (
        "two workers at once lose no run"
    )
    assert all(run["complete"] == "true" and run["losses"] == [1, 2, 3, 4] for run in children)

    table = run_in(folder, "make", "compare").stdout
    assert all(name in table for name in names) and "train.learning_rate" in table, table
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 200, "it fits a screen"
    run_in(folder, "make", "page")
    page = (folder / "reports/index.html").read_text(encoding="utf-8")
    assert "Sweep from" in page and all(name in page for name in names)

    adopted = run_in(folder, sys.executable, "-m", "agent", "adopt", names[0])
    assert ran(adopted.stdout) == [
        "judge",
        "report",
        "track",
    ], "what the sweep had done is not done again"
    record = json.loads(run_in(folder, sys.executable, "-m", "agent", "history", "--json").stdout)[
        -1
    ]
    assert (
        record["slug"] == names[0]
        and record["status"] in ("DISCARDED", "INCONCLUSIVE")
        and record["evidence"]["n"] == 16
    )
    assert record["slug"] in (folder / "reports/index.html").read_text(encoding="utf-8"), (
        "the agent rebuilds the page for each record"
    )
    assert (
        run_in(folder, "git", "status", "--porcelain").stdout == ""
        and ran(run_in(folder, "dvc", "repro").stdout) == []
    )


def test_a_failed_dvc_exp_run_can_be_undone_by_both_commands_that_are_named_and_nothing_runs_again(
    smoke: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = smoke
    run_in(folder, "git", "add", "-A")
    run_in(folder, "git", "commit", "-qm", "before", "--allow-empty")
    adapter = (folder / "models/adapter/adapter_model.safetensors").read_bytes()
    for back in ("git restore params.yaml dvc.lock reports && dvc checkout", "make run"):
        failed = run_in(folder, "dvc", "exp", "run", "-S", "+train.extra.bogus=1", ok=False)
        assert failed.returncode and back in failed.stderr, "the commands are named where it fails"
        assert (
            not (folder / "models/adapter").exists()
            and run_in(folder, "git", "status", "--porcelain", "params.yaml").stdout
        )
        done = run_in(folder, "bash", "-c", back)
        assert (
            set(ran(done.stdout)) <= {"track"}
            and run_in(folder, "dvc", "status", "-q").returncode == 0
        )
        assert run_in(folder, "git", "status", "--porcelain").stdout == "", back
        assert (folder / "models/adapter/adapter_model.safetensors").read_bytes() == adapter


def test_dvc_shows_plots_and_differences_and_refuses_a_wrong_type(
    smoke: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = smoke
    shown = run_in(folder, "dvc", "plots", "show", "-o", ".pawl/plots")
    html = (folder / ".pawl/plots/index.html").read_text(encoding="utf-8")
    assert "WARNING" not in shown.stderr and "Loss by step" in html and '"split"' in html
    edit_params(folder, "judge.alpha=0.02")
    run_in(folder, "dvc", "repro")
    assert "evidence.alpha" in run_in(folder, "dvc", "metrics", "diff").stdout
    edit_params(folder)
    run_in(folder, "dvc", "repro")
    refused = run_in(folder, "dvc", "exp", "run", "-S", "train.learning_rate=abc", ok=False)
    assert refused.returncode != 0 and "learning_rate" in refused.stderr + refused.stdout


def living(folder: Path) -> list[str]:
    """Processes that work in `folder`."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(link.readlink()).startswith(str(folder)):
                found.append(
                    link.parent.name
                    + " "
                    + (link.parent / "cmdline").read_text().replace("\0", " ")[:120]
                )
        except OSError:
            continue
    return found


def kill_in_the_middle(
    folder: Path, stage: str, reached: Callable[[], bool], sign: int = signal.SIGKILL
) -> str:
    """Start `make run`, end its whole process group once `stage` has got as far as `reached` says,
    and give back what was printed.
    """
    log = folder / f".pawl/{stage}.killed.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "wb") as out:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.Popen(
            ["make", "run"],
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "PATH": path},
            # tests that a shell runs in the background ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    deadline = time.time() + 600
    while not (f"Running stage '{stage}'" in log.read_text(errors="replace") and reached()):
        assert process.poll() is None and time.time() < deadline, log.read_text(errors="replace")[
            -3000:
        ]
        time.sleep(0.05)
    os.killpg(process.pid, sign)
    # after Ctrl-C the failure is put into words, for which a busy machine takes its time
    process.wait(180)
    for _ in range(100):
        if not living(folder):
            return log.read_text(errors="replace")
        time.sleep(0.1)
    raise AssertionError(f"outlived the kill: {living(folder)}")


def unfinished(finished: Path, folder: Path, done: tuple[str, ...], *gone: str) -> Path:
    """A copy of a finished run in which the stages `done` are done, and nothing else is, nor in
    DVC's cache.
    """
    shutil.copytree(finished, folder, symlinks=True)
    edit_params(folder)
    shutil.rmtree(folder / ".dvc/cache/runs")
    lock = yaml.safe_load((folder / "dvc.lock").read_text())
    lock["stages"] = {name: lock["stages"][name] for name in done}
    (folder / "dvc.lock").write_text(yaml.safe_dump(lock))
    for name in (*gone, "models/adapter", ".pawl", "reports/eval_val", "reports/eval_test"):
        shutil.rmtree(folder / name)
    return folder


def test_ctrl_c_ends_everything_and_the_next_run_goes_on(
    smoke: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A terminal sends SIGINT to make, DVC and the stage; the trainer and the server are in
    sessions of their own.
    """
    finished, undisturbed = smoke
    done = ("fetch_model", "build_benchmark", "generate_data", "baseline")
    folder = unfinished(finished, tmp_path / "stopped", done)
    for stage, reached in (
        ("train", lambda: bool(list(folder.glob(".pawl/train/*/trainer_log.jsonl")))),
        ("eval_val", lambda: (folder / ".pawl/logs/serve-eval_val.log").exists()),
    ):
        told = kill_in_the_middle(folder, stage, reached, signal.SIGINT)
        assert (
            "stopped after" in told
            and "Traceback" not in told
            and f"{stage} failed, class ENV, stopped" in told
        )
    output = make_run(folder)
    assert not set(ran(output)) & {*done, "train"}
    found = reports(folder)
    assert found == undisturbed
    assert not list(folder.rglob("*.partial"))


def test_killed_in_three_stages_it_ends_as_if_undisturbed(
    smoke: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    finished, undisturbed = smoke
    done = ("fetch_model", "build_benchmark", "baseline")
    folder = unfinished(finished, tmp_path / "killed", done, "data/train")
    kill_in_the_middle(
        folder, "generate_data", lambda: (folder / ".pawl/generate_data.lock").exists()
    )
    assert not (folder / "data/train").exists()
    kill_in_the_middle(
        folder, "train", lambda: bool(list(folder.glob(".pawl/train/*/trainer_log.jsonl")))
    )
    assert not (folder / "models/adapter").exists()
    kill_in_the_middle(
        folder, "eval_val", lambda: (folder / ".pawl/logs/serve-eval_val.log").exists()
    )
    assert not (folder / "reports/eval_val/val.jsonl").exists()
    output = make_run(folder)
    assert not set(ran(output)) & {
        *done,
        "generate_data",
        "train",
    }, "what had succeeded before the kill is not done again"
    assert reports(folder) == undisturbed
    assert not list(folder.rglob("*.partial"))
