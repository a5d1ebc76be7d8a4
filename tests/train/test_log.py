"""The log of each training is kept and bounded; what it warns of is told once, without times, paths
and secrets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.train import log

LINES = """\
[WARNING|2026-11-30 22:58:37] llamafactory.extras.misc:155 >> Version checking has been disabled, may lead to unexpected behaviors.
[INFO|2026-11-30 22:58:38] llamafactory.data.loader:1 >> no warning at all
[WARNING|2026-11-30 22:58:39] llamafactory.data.processor:99 >> Dropped lengthy example with length 900 > 256.
 12%|#2\r[WARNING|2026-11-30 22:58:41] llamafactory.data.processor:99 >> Dropped lengthy example with length 900 > 256.
/home/anna/.venv/lib/python3.11/site-packages/torch/x.py:12: UserWarning: the file /home/anna/rows.jsonl is odd
2026-11-30 22:58:42,831 WARNING: api_key=abcdefgh12345678
"""


def test_warnings_are_told_once_without_times_paths_and_secrets(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(LINES.encode() + b"\xff\xfe UserWarning: last\n")
    assert log.warnings(tmp_path / "train.log") == [
        "Dropped lengthy example with length 900 > 256.",
        "the file [path] is odd",
        "api_key=[removed]",
        "last",
    ]
    assert log.warnings(tmp_path / "none.log") == []


def test_a_flood_of_warnings_and_a_line_without_end_stay_bounded(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "".join(f"UserWarning: {number} {'x' * 9000}\n" for number in range(99))
    )
    found = log.warnings(tmp_path / "train.log")
    assert len(found) == 10 and max(map(len, found)) <= 300


@pytest.mark.parametrize("size", [10, 159_000, 1_000_000])
def test_the_log_of_each_training_is_kept_and_cut_to_a_bound(tmp_path: Path, size: int) -> None:
    (tmp_path / "train.log").write_bytes(b"begin" + b"." * size + b"end")
    first, second = (log.keep(tmp_path / "train.log", tmp_path / "kept") for _ in range(2))
    assert first and second and first != second
    kept = first.read_text()
    assert kept.startswith("begin") and kept.endswith("end") and len(kept) < 170_000
    assert ("bytes are left out" in kept) is (size == 1_000_000)


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x")
    (tmp_path / "kept").mkdir()
    for number in range(150):
        (tmp_path / f"kept/20200101T000000.{number:06}Z.log").write_text("old")
    newest = log.keep(tmp_path / "train.log", tmp_path / "kept")
    assert newest and newest.exists() and len(list((tmp_path / "kept").iterdir())) == 100
    assert log.keep(tmp_path / "none.log", tmp_path / "kept") is None
