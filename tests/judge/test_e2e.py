"""The language model's judge against real OpenAI-compatible servers: one that constrains its output
to a schema, and one that does not.

The model is tiny and random. Under a schema it can only say what fits, so a valid reply shows that
the server was given the schema; without one it says nothing of use, and the verdict stands on its
own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.common.chat import structured
from stages.common.files import ROOT
from stages.common.schema import LLM, Engine
from stages.evaluate.serve import engine
from stages.fetch_model import tiny
from tests.judge.conftest import judge_run
from tests.synthetic import write_items, write_run

pytestmark = pytest.mark.e2e

CHOICE = {
    "type": "object",
    "properties": {
        "Decision": {"type": "string", "enum": ["yes", "no"]},
        "Error Type": {"type": "string", "enum": ["OOM", "DATA"]},
    },
    "required": ["Decision", "Error Type"],
    "additionalProperties": False,
}
# a random model would fill its whole reply with the blanks that JSON allows anywhere
VLLM = [
    "--enforce-eager",
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
]
ASK = [{"role": "user", "content": "Decide."}]


def test_a_million_pairs_take_a_minute_at_most_and_2_gb(tmp_path: Path) -> None:
    line = (
        '{{"item_id": "{:016x}", "benchmark": "b", "split": "val", "correct": {}, "score": {},'
        ' "prediction": "The answer is {}, I think", "gold": "{}", "prompt_tokens": 31,'
        ' "output_tokens": 5, "truncated": false, "repeat": 0}}\n'
    )
    for name, rate in (("candidate", 0.55), ("incumbent", 0.5)):
        rng = random.Random(name)
        with open(tmp_path / name, "w", encoding="utf-8") as file:
            for k in range(1_000_000):
                right = rng.random() < rate
                file.write(
                    line.format(
                        k * 11400714819323198485 % 2**64,
                        "true" if right else "false",
                        float(right),
                        k if right else k + 1,
                        k,
                    )
                )
    command = [sys.executable, "-m", "stages.judge", "compare", "candidate", "incumbent"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        told = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)  # of this process alone
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, told
    # processor time: 15 s on a quiet machine, a half more beside other work, and an hour if each
    # pair looked at all others
    assert used.ru_utime + used.ru_stime < 60
    assert used.ru_maxrss < 2 * 2**20  # KiB


def make_model(folder: Path) -> None:
    """The tiny random model with one head of width 64: vLLM's attention on CPU knows no narrower
    one than 32.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny.write(folder, "float32")
    config = LlamaConfig.from_pretrained(folder)
    config.num_attention_heads = config.num_key_value_heads = 1
    config.head_dim = 64
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.parametrize("kind", ["vllm_cpu", "transformers"])
def test_a_real_server_is_asked_by_schema_or_in_words_and_decides_nothing(
    kind: str, tmp_path: Path, need: Callable[[str], None]
) -> None:
    if kind == "vllm_cpu":
        need("serve")
        need(kind)
    make_model(tmp_path / "model")
    settings = Engine(
        name=kind,
        kind=kind,
        dtype="float32",
        max_model_len=2048,
        startup_timeout_s=300.0,
        served_model="",
        extra_args=VLLM if kind == "vllm_cpu" else [],
    )
    run = write_items(write_run(tmp_path / "run")) or tmp_path / "run"
    with engine.serve(settings, tmp_path / "model", None, tmp_path / "log") as endpoint:
        llm = LLM(
            base_url=endpoint.base_url,
            model=endpoint.model,
            max_output_tokens=48,
            timeout_s=120.0,
            retries=1,
        )
        if kind == "vllm_cpu":
            got = structured(llm, ASK, CHOICE, repairs=0)
            assert (
                got.value["Decision"] in ("yes", "no")
                and got.prompt_tokens > 0
                and not got.estimated
            )
        verdict = judge_run(run, kind="llm", llm=llm, settings={}, max_error_samples=1)
    opinion = verdict["opinion"]
    assert verdict["evidence"]["outcome"] == "accept" and verdict["accepted"] != opinion["veto"]
    assert (verdict["words_by"] == "rules") == bool(opinion["failed"]), opinion
