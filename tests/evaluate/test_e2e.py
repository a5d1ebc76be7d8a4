"""The real stage as DVC runs it: OpenCompass, a real engine, a tiny random model made here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.common.files import ROOT, write_json
from stages.common.reports.evaluation import Answer, read_rows
from tests.evaluate.test_stage import make_items
from tests.fake_server import FakeServer

pytestmark = pytest.mark.e2e


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: text for name, text in os.environ.items() if name != "DVC_ROOT"} | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("stages", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    make_items(tmp_path)
    return tmp_path


def test_a_failing_server_leaves_an_error_of_one_screen_and_no_file(root: Path) -> None:
    write_json(
        root / "models/base.json",
        {"name": "elsewhere", "path": "models/base", "files": {}, "weights_sha256": "abc"},
    )
    with FakeServer(fault=lambda number, body: "no_choices" if number > 20 else "") as server:
        done = python(
            root,
            "stages.common.config",
            "engine=external",
            f"engine.base_url={server.url}",
            "engine.api_key_env=''",
            "evaluate.retries=0",
        )
        assert done.returncode == 0, done.stderr
        done = python(root, "stages.evaluate", "--base", "--split", "val", "--split", "test")
    assert done.returncode == 1
    assert "of 38 requests failed" in done.stderr and len(done.stderr.splitlines()) < 15, (
        done.stderr
    )
    assert not (root / "reports").exists()


def test_braces_in_a_question_reach_the_model_as_they_are(root: Path) -> None:
    from stages.common.files import write_jsonl
    from stages.common.items import item_id

    write_json(
        root / "models/base.json",
        {"name": "elsewhere", "path": "models/base", "files": {}, "weights_sha256": "abc"},
    )
    shutil.rmtree(root / "data/benchmark/val")
    questions = [
        "What is {answer}?",
        "{question} {item_id} {category} {idx}",
        "plain",
        "\u2028 line\x00 two \u202e",
    ]
    rows = [
        {
            "item_id": item_id("b", text, "4"),
            "benchmark": "b",
            "question": text,
            "answer": "4",
            "category": "c",
        }
        for text in questions
    ]
    write_jsonl(root / "data/benchmark/val/b.jsonl", rows)
    with FakeServer(answer=lambda body: " 4 ") as server:
        python(
            root,
            "stages.common.config",
            "engine=external",
            f"engine.base_url={server.url}",
            "engine.api_key_env=''",
        )
        done = python(root, "stages.evaluate", "--base", "--split", "val")
    assert done.returncode == 0, done.stderr
    assert sorted(body["messages"][0]["content"] for body in server.bodies) == sorted(questions)
    assert all(row.correct for row in read_rows(root / "reports/baseline/val.jsonl", Answer))


@pytest.mark.parametrize("kind", ["lora", "dora", "modules_to_save", "resized"])
def test_a_merged_model_computes_what_its_adapter_computes(kind: str, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    from stages.evaluate.serve import adapter as adapters
    from stages.fetch_model import tiny

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny.write(base, "float32")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if kind == "resized":
        model.resize_token_embeddings(model.get_input_embeddings().weight.shape[0] + 3)
    whole = kind in ("modules_to_save", "resized")
    config = LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj"],
        use_dora=kind == "dora",
        init_lora_weights=False,
        modules_to_save=["embed_tokens", "lm_head"] if whole else None,
    )
    tuned = get_peft_model(model, config)
    tuned.save_pretrained(adapter)
    assert adapters.needs_merge(adapter) == (kind != "lora")
    with adapters.merged(base, adapter, kind, tmp_path / "log", lambda: None) as merged:
        whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    asked = torch.arange(4, 24)[None]
    with torch.inference_mode():
        assert torch.allclose(whole(asked).logits, tuned(asked).logits, atol=1e-4)
    assert isinstance(tuned, PeftModel)


def test_gsm8k_goes_from_opencompass_to_rows(root: Path) -> None:
    """The whole way, through the real loader, template, evaluator and post-processor, and a server
    that knows every second answer.
    """
    from stages.build_benchmark import convert

    rows = [{"question": f"How many is {n} and {n}?", "answer": str(2 * n)} for n in range(10)]
    convert.gsm8k(rows, root / "data/local/gsm8k")
    shutil.rmtree(root / "data/benchmark")
    write_json(
        root / "models/base.json",
        {"name": "elsewhere", "path": "models/base", "files": {}, "weights_sha256": "abc"},
    )

    def answer(body: dict) -> str:
        number = int(body["messages"][-1]["content"].split(" and ")[1].split("?")[0])
        said = 2 * number if number % 2 else 0
        return f"{number} and {number} make {2 * number}.\nThe answer is {said}"

    with FakeServer(answer=answer) as server:
        python(
            root,
            "stages.common.config",
            "benchmark=gsm8k",
            "engine=external",
            f"engine.base_url={server.url}",
            "engine.api_key_env=''",
        )
        done = python(root, "stages.build_benchmark")
        assert done.returncode == 0, done.stderr
        done = python(root, "stages.evaluate", "--base", "--split", "val")
    assert done.returncode == 0, done.stderr
    found = read_rows(root / "reports/baseline/val.jsonl", Answer)
    assert [row.correct for row in found] == [
        True,
        True,
        False,
        True,
        False,
    ], "nothing and nothing make 0"
    assert all(len(body["messages"]) == 9 for body in server.bodies), "four worked examples"
