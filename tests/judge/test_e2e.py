"""The language model's judge against real OpenAI-compatible servers: one that constrains its output to a schema, and one that does not.

The model is tiny and random. Under a schema it can only say what fits, so a valid reply shows that the server was given the schema; without
one it says nothing of use, and the verdict stands on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stages.common import engine
from stages.common.chat import structured
from stages.common.schema import LLM, Engine
from stages.fetch_model import tiny
from tests.judge.conftest import judge_run, write_items
from tests.synthetic import write_run

pytestmark = pytest.mark.e2e

CHOICE = {
    "type": "object",
    "properties": {"Decision": {"type": "string", "enum": ["yes", "no"]}, "Error Type": {"type": "string", "enum": ["OOM", "DATA"]}},
    "required": ["Decision", "Error Type"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Decide."}]


@pytest.mark.parametrize("kind", ["vllm_cpu", "transformers"])
def test_a_real_server_is_asked_by_schema_or_in_words_and_decides_nothing(kind: str, tmp_path: Path, need: Callable[[str], None]) -> None:
    if kind == "vllm_cpu":
        need("serve")
    tiny.write(tmp_path / "model", "float32")
    settings = Engine(
        name=kind, kind=kind, dtype="float32", max_model_len=2048, startup_timeout_s=300.0, served_model="",
        extra_args=["--enforce-eager"] if kind == "vllm_cpu" else [],
    )  # fmt: skip
    run = write_items(write_run(tmp_path / "run")) or tmp_path / "run"
    with engine.serve(settings, tmp_path / "model", None, tmp_path / "log") as endpoint:
        llm = LLM(base_url=endpoint.base_url, model=endpoint.model, max_output_tokens=48, timeout_s=120.0, retries=1)
        if kind == "vllm_cpu":
            got = structured(llm, ASK, CHOICE, repairs=0)
            assert got.value["Decision"] in ("yes", "no") and got.prompt_tokens > 0 and not got.estimated
        verdict = judge_run(run, kind="llm", llm=llm, settings={}, max_error_samples=1)
    opinion = verdict["opinion"]
    assert verdict["evidence"]["outcome"] == "accept" and verdict["accepted"] != opinion["veto"]
    assert (verdict["words_by"] == "rules") == bool(opinion["failed"]), opinion
