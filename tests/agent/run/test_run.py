"""The loop in real git and real DVC on the toy pipeline: what a run leaves, how it is stopped,
killed and taken up.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from agent.propose.situation import hardware
from tests.agent import kills
from tests.agent.kills import Outcome, outcome, trials
from tests.agent.toy_repo import SOURCE, Repo
from tests.fake_server import FakeServer

pytestmark = pytest.mark.e2e
TRIALS = trials(1)


@pytest.fixture(scope="session")
def expected(_started: tuple[Repo, str], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return kills.undisturbed(_started[0], tmp_path_factory.mktemp("undisturbed") / "repo")


def test_a_run_leaves_a_record_a_row_a_commit_and_papers_for_each_experiment(started: Repo) -> None:
    done = started.agent("run", "--trials", "2", "--policy", "optuna")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "the run ends: 2 experiments done" in done.stdout
        and "experiment 1 of 2, best 0.800 (0002)" in done.stdout
    )
    folders = started.folders()
    assert (
        len(folders) == 4
        and started.clean()
        and started.git("rev-list", "--count", "HEAD").strip() == "5"
    )
    for number, folder in enumerate(folders[2:], 1):
        record = json.loads((started.root / "experiments" / folder / "record.json").read_text())
        assert (record["policy"], record["trial"], record["status"]) == (
            "optuna",
            number,
            "DISCARDED",
        )
        assert (
            record["gate"]["at_least"] > 0.8
            and record["expected"]
            and record["cost"]["llm"] == 0
            and len(record["overrides"]) == 1
        )
        paper = json.loads((started.root / "experiments" / folder / "proposal.json").read_text())
        assert (
            paper["mode"] == "history"
            and paper["chosen"] == folder[5:]
            and len(paper["attempts"][0]["proposal"]["options"]) == 3
        )
        page = (started.root / "experiments" / folder / "proposal.md").read_text()
        assert page.startswith("Grounding: the finished experiments")
    lessons = (started.root / "experiments/lessons.md").read_text()
    assert all(f"({folder[:4]})" in lessons for folder in folders[1:])
    ran = (started.root / ".pawl/toy-runs.log").read_text().split("\n")
    # once each: what no change touched was reused
    assert sum(line.startswith(("baseline", "generate_data")) for line in ran) == 2


@pytest.mark.parametrize(
    ("state", "count"),
    [
        ("planning", 1),
        ("after composing", 1),
        ("running", 1),
        ("recording", 1),
        ("before the commit", 1),
    ],
)
def test_a_run_killed_in_a_state_and_taken_up_leaves_the_same_history(
    started: Repo, expected: Outcome, tmp_path: Path, state: str, count: int
) -> None:
    assert (
        kills.differences(kills.killed_at(started, tmp_path / "killed", state, count), expected)
        == []
    )


def test_a_stage_that_outlives_its_agent_is_ended_and_the_run_taken_up(
    started: Repo, expected: Outcome, tmp_path: Path
) -> None:
    assert kills.differences(kills.killed_in(started, tmp_path / "killed", "train"), expected) == []


def test_ctrl_c_leaves_the_experiment_planned_and_resume_goes_on(
    started: Repo, expected: Outcome
) -> None:
    process = started.start(*TRIALS, env={"TOY_SLEEP_S": "2"})
    assert process.stdout is not None
    for line in process.stdout:
        if ", train, " in line:
            process.send_signal(signal.SIGINT)
            break
    told, _ = process.communicate(timeout=60)
    assert (
        process.returncode == 130 and "stays planned" in told and "python -m agent resume" in told
    )
    assert "nothing half-written was kept" not in told and not started.clean()
    tried = started.agent("try", "train.learning_rate=2e-3", "--why", "x")
    assert tried.returncode == 1 and "fix:   python -m agent resume" in tried.stderr
    refused = started.agent(*TRIALS)
    assert (
        refused.returncode == 1
        and "was cut short" in refused.stderr
        and "python -m agent resume" in refused.stderr
    )
    resumed = started.agent("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert kills.differences(outcome(started), expected) == []
    assert "no run of the agent was cut short" in started.agent("resume").stderr


def test_restore_gives_a_run_up(started: Repo) -> None:
    before = started.state()
    killed = started.run(
        sys.executable,
        "-m",
        "tests.agent.kill_at",
        "running",
        "1",
        *TRIALS,
        env={"PYTHONPATH": f"{started.root}:{SOURCE}"},
    )
    assert killed.returncode == -signal.SIGKILL
    done = started.agent("restore")
    assert done.returncode == 0 and "is given up" in done.stdout, done.stderr
    assert started.state() == before and started.clean() and started.agent("resume").returncode == 1


def test_resume_notices_first_that_somebody_committed_meanwhile(started: Repo) -> None:
    env = {"PYTHONPATH": f"{started.root}:{SOURCE}"}
    assert (
        started.run(
            sys.executable, "-m", "tests.agent.kill_at", "running", "1", *TRIALS, env=env
        ).returncode
        == -signal.SIGKILL
    )
    started.git("commit", "-q", "--allow-empty", "-m", "mine")
    before, status, commit = (
        started.state(),
        started.git("status", "--porcelain"),
        started.git("rev-parse", "HEAD"),
    )
    refused = started.agent("resume")
    assert (
        refused.returncode == 1
        and f"switched branches since {started.folders()[2]} began" in refused.stderr
    )
    assert "python -m agent restore" in refused.stderr and "taking up" not in refused.stdout
    assert (
        started.state(),
        started.git("status", "--porcelain"),
        started.git("rev-parse", "HEAD"),
    ) == (before, status, commit)
    assert (
        started.agent("restore").returncode == 0
        and started.clean()
        and started.git("rev-parse", "HEAD") == commit
    )
    assert len(started.folders()) == 2


def test_a_run_begins_with_a_starting_point_that_is_in_its_account_and_is_none_of_its_trials(
    fresh: Repo,
) -> None:
    done = fresh.agent(*TRIALS)
    assert "the run ends: 1 experiments done" in done.stdout and ", best " in done.stdout, (
        done.stdout + done.stderr
    )
    start, tried = (
        json.loads((fresh.root / "experiments" / folder / "record.json").read_text())
        for folder in fresh.folders()
    )
    assert start["run"] == tried["run"] != "" and start["cost"] == {
        "llm": 0,
        "prompt_tokens": 0,
        "output_tokens": 0,
        "gpu_hours": 0,
    }
    assert (start["parent"], start["trial"], tried["trial"]) == ("", 0, 1) and fresh.clean()


def test_a_run_needs_a_clean_tree_on_a_branch_and_a_model_to_ask(started: Repo) -> None:
    (started.root / "conf/train/lora.yaml").write_text("mine: 1\n")
    dirty = started.agent(*TRIALS)
    assert dirty.returncode == 1 and "changes that no commit holds" in dirty.stderr
    started.git("checkout", "-q", "--", ".")
    assert "no language model is configured" in started.agent("run", "--policy", "llm").stderr
    started.git("checkout", "-q", "--detach")
    assert "HEAD is detached" in started.agent(*TRIALS).stderr


def test_a_look_that_was_taken_is_committed_with_the_next_record_and_never_dropped(
    started: Repo,
) -> None:
    looks = started.root / "experiments/looks.jsonl"
    looks.write_text('{"look": 1}\n')
    done = started.agent("try", "train.learning_rate=2e-3", "--why", "x")
    assert done.returncode == 0, done.stderr
    assert looks.read_text() == '{"look": 1}\n' and started.clean()
    assert "experiments/looks.jsonl" in started.git("show", "--name-only", "--format=", "HEAD")


def test_a_language_model_proposes_through_a_server_and_what_it_costs_is_counted(
    started: Repo,
) -> None:
    def answer(body: dict[str, object]) -> str:
        text = str(body["messages"])
        halved = "half-rank" if "0003-half-rank" not in text else "twice-rank"
        return json.dumps(proposal(halved))

    with FakeServer(answer=answer) as server:
        path = started.root / "conf/agent/optuna.yaml"
        text = (
            path.read_text()
            .replace("base_url: ''\n  model: ''", f"base_url: {server.url}\n  model: fake", 1)
            .replace("price_in: 0.0", "price_in: 1.0")
        )
        path.write_text(text.replace("min_tags: 6 ", "min_tags: 5 "))
        assert started.run(sys.executable, "-m", "stages.common.config").returncode == 0
        started.git("commit", "-qam", "a language model")
        done = started.agent("run", "--trials", "1", "--policy", "llm")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(
        (started.root / "experiments" / started.folders()[2] / "record.json").read_text()
    )
    assert (
        record["slug"] == "half-rank" and record["policy"] == "llm" and record["cost"]["llm"] > 0
    ), done.stdout
    assert (
        record["changes"] == [{"key": "train.lora_rank", "before": 16, "after": 8}]
        and server.requests == 2
    )  # one to see that it answers


def proposal(first: str) -> dict[str, object]:
    """A good proposal for the toy repository, with the sources that are always there."""
    why = (
        f"SmolLM2-135M-Instruct on 60 training rows has an accuracy of 0.8 with {hardware()}"
        " [situation]."
    )
    lora = "[lib: llamafactory==0.9.5 llamafactory.hparams.finetuning_args.LoraArguments.lora_rank]"
    quotes = [
        {
            "quote": "The intrinsic dimension for LoRA fine-tuning.",
            "citation": lora,
            "about": "framework",
        },
        {
            "quote": "train.lora_rank is 16 in the present configuration.",
            "citation": "[situation]",
            "about": "ours",
        },
    ]

    def option(name: str, after: int, other: str) -> dict[str, object]:
        return {
            "name": name,
            "kind": "parameter",
            "changes": [{"key": "train.lora_rank", "before": 16, "after": after}],
            "why": why,
            "several": "",
            "different": "",
            "evidence": quotes,
            "disagreement": "",
            "expected": "Fewer parameters forget less [unverified].",
            "effort": "low",
            "risk": "low",
            "pitfalls": [{"metric": "loss", "direction": "up", "step": 1}],
            "success": {"metric": "accuracy", "at_least": 0.85},
            "failure_plan": {"option": other, "when": "accuracy falls"},
        }

    return {
        "verified": (
            "It has a template [situation]. A higher rank and the format were not tried, a lower"
            " learning_rate was [situation]."
        ),
        "options": [option(first, 8, "twice-rank"), option("twice-rank", 32, first)],
    }
