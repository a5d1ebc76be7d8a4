"""The sample of rows that a person reads: whatever the rows are, and once for each version of
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.propose import audit
from tests.agent.scenes import GOOD, broken

ASKED = broken(kind="data_quality", changes=())
USER = {"role": "user", "content": "Who made it?"}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    monkeypatch.setattr(audit, "FOLDER", tmp_path / ".pawl")
    (tmp_path / "data/train").mkdir(parents=True)
    return tmp_path / "data/train/train.jsonl"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "once upon"}, "once upon"),
        (
            {"messages": [USER, {"role": "assistant", "content": "Ada did."}]},
            "Who made it? / Ada did.",
        ),
        (
            {
                "messages": [USER],
                "chosen": {"role": "assistant", "content": "Ada"},
                "rejected": {"role": "assistant", "content": "Bob"},
            },
            "Who made it? / chosen: Ada / rejected: Bob",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "Bob"}], "label": False},
            "Who made it? / bad: Bob",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "Ada"}], "label": True},
            "Who made it? / good: Ada",
        ),
        ({"messages": "broken", "chosen": 7}, "chosen: 7"),
        ({"messages": [None, 3]}, ""),
    ],
)
def test_an_audit_shows_question_and_answers_of_every_kind_of_row(
    rows: Path, row: dict[str, Any], expected: str
) -> None:
    rows.write_text(json.dumps(row) + "\n")
    assert audit.audit(ASKED, 1) == ".pawl/audit.md"
    text = (rows.parents[2] / ".pawl/audit.md").read_text()
    assert f"- {expected}" in text


def test_names_that_the_question_does_not_give_are_listed(rows: Path) -> None:
    answer = {"role": "assistant", "content": "It was made by Ada Lovelace in 1843."}
    rows.write_text(json.dumps({"messages": [USER, answer]}) + "\n")
    audit.audit(ASKED, 1)
    assert (
        "not in the question: Ada Lovelace, 1843"
        in (rows.parents[2] / ".pawl/audit.md").read_text()
    )


def test_an_audit_is_made_and_told_once_for_each_version_of_the_rows(rows: Path) -> None:
    rows.write_text('{"text": "a"}\n')
    assert audit.audit(GOOD, 1) == ""
    assert [audit.audit(ASKED, 1) for _ in range(3)] == [".pawl/audit.md", "", ""]
    rows.write_text('{"text": "b"}\n')
    assert audit.audit(ASKED, 1) == ".pawl/audit.md"


def test_a_hostile_row_stays_a_line_of_text(rows: Path) -> None:
    rows.write_text(json.dumps({"text": "<script>x</script>\n# heading\n[a](http://b)"}) + "\n")
    audit.audit(ASKED, 1)
    text = (rows.parents[2] / ".pawl/audit.md").read_text()
    assert (
        "<script" not in text
        and "\n# heading" not in text
        and "- [a" not in text
        and " [a](" not in text
    )
