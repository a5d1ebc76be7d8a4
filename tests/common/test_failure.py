"""A failed stage leaves a record that says why, and never a secret."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stages.common import failure, process
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.redaction import redact

STAGE = "only-for-this-test"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failure, "ROOT", tmp_path)
    monkeypatch.setattr(process, "ROOT", tmp_path)
    return tmp_path


def left(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / f".pawl/failure/{STAGE}.json").read_text())
    return found


def fail(error: BaseException) -> None:
    with pytest.raises(type(error)), process.stage_lock(STAGE):
        raise error


def test_the_record_carries_what_the_person_saw_and_what_the_child_left(root: Path) -> None:
    details = {
        "exit_code": -9,
        "signal": 9,
        "tail": "x" * 9000 + "the end",
        "traceback": "ValueError: y",
        "peak_memory_gib": 3.14159,
    }
    fail(PawlError("no", where="here", fix="mend", details=details))
    found = left(root)
    assert (found["stage"], found["error"], found["where"], found["fix"]) == (
        STAGE,
        "no",
        "here",
        "mend",
    )
    assert (found["exit_code"], found["signal"], found["timed_out"], found["peak_memory_gib"]) == (
        -9,
        9,
        False,
        3.142,
    )
    assert (
        len(found["tail"]) == 4000
        and found["tail"].endswith("the end")
        and found["traceback"] == "ValueError: y"
    )
    assert found["at"].endswith("+00:00")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), {"exit_code": 130, "signal": 2}),
        (SystemExit(143), {"exit_code": 143, "signal": 15}),
        (
            OSError(28, "No space left on device", "/nowhere/file"),
            {"exit_code": 1, "where": "/nowhere/file"},
        ),
        (RuntimeError("boom"), {"exit_code": 1, "error": "RuntimeError: boom"}),
    ],
)
def test_whatever_ends_a_stage_is_recorded(
    root: Path, error: BaseException, expected: dict[str, Any]
) -> None:
    fail(error)
    assert expected.items() <= left(root).items()
    if isinstance(error, RuntimeError):
        assert "test_failure.py" in left(root)["traceback"]


def test_a_stage_that_starts_again_forgets_its_failure(root: Path) -> None:
    fail(PawlError("no"))
    with process.stage_lock(STAGE):
        assert not (root / f".pawl/failure/{STAGE}.json").exists()
    assert not (root / f".pawl/failure/{STAGE}.json").exists()


def test_no_secret_reaches_the_record(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-value-from-the-environment")
    told = [
        "sk-abcdefghijklmnopqrstuvwx",
        "hf_abcdefghijklmnopqrstuvwx",
        "api_key='swordfish99'",
        "Authorization: Bearer abc123def456",
        "https://user:swordfish99@host/v1",
        "got a-value-from-the-environment back",
        '"token": "swordfish99"',
        "Authorization: Basic c3dvcmRmaXNo",
        r"{\"api_key\": \"swordfish99\"}",
        "https://swordfish99@host/v1",
        "--api-key swordfish99",
        "AWS_SECRET_ACCESS_KEY=swordfish99",
        "sent Bearer abc123def456",
    ]
    fail(
        PawlError("\n".join(told), details={"tail": "\n".join(told), "traceback": "\n".join(told)})
    )
    text = (root / f".pawl/failure/{STAGE}.json").read_text()
    for secret in (
        "swordfish99",
        "abcdefghijklmnop",
        "abc123def456",
        "c3dvcmRmaXNo",
        "a-value-from-the-environment",
    ):
        assert secret not in text
    assert "user:" in text and "api_key" in text


def test_a_message_that_utf8_cannot_carry_hides_no_failure(root: Path) -> None:
    fail(PawlError("a file named \udcff", details={"tail": "\ud800"}))
    assert left(root)["error"] == "a file named \\udcff"


@pytest.mark.parametrize(
    "kept",
    [
        "num_input_tokens_seen: 1234567",
        "tokens: 1234567 of 9",
        "key: value-of-a-dict",
        "token 128256 is not in the vocabulary",
    ],
)
def test_what_is_no_secret_stays(kept: str) -> None:
    assert redact(kept) == kept


def test_a_stage_run_from_the_command_line_records_its_failure(root: Path) -> None:
    program = (
        "import pathlib, sys\nfrom stages.common import failure, process\nfrom stages.common.errors"
        " import PawlError, run_main\nfailure.ROOT = process.ROOT = pathlib.Path(sys.argv[1])\ndef"
        " main():\n    with process.stage_lock('only-for-this-test'):\n        raise"
        " PawlError('refused', code=3)\nrun_main('x', main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(root)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 3 and "refused" in done.stderr and left(root)["exit_code"] == 3


@pytest.mark.parametrize("fails", [True, False])
def test_a_queue_workers_log_and_failure_are_brought_to_the_main_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    clone, main = tmp_path / "clone", tmp_path / "main"
    (clone / ".pawl/logs").mkdir(parents=True)
    (clone / ".pawl/logs/train.log").write_text("step 1")
    monkeypatch.setattr(failure, "ROOT", clone)
    monkeypatch.setenv("DVC_ROOT", str(main))
    monkeypatch.setenv("DVC_EXP_NAME", "fit-lynx/..")
    with suppress(PawlError), failure.recorded("train"):
        if fails:
            raise PawlError("no room")
    brought = main / ".pawl/workers/fit-lynx-"
    assert (brought / "train.log").read_text() == "step 1" and (
        brought / "train.json"
    ).exists() is fails
    assert sorted(path.name for path in main.iterdir()) == [".pawl"]
