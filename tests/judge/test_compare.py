"""`python -m stages.judge compare`: its exit code is the verdict, and bad input is never one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stages.common.files import ROOT
from stages.common.reports.evaluation import write_rows
from stages.judge import __main__ as judge
from tests.synthetic import make_row, make_rows


def compare(capsys, monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["judge", "compare", *map(str, args)])
    try:
        code = judge.main()
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def files(tmp_path):
    sides = {
        "good": make_rows(0.8, seed=1),
        "poor": make_rows(0.2, seed=2),
        "one": [make_row(1, True)],
        "other": [make_row(1, False)],
    }
    for name, rows in sides.items():
        write_rows(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


@pytest.mark.parametrize(
    ("candidate", "incumbent", "code"),
    [
        ("good", "poor", 0),
        ("poor", "good", 1),
        ("good", "good", 1),
        ("one", "other", 2),
        ("one", "one", 1),
    ],
)
def test_exit_codes_and_one_json_document(files, capsys, monkeypatch, candidate, incumbent, code):
    got, out, err = compare(
        capsys, monkeypatch, files / f"{candidate}.jsonl", files / f"{incumbent}.jsonl"
    )
    assert (
        got == code
        and not err
        and json.loads(out)["outcome"] == ["accept", "reject", "inconclusive"][code]
    )


def test_thresholds_are_options(files, capsys, monkeypatch):
    assert (
        compare(
            capsys, monkeypatch, files / "good.jsonl", files / "poor.jsonl", "--min-effect", "0.9"
        )[0]
        == 1
    )
    assert (
        compare(
            capsys, monkeypatch, files / "good.jsonl", files / "poor.jsonl", "--alpha", "1e-300"
        )[0]
        == 2
    )
    assert (
        compare(
            capsys, monkeypatch, files / "good.jsonl", files / "poor.jsonl", "--looks", str(10**12)
        )[0]
        == 2
    )
    code, out, err = compare(
        capsys, monkeypatch, files / "good.jsonl", files / "poor.jsonl", "--primary", "absent"
    )
    assert code == 3 and "absent" in err and not out


@pytest.mark.parametrize("changes", [{"fingerprint": "f"}, {"prediction": "\ud800"}])
def test_an_extra_column_and_a_lone_surrogate_are_no_error(files, capsys, monkeypatch, changes):
    (files / "wide.jsonl").write_text(
        "\n".join(json.dumps({**row.plain(), **changes}) for row in make_rows(0.8, seed=1))
    )
    assert compare(capsys, monkeypatch, files / "wide.jsonl", files / "poor.jsonl")[0] == 0


GOOD = json.dumps(make_row(0, True).plain())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no rows"),
        ("{", "broken line"),
        ("[1]", "expected a JSON object"),
        (GOOD.replace('"score": 1.0', '"score": NaN'), "score"),
        (GOOD.replace('"score": 1.0', '"score": 1e999'), "score"),
        (GOOD.replace('"score": 1.0', f'"score": {"9" * 400}'), "score|too large"),
        (GOOD.replace('"score": 1.0', '"score": 1.5'), "score"),
        (GOOD.replace('"truncated": false', '"truncated": null'), "truncated"),
        (GOOD.replace('"repeat": 0', '"repeat": -1'), "repeat"),
        (GOOD.replace('"gold"', '"answer"'), "gold is missing"),
        (GOOD.replace('"correct": true', '"correct": 1'), "correct"),
        (GOOD + "\n" + GOOD, "duplicated"),
        (GOOD.replace('"val"', '"test"'), "split should be 'val'"),
        ("[" * 100_000, "broken line|RecursionError"),
        ("\udcff", "UTF-8"),
    ],
)
def test_broken_files_exit_3_and_print_no_evidence(files, capsys, monkeypatch, content, says):
    import re

    broken = files / "broken.jsonl"
    broken.write_bytes(content.encode("utf-8", "surrogateescape"))
    for pair in ((broken, files / "good.jsonl"), (files / "good.jsonl", broken)):
        code, out, err = compare(capsys, monkeypatch, *pair)
        assert code == 3 and not out and err.count("\n") <= 5 and re.search(says, err), err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["a"],
        ["missing.jsonl", "missing.jsonl"],
        [".", "."],
        ["a", "b", "--alpha", "x"],
        ["a", "b", "--alpha", "nan"],
        ["a", "b", "--min-effect", "-1"],
        ["a", "b", "--looks", "0"],
        ["a", "b", "--max-regression", "0"],
        ["a", "b", "--metric", "vibes"],
    ],
)
def test_bad_arguments_exit_3(files, capsys, monkeypatch, args):
    monkeypatch.chdir(files)
    code, out, err = compare(capsys, monkeypatch, *args)
    assert code == 3 and not out and "judge: error:" in err


def test_a_bug_of_ours_does_not_look_like_a_verdict(files, capsys, monkeypatch):
    monkeypatch.setattr(judge, "pair", lambda *_: 1 / 0)
    assert compare(capsys, monkeypatch, files / "good.jsonl", files / "poor.jsonl")[0] == 3


def test_it_needs_no_params_and_no_working_folder(files):
    command = [sys.executable, "-m", "stages.judge", "compare", "good.jsonl", "poor.jsonl"]
    done = subprocess.run(
        command,
        cwd=files,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
