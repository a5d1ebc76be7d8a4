"""Reading and showing what was tried, from folders alone."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agent.knowledge import history
from agent.knowledge.history import Record, fit, read_history, tree, write_journal

HOSTILE = [
    "; rm -rf /",
    "$(x)",
    "| a | b",
    "</td><script>alert(1)</script>",
    "a\nb\r\n| c",
    "-n",
    "`x`",
    "[a](http://x)",
    "\x1b[31mred",
    "\u202egnp",
    "😀" * 20,
    "x" * 10_000,
]


def record(number: int, status: str = "DISCARDED", parent: str = "", **more: object) -> Record:
    evidence = {
        "n": 400,
        "accuracy": 0.712,
        "incumbent_accuracy": 0.7,
        "difference": 0.012,
        "low": -0.02,
        "high": 0.04,
        "p": 0.0002,
    }
    changes = [{"key": "train.learning_rate", "before": 0.001, "after": 0.0005}]
    whole = Record(
        number=number,
        slug=f"try-{number}",
        status=status,
        hypothesis=f"hypothesis {number}",
        parent=parent,
        evidence=evidence,
        changes=changes,
    )
    return replace(whole, **more)  # type: ignore[arg-type]


def save(folder: Path, one: Record) -> None:
    (folder / one.folder).mkdir(parents=True)
    (folder / one.folder / "record.json").write_text(json.dumps(asdict(one)))


def test_records_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    records = [
        record(1, "KEPT"),
        record(2, parent="0001-try-1"),
        record(10, "CRASHED", reason="interrupted"),
    ]
    for one in reversed(records):
        save(tmp_path, one)
    assert read_history(tmp_path) == (records, [])
    assert history.next_number(tmp_path) == 11


def test_no_folder_is_an_empty_history(tmp_path: Path) -> None:
    assert (
        read_history(tmp_path / "none") == ([], []) and history.next_number(tmp_path / "none") == 1
    )


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "null", '{"number": 2}', '{"number": "2"}', "[" * 100_000, b"\xff\xfe"],
)
def test_a_broken_folder_is_named_and_the_rest_is_shown(
    tmp_path: Path, content: str | bytes
) -> None:
    save(tmp_path, record(1))
    (tmp_path / "0002-broken").mkdir()
    (tmp_path / "0002-broken/record.json").write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "0003-empty").mkdir()
    records, broken = read_history(tmp_path)
    assert [one.number for one in records] == [1]
    assert [line.split()[0] for line in broken] == ["0002-broken", "0003-empty", "notes"]
    assert history.next_number(tmp_path) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"status": "GREAT"},
        {"evidence": []},
        {"changes": ["x"]},
        {"number": True},
        {"slug": "other"},
        {"hypothesis": 1},
    ],
)
def test_a_record_of_the_wrong_form_is_not_believed(
    tmp_path: Path, change: dict[str, object]
) -> None:
    save(tmp_path, record(1))
    (tmp_path / "0001-try-1/record.json").write_text(json.dumps(asdict(record(1)) | change))
    records, broken = read_history(tmp_path)
    assert not records and len(broken) == 1


def test_a_record_of_a_later_version_is_read(tmp_path: Path) -> None:
    save(tmp_path, record(1))
    (tmp_path / "0001-try-1/record.json").write_text(
        json.dumps(asdict(record(1)) | {"cost_usd": 3})
    )
    assert read_history(tmp_path) == ([record(1)], [])


def test_a_thousand_experiments_are_read_and_drawn_well_under_two_seconds(tmp_path: Path) -> None:
    for number in range(1, 1001):
        kept = (number - 2) // 10 * 10 + 1  # each tenth is kept, the others hang from it
        parent = f"{kept:04d}-try-{kept}" if number > 1 else ""
        save(tmp_path, record(number, "KEPT" if number % 10 == 1 else "DISCARDED", parent))
    begun = time.process_time()
    records, broken = read_history(tmp_path)
    lines = tree(records, 100)
    assert time.process_time() - begun < 10
    assert len(lines) == 1000 and not broken and all(len(line) <= 100 for line in lines)


def test_the_line_of_kept_ones_goes_straight_down_and_tries_hang_from_it() -> None:
    first, third = "0001-try-1", "0003-try-3"
    records = [
        record(1, "KEPT"),
        record(2, parent=first),
        record(3, "KEPT", first),
        record(4, "CRASHED", third, reason="timeout"),
    ]
    lines = tree([*records, record(5, "INCONCLUSIVE", "0009-gone")], 200)
    assert [line[:8] for line in lines] == [
        "●   0001",
        "├─  0002",
        "●   0003",
        "├─  0004",
        "●   0005",
    ]
    assert (
        "crashed: timeout" in lines[3]
        and "+0.012 [-0.020, +0.040]" in lines[0]
        and "DISCARDED" in lines[1]
    )


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_line_fits_the_terminal_and_steers_nothing(width: int, text: str) -> None:
    (line,) = tree([record(1, hypothesis=text)], width)
    assert len(line) <= width and "\n" not in line and "\x1b" not in line and "\u202e" not in line


def test_wide_characters_count_twice() -> None:
    assert (
        fit("漢字漢字", 8) == "漢字漢字"
        and fit("漢字漢字漢", 8) == "漢字漢…"
        and fit("abcde", 5) == "abcde"
        and fit("abcdef", 5) == "abcd…"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_the_journal_keeps_text_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(history, "JOURNAL", tmp_path / "journal.md")
    changes = [{"key": "train.template", "before": text, "after": text}]
    write_journal([record(1, hypothesis=text, changes=changes, reason=text), record(2)])
    table = [
        re.sub(r"\\.", "", line)
        for line in (tmp_path / "journal.md").read_text().splitlines()
        if line.startswith("|")
    ]
    # but for those that are escaped
    assert len(table) == 4 and all(line.count("|") == 9 for line in table)
    assert not set("<`\x1b\u202e") & set(table[2].replace("<0.001", "")) and "](" not in table[2]
    assert table[3].startswith("| 0002 |")
