"""The real stage as DVC runs it: OpenCompass, a real engine, a tiny random model made here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.common.files import ROOT, write_json
from stages.common.items import read_rows
from tests.evaluate.test_stage import make_items
from tests.fake_server import FakeServer

pytestmark = pytest.mark.e2e


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: text for name, text in os.environ.items() if name != "DVC_ROOT"} | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=root, env=env, capture_output=True, text=True, timeout=600)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("stages", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    make_items(tmp_path)
    return tmp_path


def test_a_failing_server_leaves_an_error_of_one_screen_and_no_file(root: Path) -> None:
    write_json(root / "models/base.json", {"name": "elsewhere", "path": "models/base", "files": {}, "weights_sha256": "abc"})
    with FakeServer(fault=lambda number, body: "no_usage" if number > 20 else "") as server:
        done = python(
            root, "stages.common.config", "engine=external", f"engine.base_url={server.url}", "engine.api_key_env=''", "evaluate.retries=0"
        )
        assert done.returncode == 0, done.stderr
        done = python(root, "stages.evaluate", "--base", "--split", "val", "--split", "test")
    assert done.returncode == 1
    assert "38 requests failed" in done.stderr and "usage" in done.stderr and len(done.stderr.splitlines()) < 15, done.stderr
    assert not (root / "reports").exists()


def test_braces_in_a_question_reach_the_model_as_they_are(root: Path) -> None:
    from stages.common.files import write_jsonl
    from stages.common.items import item_id

    write_json(root / "models/base.json", {"name": "elsewhere", "path": "models/base", "files": {}, "weights_sha256": "abc"})
    shutil.rmtree(root / "data/benchmark/val")
    questions = ["What is {answer}?", "{question} {item_id} {category} {idx}", "plain", "\u2028 line\x00 two \u202e"]
    rows = [{"item_id": item_id("b", text, "4"), "benchmark": "b", "question": text, "answer": "4", "category": "c"} for text in questions]
    write_jsonl(root / "data/benchmark/val/b.jsonl", rows)
    with FakeServer(answer=lambda body: " 4 ") as server:
        python(root, "stages.common.config", "engine=external", f"engine.base_url={server.url}", "engine.api_key_env=''")
        done = python(root, "stages.evaluate", "--base", "--split", "val")
    assert done.returncode == 0, done.stderr
    assert sorted(body["messages"][0]["content"] for body in server.bodies) == sorted(questions)
    assert all(row.correct for row in read_rows(root / "reports/baseline/val.jsonl"))
