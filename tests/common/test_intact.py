"""What a stage reads against dvc.lock: DVC restores a damaged object of its cache without a
word.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.common import intact
from stages.common.errors import PawlError
from stages.common.files import ROOT


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file and a folder that the stages before made, one stage that reads them, and DVC's cache
    of them.
    """
    (tmp_path / "data/inner").mkdir(parents=True)
    files = {"rows.jsonl": b"rows", "data/a.txt": b"first", "data/inner/b.bin": bytes(4096)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    listed = json.dumps(
        [{"md5": md5(files[f"data/{name}"]), "relpath": name} for name in ("a.txt", "inner/b.bin")]
    ).encode()
    objects = [*files.values(), listed]
    for content in objects:
        name = md5(content) + (".dir" if content is listed else "")
        (tmp_path / ".dvc/cache/files/md5" / name[:2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / ".dvc/cache/files/md5" / name[:2] / name[2:]).write_bytes(content)
    outs = f"[{{path: rows.jsonl, md5: {md5(b'rows')}}}, {{path: data, md5: {md5(listed)}.dir}}]"
    (tmp_path / "dvc.lock").write_text(f"stages:\n  make:\n    outs: {outs}\n")
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  make: {cmd: x}\n  use:\n    cmd: y\n    deps: [rows.jsonl, data, code.py,"
        " gone]\n"
    )
    (tmp_path / "params.yaml").write_text("experiment: {incumbent: .}\n")
    monkeypatch.setenv("DVC_STAGE", "use")
    return tmp_path


def test_what_the_lock_says_passes(root: Path) -> None:
    intact.check_inputs(root)
    (root / "data/.half.partial").write_text("x")
    (root / "data/__pycache__").mkdir()
    (root / "data/__pycache__/x.pyc").write_text("x")
    intact.check_inputs(root)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.jsonl", "data/a.txt", "data/inner/b.bin"])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_object_of_the_cache_is_named_with_the_command_that_repairs_it(
    root: Path, name: str, damage: str
) -> None:
    content = (root / name).read_bytes()
    wrong = bytes([content[0] ^ 1]) + content[1:] if damage == "flip" else content[:-1]
    held = root / ".dvc/cache/files/md5" / md5(content)[:2] / md5(content)[2:]
    for path in (root / name, held):
        path.write_bytes(wrong)
    with pytest.raises(PawlError, match="is not what make made") as caught:
        intact.check_inputs(root)
    assert f"DVC's cache is damaged: rm -f {held} && dvc repro -f make" in caught.value.fix


def test_an_edited_output_is_told_apart_from_a_damaged_cache(root: Path) -> None:
    (root / "data/c.txt").write_text("one more")
    with pytest.raises(PawlError, match="data is not what make made") as caught:
        intact.check_inputs(root)
    assert "dvc checkout --force data" in caught.value.fix and "damaged" not in caught.value.fix


def test_the_incumbent_of_the_parameters_is_checked_where_a_stage_made_it(root: Path) -> None:
    pipeline = root / "dvc.yaml"
    pipeline.write_text(
        pipeline.read_text().replace("rows.jsonl", "'${experiment.incumbent}/a.txt'")
    )
    (root / "params.yaml").write_text("experiment: {incumbent: data}\n")
    (root / "dvc.lock").write_text(
        f"stages:\n  make:\n    outs: [{{path: data/a.txt, md5: {'0' * 32}}}]\n"
    )
    with pytest.raises(PawlError, match=r"data/a\.txt is not what make made"):
        intact.check_inputs(root)


def test_a_large_file_is_hashed_once_until_it_is_another_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intact, "LARGE", 1000)
    read: list[str] = []
    real = intact._digest
    monkeypatch.setattr(intact, "_digest", lambda path: read.append(path.name) or real(path))  # type: ignore[func-returns-value]
    for _ in range(3):
        intact.check_inputs(root)
    assert read.count("b.bin") == 1 and read.count("a.txt") == 3
    restored = root / "restored"
    restored.write_bytes(bytes(4095) + b"x")
    restored.replace(root / "data/inner/b.bin")
    with pytest.raises(PawlError, match="is not what make made"):
        intact.check_inputs(root)
    (root / intact.HASHES).write_text("[")
    with pytest.raises(PawlError, match="is not what make made"):
        intact.check_inputs(root)


@pytest.mark.parametrize("stage", ["", "another", "x:y"])
def test_without_dvc_nothing_is_compared(
    root: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    (root / "rows.jsonl").write_text("edited by hand")
    monkeypatch.setenv("DVC_STAGE", stage)
    intact.check_inputs(root)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "stages: []",
        "stages: {make: null}",
        "stages: {make: {outs: 3}}",
        "stages: {make: {outs: [3]}}",
    ],
)
def test_a_broken_lock_or_pipeline_is_left_to_dvc(root: Path, text: str) -> None:
    for name in ("dvc.lock", "dvc.yaml"):
        kept = (root / name).read_text()
        (root / name).write_text(text)
        intact.check_inputs(root)
        (root / name).write_text(kept)


@pytest.mark.e2e
def test_dvc_restores_a_damaged_object_and_the_stage_that_reads_it_stops(tmp_path: Path) -> None:
    checks = (
        f"{sys.executable} -c 'from pathlib import Path; from stages.common.intact import"
        " check_inputs; check_inputs(Path.cwd())'"
    )
    pipeline = {
        "make": {
            "cmd": "mkdir -p data && cp code.txt data/rows.txt",
            "deps": ["code.txt"],
            "outs": ["data"],
        },
        "use": {
            "cmd": f"{checks} && cp data/rows.txt used.txt",
            "deps": ["data", "switch.txt"],
            "outs": ["used.txt"],
        },
    }
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": pipeline}))
    (tmp_path / "code.txt").write_text("the rows of the benchmark")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def dvc(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dvc", *args],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    assert dvc("init", "--no-scm").returncode == 0
    (tmp_path / "switch.txt").write_text("1")
    assert (done := dvc("repro")).returncode == 0, done.stderr
    name = md5(b"the rows of the benchmark")
    held = tmp_path / ".dvc/cache/files/md5" / name[:2] / name[2:]
    held.chmod(0o644)
    held.write_bytes(b"The rows of the benchmark")
    # as DVC leaves it: what is writable it hashes itself, and what is not it trusts
    held.chmod(0o444)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "switch.txt").write_text("2")
    done = dvc("repro")
    assert done.returncode and f"rm -f {held} && dvc repro -f make" in done.stderr, done.stderr
    held.unlink()
    assert dvc("repro", "-f", "make").returncode == 0 and (done := dvc("repro")).returncode == 0, (
        done.stderr
    )
    assert (tmp_path / "used.txt").read_text() == "the rows of the benchmark"
