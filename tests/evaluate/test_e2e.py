"""The real stage as DVC runs it: OpenCompass, a real engine, a tiny random model made here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.common.files import ROOT, sha256_file, write_json
from stages.common.items import read_rows
from tests.evaluate.test_stage import ROWS, make_items
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


def make_model(root: Path) -> None:
    """Two random layers and a byte-level tokenizer with a chat template, and a LoRA adapter that changes its answers."""
    import torch
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(["<end>", *letters])}, merges=[]))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<end>", pad_token="<end>", bos_token="<end>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=len(letters) + 1, max_position_embeddings=512, eos_token_id=0, bos_token_id=0, pad_token_id=0, **shape)
    base, model = root / "models/base", LlamaForCausalLM(config)
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in base.iterdir()}
    weights = files["model.safetensors"]["sha256"]
    write_json(
        root / "models/base.json", {"name": "tiny", "path": "models/base", "files": files, "weights_sha256": weights, "dtype": "float32"}
    )
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(root / "models/adapter")


def test_the_transformers_engine_answers_for_base_and_adapter_and_again_the_same(root: Path) -> None:
    make_model(root)
    done = python(root, "stages.common.config", "engine=transformers", "evaluate.max_output_tokens=6", "engine.max_model_len=256")
    assert done.returncode == 0, done.stderr
    runs = []
    for arguments in (("--base",), (), ()):
        done = python(root, "stages.evaluate", "--split", "val", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = root / "reports" / ("baseline" if arguments else "eval_val")
        runs.append(({row.item_id: row for row in read_rows(folder / "val.jsonl")}, json.loads((folder / "val.json").read_text())))
    (base, base_report), (first, first_report), (again, again_report) = runs
    assert len(base) == 2 * ROWS["val"] and base.keys() == first.keys()
    assert all(row.output_tokens >= 1 and row.prompt_tokens > 10 for row in base.values())
    assert [row.prediction for row in base.values()] != [row.prediction for row in first.values()]
    assert first == again
    assert first_report.pop("runtime_s") > 0 and again_report.pop("runtime_s") > 0 and first_report == again_report
    assert base_report["items_sha256"] == first_report["items_sha256"]
    assert base_report["fingerprint"]["adapter_sha256"] is None and first_report["fingerprint"]["adapter_sha256"]
    assert len(list((root / ".pawl/merged").glob("*/model.safetensors"))) == 1


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
