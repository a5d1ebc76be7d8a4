"""Do the engines give the same answers? Base and fine-tuned model through transformers and vLLM, adapter and merged weights, greedy.

python -m tests.evaluate.parity [--items 50] [--engine vllm_cpu]

Needs a finished run of the default in this working tree, and `make serve-env`. Writes tests/evaluate/parity.json: the share of equal
answers of each pair, and every pair of answers that differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from stages.common import adapter as adapters
from stages.common import engine, llm
from stages.common.files import ROOT, read_json, read_jsonl, write_json
from stages.common.schema import Engine

TASKS = ("chain_sum", "word_sequence_reversal")


def declared(name: str) -> Engine:
    merged = OmegaConf.merge(OmegaConf.structured(Engine), OmegaConf.load(ROOT / f"conf/engine/{name}.yaml"))
    value = OmegaConf.to_object(merged)
    assert isinstance(value, Engine)
    value.keep_alive = False
    return value


def answers(endpoint: engine.Endpoint, questions: list[str], model: str = "") -> list[str]:
    asking = llm.Asking(endpoint.base_url, model or endpoint.model, max_output_tokens=32, concurrency=64, timeout_s=900)
    return [reply.text for reply in llm.ask(asking, [[{"role": "user", "content": text}] for text in questions], watch=endpoint.check)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evaluate.parity", description=__doc__)
    parser.add_argument("--items", type=int, default=50, help="of each of the two benchmarks")
    parser.add_argument("--engine", default="vllm_cpu", choices=["vllm_cpu", "vllm"])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("parity.json"))
    args = parser.parse_args()
    questions = [
        row["question"] for name in TASKS for row in list(read_jsonl(ROOT / f"data/benchmark/val/{name}.jsonl"))[: args.items]
    ]  # fmt: skip
    base, adapter = (ROOT / "models/base").resolve(), (ROOT / "models/adapter").resolve()
    weights, found = read_json(ROOT / "models/base.json")["weights_sha256"], {}
    vllm, transformers = declared(args.engine), declared("transformers")
    with tempfile.TemporaryDirectory(prefix="pawl-parity-") as name, adapters.merged(
        base, adapter, weights, Path(name) / "merge.log", lambda: None
    ) as merged:  # fmt: skip
        log = Path(name) / "log"
        for model, folder in (("base", base), ("merged", merged)):
            with engine.serve(transformers, folder, None, log, weights_sha256=weights) as endpoint:
                found["transformers", model] = answers(endpoint, questions)
        with engine.serve(vllm, base, adapter, log, weights_sha256=weights) as endpoint:
            found[args.engine, "adapter"] = answers(endpoint, questions)
            found[args.engine, "base"] = answers(endpoint, questions, "base")
        with engine.serve(vllm, merged, None, log, weights_sha256=weights) as endpoint:
            found[args.engine, "merged"] = answers(endpoint, questions)
    pairs = [
        (("transformers", "base"), (args.engine, "base")), (("transformers", "merged"), (args.engine, "adapter")),
        (("transformers", "merged"), (args.engine, "merged")), ((args.engine, "adapter"), (args.engine, "merged")),
    ]  # fmt: skip
    table: list[dict[str, Any]] = []
    for one, other in pairs:
        differ = [
            {"question": text, "one": left, "other": right}
            for text, left, right in zip(questions, found[one], found[other], strict=True) if left != right
        ]  # fmt: skip
        table.append({
            "one": " ".join(one), "other": " ".join(other), "items": len(questions),
            "equal": 1 - len(differ) / len(questions), "disagreements": differ,
        })  # fmt: skip
        print(f"{' '.join(one)} and {' '.join(other)}: {len(questions) - len(differ)} of {len(questions)} answers are equal", flush=True)
    write_json(args.out, {"dtype": vllm.dtype, "pairs": table})
    return 0 if all(row["equal"] >= 0.98 for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
