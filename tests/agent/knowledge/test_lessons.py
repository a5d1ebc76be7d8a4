"""Lessons name the experiments that they rest on, and say no more than these show."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agent.knowledge import history, lessons
from agent.knowledge.history import Record
from agent.propose import situation


def record(
    number: int,
    status: str,
    key: str,
    before: Any,
    after: Any,
    low: float,
    high: float,
    **more: Any,
) -> Record:
    evidence = {"difference": (low + high) / 2, "low": low, "high": high, "accuracy": 0.5}
    return Record(
        number,
        "x",
        status,
        "h",
        "0001-x",
        changes=[{"key": key, "before": before, "after": after}],
        evidence=evidence,
        **more,
    )


RATE, RANK = "train.learning_rate", "train.lora_rank"


def test_each_rule_names_its_experiments_and_says_what_the_intervals_carry() -> None:
    records = [
        Record(1, "x", "KEPT", "h"),
        record(2, "KEPT", RATE, 0.001, 0.0005, 0.01, 0.2),
        record(3, "KEPT", RATE, 0.0005, 0.0003, 0.01, 0.1),
        record(4, "DISCARDED", RANK, 16, 8, -0.2, -0.1),
        record(5, "INCONCLUSIVE", RANK, 16, 32, -0.1, 0.1),
        record(6, "DISCARDED", RATE, 0.001, 0.002, -0.1, 0.1),
        record(7, "DISCARDED", RATE, 0.001, 0.003, 0.1, 0.2),
        Record(
            8,
            "x",
            "CRASHED",
            "h",
            "0001-x",
            changes=[{"key": RANK, "before": 16, "after": 64}],
            reason="out of memory | <b>",
        ),
    ]
    rules = lessons.distil(records)
    assert rules[0].startswith("train.learning\\_rate lowered helped: 2 of 2 kept") and rules[
        0
    ].endswith("(0002, 0003).")
    assert rules[1].startswith(
        "train.learning\\_rate raised had mixed effects: 0 of 2 kept"
    ) and rules[1].endswith("(0006, 0007).")
    assert any(
        rule.startswith("train.lora\\_rank lowered hurt") and "(0004)" in rule for rule in rules
    )
    assert any(
        rule.startswith("train.lora\\_rank raised was not shown to matter") and "(0005)" in rule
        for rule in rules
    )
    assert rules[-1].startswith("Crashed (out of memory \\| &lt;b&gt;)") and "(0008)" in rules[-1]


def test_several_changes_together_are_put_down_to_none_of_them() -> None:
    both = Record(
        2,
        "x",
        "KEPT",
        "h",
        "0001-x",
        changes=[{"key": RATE, "before": 1, "after": 2}, {"key": RANK, "before": 8, "after": 16}],
    )
    assert "which of them did it was not tried" in lessons.distil([both])[0]


@pytest.mark.e2e
def test_ten_thousand_experiments_are_read_and_weighed_in_time(
    tmp_path: Path, monkeypatch: Any
) -> None:
    from dataclasses import asdict

    from agent.run import experiment

    monkeypatch.setattr(history, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(experiment, "EXPERIMENTS", tmp_path)
    params = {"train.learning_rate": 0.001, "benchmark.seed": 1, "model.name": "m"}
    (tmp_path / "0001-x").mkdir()
    (tmp_path / "0001-x/params.yaml").write_text(
        "train: {learning_rate: 0.001}\nbenchmark: {seed: 1}\nmodel: {name: m}\n"
    )
    for number in range(1, 10_001):
        made = Record(
            number,
            "x",
            "DISCARDED",
            "h",
            "0001-x" if number > 1 else "",
            evidence={"accuracy": 0.5, "difference": 0.0},
        )
        if number > 1:
            made.changes.append({"key": RATE, "before": 0.001, "after": number / 1e6})
        (tmp_path / f"{number:04d}-x").mkdir(exist_ok=True)
        write_quickly(tmp_path / f"{number:04d}-x/record.json", asdict(made))
    begun = time.process_time()
    records, broken = history.read_history(tmp_path)
    read = time.process_time() - begun
    assert len(records) == 10_000 and not broken and read < 20, (
        "minutes, if each looked at all others"
    )
    begun = time.process_time()
    tried = situation.tried(params, records)
    assert (
        len(tried) == 10_000
        and tried[1999].differing == {RATE: 0.002}
        and tried[999].differing == {}
    )
    assert time.process_time() - begun < 20
    history.tree(records)
    lessons.distil(records)


def write_quickly(path: Path, value: Any) -> None:
    import json

    path.write_text(json.dumps(value))


def test_a_broken_lineage_tells_nothing() -> None:
    orphan = record(2, "DISCARDED", RATE, 1, 2, 0, 0)
    assert situation.tried({RATE: 1}, [orphan]) == []
