"""Files are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages.common import files
from stages.common.errors import PawlError
from stages.common.files import (
    ROOT,
    fresh_folder,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
    write_text,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [{"a": 1}])

    def rows() -> Iterator[dict[str, int]]:
        yield {"a": 2}
        raise RuntimeError("killed in the middle")

    with pytest.raises(RuntimeError):
        write_jsonl(path, rows())
    assert list(read_jsonl(path)) == [{"a": 1}]
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_report_never_holds_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"score": float("nan")})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\u2028", "\r\n", "\ufeff", "𝄞" * 1000])
def test_any_string_survives_a_round_trip(tmp_path: Path, text: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": text}, {"text": "next"}])
    assert [row["text"] for row in read_jsonl(tmp_path / "a.jsonl")] == [text, "next"]


@pytest.mark.parametrize(
    ("content", "line", "word"),
    [
        (b'{"a": 1}\n{"a": \n', 2, "broken line"),
        (b'{"a": 1}\n\n[1]\n', 3, "expected a JSON object"),
        (b'{"a": "\xff"}\n', None, "not UTF-8"),
    ],
)
def test_a_broken_line_is_named(
    tmp_path: Path, content: bytes, line: int | None, word: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(PawlError) as refused:
        list(read_jsonl(path))
    assert (
        word in str(refused.value)
        and (f"{path}:{line}" if line else str(path)) in refused.value.where
    )


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    assert [row["a"] for row in read_jsonl(tmp_path / "rows.jsonl")] == [1, 2]


def test_missing_and_broken_json_are_named(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="missing"):
        read_json(tmp_path / "none.json")
    (tmp_path / "a.json").write_text('{"a": 1,\n')
    with pytest.raises(PawlError) as refused:
        read_json(tmp_path / "a.json")
    assert "a.json:2" in refused.value.where


def test_a_folder_is_replaced_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with fresh_folder(target) as folder:
        (folder / "weights").write_text("old")
    with pytest.raises(RuntimeError), fresh_folder(target) as folder:
        (folder / "weights").write_text("half")
        raise RuntimeError
    assert (target / "weights").read_text() == "old"
    (tmp_path / ".model.partial").mkdir()
    (tmp_path / ".model.partial/left by a killed run").touch()
    with fresh_folder(target) as folder:
        assert not os.listdir(folder)
    assert not os.listdir(target) and os.listdir(tmp_path) == ["model"]


WRITER = """
import sys
from stages.common.errors import run_main
from stages.common.files import write_jsonl
run_main("stage", lambda: write_jsonl(sys.argv[1], ({"text": "x" * 1000} for _ in range(5000))))
"""


def test_a_full_disk_is_one_screen_and_leaves_nothing(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(disk / "rows.jsonl")],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert (
            "the disk is full" in done.stderr
            and "Traceback" not in done.stderr
            and len(done.stderr.splitlines()) <= 5
        )
        assert not os.listdir(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_permission_is_one_screen_that_names_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    program = WRITER
    if os.geteuid() == 0:  # root may write anywhere: become nobody first
        # nobody may read our libraries later
        ready = "import os\nfrom stages.common import redaction\nredaction._kept_patterns()\n"
        program = ready + program.replace(
            "lambda: write_jsonl", "lambda: os.setuid(65534) or write_jsonl"
        )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "rows.jsonl")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert (
        "no permission" in done.stderr
        and str(folder) in done.stderr
        and "Traceback" not in done.stderr
    )


def test_reports_have_one_form() -> None:
    assert files.to_json({"b": 1, "a": "é"}) == '{\n "a": "é",\n "b": 1\n}\n'
    assert json.loads(files.to_json({"x": [1]})) == {"x": [1]}


def test_a_text_file_ends_where_it_says(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b.txt", "line\n")
    assert (tmp_path / "a/b.txt").read_bytes() == b"line\n"
