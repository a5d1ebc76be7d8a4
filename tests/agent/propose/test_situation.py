"""What the proposer is shown: the state with what matters first, and of the judge's words what no
validation item stands behind.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from agent.knowledge import history, lessons
from agent.knowledge.grounding import Knowledge
from agent.knowledge.history import Record
from agent.propose import policy_llm, situation, words
from agent.run import experiment, settings
from stages.common.errors import PawlError
from stages.common.reports.verdict import Verdict
from tests.agent import toy_pipeline
from tests.agent.scenes import KNOWN

CURVE = {"shape": "falling", "learning_rate": "too high", "overfitting": True, "logged": 40}
REASON = "On chain_sum 12 of 200 items are wrong in content. Next, work on carrying digits."


def judged(**changes: Any) -> Verdict:
    value = toy_pipeline.verdict(
        toy_pipeline.figures(0.3, 0.5), "reject", name="x", incumbent="reports/baseline"
    )
    return Verdict.check(value | {"curve": CURVE} | changes, "reports/judge.json")


def told(record: Record) -> str:
    state = situation.passages(KNOWN.situation, [record])
    return "\n".join(
        [words.history_for([record], KNOWN, 9000)["text"], *(each.text for each in state)]
    )


def test_the_reading_of_the_training_loss_reaches_the_proposer() -> None:
    record = Record(
        2, "x", "DISCARDED", "h", curve=experiment.curve(judged()), evidence={"accuracy": 0.5}
    )
    text = told(record)
    for part in (
        "the learning rate looks too high",
        "fewer epochs, a lower rate or dropout",
        "more epochs or a higher rate",
    ):
        assert text.count(part) == 2  # in the history, and where it can be quoted
    assert "By its training loss" not in told(
        replace(record, curve={"shape": "converged", "learning_rate": "", "overfitting": False})
    )


def test_what_the_judge_says_to_a_crash_reaches_the_proposer() -> None:
    assert "halve the batch" in told(
        Record(2, "x", "CRASHED", "h", reason="out of memory", words="OOM: halve the batch.")
    )


def test_the_judges_reason_reaches_no_record_that_the_proposer_reads() -> None:
    words = {"Reason": REASON, "Code Summary": REASON, "Decision": "no"}
    verdict = judged(words=words, curve={**CURVE, "note": REASON})
    record = Record(
        2,
        "x",
        "DISCARDED",
        "h",
        curve=experiment.curve(verdict),
        evidence=experiment.summary(verdict.evidence),
    )
    assert "carrying digits" not in told(record) and "carrying" not in str(asdict(record))
    assert "For people" in lessons._HEAD


@pytest.mark.parametrize(
    "curve", [[], "falling", {**CURVE, "shape": REASON}, {**CURVE, "learning_rate": "x" * 5000}]
)
def test_a_reading_of_the_loss_in_other_words_is_refused(curve: Any) -> None:
    with pytest.raises(PawlError, match="curve"):
        judged(curve=curve)


SOURCE: dict[str, Any] = {"kind": "file", "repo": "", "columns": {}, "count": 3}
PARAMS = {
    **{f"data.sources.s{k}.{name}": value for k in range(40) for name, value in SOURCE.items()},
    "model.name": "m",
    "model.path": "",
    "train.learning_rate": 0.001,
    "train.lora_dropout": 0.0,
    "train.template": "",
    "judge.alpha": 0.05,
}


def test_the_state_begins_with_what_matters_and_leaves_out_what_is_empty() -> None:
    keys = situation.shown_keys(PARAMS)
    assert (
        keys[:2] == ["train.learning_rate", "train.lora_dropout"]
        and keys[2] == "data.sources.s0.count"
    )
    assert not {
        "train.template",
        "model.path",
        "data.sources.s0.repo",
        "data.sources.s0.columns",
        "judge.alpha",
    } & set(keys)
    assert "model.name" in keys


@pytest.mark.parametrize("room", [0, 300, 1000, 100_000])
def test_a_parameter_of_the_training_is_never_cut(room: int) -> None:
    lines = [
        "The model is m.",
        *(
            f"{key} is {PARAMS[key]} in the present configuration."
            for key in situation.shown_keys(PARAMS)
        ),
    ]
    text = situation.cut("\n".join(lines), room)
    assert (
        "train.learning_rate is 0.001" in text
        and "train.lora_dropout is 0.0" in text
        and text.startswith("The model is m.")
    )
    assert len(text) <= max(room, 200)


def test_the_prompt_shows_the_learning_rate_whatever_the_sources() -> None:
    lines = [f"{key} is {PARAMS[key]} {'x' * 300}." for key in situation.shown_keys(PARAMS)]
    known = replace(
        KNOWN,
        situation=replace(KNOWN.situation, text="\n".join(lines)),
        agent=replace(KNOWN.agent, prompt_tokens=2000),
    )
    asked = policy_llm.begin(known, Knowledge("web", []), [], "r", 1).messages[1]["content"]
    assert "train.learning_rate is 0.001" in asked


def test_settings_set_by_hand_are_no_experiments_change() -> None:
    before = {
        "judge.kind": "rules",
        "agent.policy": "optuna",
        "evaluate.retries": 1,
        "launcher.workers": 0,
        "train.learning_rate": 0.001,
        "data.teacher.strong.concurrency": 4,
        "tracking.kind": "none",
        "train.lora_rank": 16,
    }
    after = {
        **before,
        "judge.kind": "llm",
        "agent.policy": "llm",
        "evaluate.retries": 9,
        "launcher.workers": 2,
        "train.lora_rank": 32,
        "data.teacher.strong.concurrency": 8,
        "tracking.kind": "mlflow",
    }
    assert [each["key"] for each in settings.differences(before, after, ["train.lora_rank"])] == [
        "train.lora_rank"
    ]
    assert [each["key"] for each in settings.differences(before, after, ["launcher.workers"])] == [
        "launcher.workers",
        "train.lora_rank",
    ]


def test_an_older_record_shows_its_own_change_everywhere() -> None:
    carried = [{"key": f"judge.llm.k{k}", "before": "", "after": "x"} for k in range(5)]
    own = {"key": "train.lora_rank", "before": 16, "after": 32}
    evidence = {"accuracy": 0.5, "difference": 0.1}
    record = Record(
        2,
        "x",
        "KEPT",
        "h",
        "0001-x",
        changes=[*carried, own],
        overrides=["train.lora_rank=32"],
        evidence=evidence,
    )
    assert history.changes(record) == "train.lora_rank 16 → 32"
    assert "train.lora\\_rank raised" in lessons.distil([record])[0]
    assert "judge" not in told(record) and "more" not in history.tree([record])[0]
