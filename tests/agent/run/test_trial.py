"""What a try is compared with, and what an error may tell. No pipeline runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.knowledge import history
from agent.knowledge.history import Record
from agent.propose import situation, survey
from agent.run import experiment, trial

NEW, OLD = "benchmark: {seed: 2}\n", "benchmark: {seed: 1}\n"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Three kept ones of two rulers, and a discarded one of the new ruler."""
    monkeypatch.setattr(experiment, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(history, "EXPERIMENTS", tmp_path)
    made = []
    for number, (ruler, status) in enumerate(
        [(NEW, "KEPT"), (NEW, "KEPT"), (OLD, "KEPT"), (NEW, "DISCARDED")], 1
    ):
        made.append(Record(number=number, slug="x", status=status, hypothesis="h"))
        experiment.write_settings(made[-1], "", ruler)
        experiment.write_record(made[-1])
    return made


@pytest.mark.parametrize(("seed", "expected"), [(2, "0002-x"), (1, "0003-x"), (3, "")])
def test_the_incumbent_is_the_newest_kept_of_the_same_ruler(
    saved: list[Record], seed: int, expected: str
) -> None:
    found = trial.incumbent_of(saved, {"benchmark.seed": seed})
    assert (found.folder if found else "") == expected


@pytest.mark.parametrize(
    ("params", "starts"),
    [
        ({"benchmark.seed": 2}, False),
        ({"benchmark.seed": 2, "evaluate.retries": 9}, False),
        ({"benchmark.seed": 3}, True),
    ],
)
def test_another_ruler_than_the_newest_verdicts_needs_a_new_start(
    saved: list[Record], monkeypatch: pytest.MonkeyPatch, params: dict[str, int], starts: bool
) -> None:
    monkeypatch.setattr(history, "read_history", lambda: (saved, []))
    assert bool(trial.why_start(params)) is starts


def test_the_composer_names_what_overrides_repeat_or_crashed_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        survey.settings, "resolve", lambda overrides: {"train.lora_rank": int(overrides[0][-1])}
    )
    seals = [survey.settings.fingerprint({"train.lora_rank": rank}) for rank in range(5)]
    records = [
        Record(1, "kept", "KEPT", "h", fingerprint=seals[1]),
        Record(2, "oom", "CRASHED", "h", fingerprint=seals[2], reason="out of memory"),
        Record(3, "stopped", "CRASHED", "h", fingerprint=seals[3], reason=history.INTERRUPTED),
    ]
    composer = survey.Composed(records)
    found = [composer.repeats([f"train.lora_rank={rank}"]) for rank in (1, 2, 3, 4)]
    assert found == [
        "this repeats 0001-kept (KEPT)",
        "this repeats 0002-oom (CRASHED, out of memory)",
        "",
        "",
    ]


def test_the_proposer_reads_only_experiments_that_the_present_ruler_measured(
    saved: list[Record],
) -> None:
    child = Record(number=5, slug="x", status="DISCARDED", hypothesis="h", parent="0001-x")
    other = Record(number=6, slug="x", status="DISCARDED", hypothesis="h", parent="0003-x")
    found = situation.comparable(
        {"benchmark.seed": 2}, [*saved, child, other, Record(7, "lost", "KEPT", "h")]
    )
    assert [record.number for record in found] == [1, 2, 4, 5]
