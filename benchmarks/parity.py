"""Do the engines give the same answers? Base and fine-tuned model through transformers and vLLM,
adapter and merged weights, greedy.

python -m benchmarks.parity [--items 50] [--engine vllm_cpu]

Needs a finished run of the default in this working tree, and `make serve-env`. Writes
reports/benchmarks/parity.json: the share of equal answers of each pair, and every pair of answers
that differ. Exit code 1 where fewer than 98 % are equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from stages.common import llm
from stages.common.files import ROOT, read_json, read_jsonl, write_json
from stages.common.schema import LLM, Engine
from stages.evaluate.serve import adapter as adapters
from stages.evaluate.serve import engine

TASKS = ("chain_sum", "word_sequence_reversal")


def declared(name: str) -> Engine:
    merged = OmegaConf.merge(
        OmegaConf.structured(Engine), OmegaConf.load(ROOT / f"conf/engine/{name}.yaml")
    )
    value = OmegaConf.to_object(merged)
    assert isinstance(value, Engine)
    return value


def answers(endpoint: engine.Endpoint, questions: list[str], model: str = "") -> list[str]:
    asked = LLM(
        base_url=endpoint.base_url,
        model=model or endpoint.model,
        max_output_tokens=32,
        concurrency=64,
        timeout_s=900,
    )
    conversations = [[{"role": "user", "content": text}] for text in questions]
    return [
        reply.text
        for reply in llm.ask(asked, conversations, {"top_p": 1.0, "seed": 0}, watch=endpoint.check)
    ]


def compare(
    found: dict[tuple[str, str], list[str]], questions: list[str], name: str
) -> list[dict[str, Any]]:
    """The pairs of which both sides have answered."""
    pairs = [
        (("transformers", "base"), (name, "base")),
        (("transformers", "merged"), (name, "adapter")),
        (("transformers", "merged"), (name, "merged")),
        ((name, "adapter"), (name, "merged")),
    ]
    table = []
    for one, other in pairs:
        if one in found and other in found:
            differ = [
                {"question": text, "one": left, "other": right}
                for text, left, right in zip(questions, found[one], found[other], strict=True)
                if left != right
            ]
            equal = 1 - len(differ) / len(questions)
            table.append(
                {
                    "one": " ".join(one),
                    "other": " ".join(other),
                    "items": len(questions),
                    "equal": equal,
                    "disagreements": differ,
                }
            )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--items", type=int, default=50, help="of each of the two benchmarks")
    parser.add_argument("--engine", default="vllm_cpu", choices=["vllm_cpu", "vllm"])
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmarks/parity.json")
    args = parser.parse_args()
    questions = [
        row["question"]
        for name in TASKS
        for row in list(read_jsonl(ROOT / f"data/benchmark/val/{name}.jsonl"))[: args.items]
    ]
    base, adapter = (ROOT / "models/base").resolve(), (ROOT / "models/adapter").resolve()
    weights, found = read_json(ROOT / "models/base.json")["weights_sha256"], {}
    vllm, transformers = declared(args.engine), declared("transformers")
    with (
        tempfile.TemporaryDirectory(prefix="pawl-parity-") as name,
        adapters.merged(base, adapter, weights, Path(name) / "merge.log", lambda: None) as merged,
    ):
        log = Path(name) / "log"
        for model, folder in (("base", base), ("merged", merged)):
            with engine.serve(transformers, folder, None, log, weights_sha256=weights) as endpoint:
                found["transformers", model] = answers(endpoint, questions)
        with engine.serve(vllm, base, adapter, log, weights_sha256=weights) as endpoint:
            found[args.engine, "adapter"] = answers(endpoint, questions)
            found[args.engine, "base"] = answers(endpoint, questions, "base")
        # before the last server starts: what is known is not lost with it
        report(args.out, found, questions, vllm)
        with engine.serve(vllm, merged, None, log, weights_sha256=weights) as endpoint:
            found[args.engine, "merged"] = answers(endpoint, questions)
    return 0 if all(row["equal"] >= 0.98 for row in report(args.out, found, questions, vllm)) else 1


def report(
    out: Path, found: dict[tuple[str, str], list[str]], questions: list[str], vllm: Engine
) -> list[dict[str, Any]]:
    """Write and say what is known so far."""
    table = compare(found, questions, vllm.kind)
    for row in table:
        print(
            f"{row['one']} and {row['other']}: {row['equal']:.1%} of {row['items']} answers are"
            " equal",
            flush=True,
        )
    write_json(
        out,
        {
            "command": (
                f"python -m benchmarks.parity --items {len(questions) // len(TASKS)} --engine"
                f" {vllm.kind}"
            ),
            "dtype": vllm.dtype,
            "pairs": table,
        },
    )
    return table


if __name__ == "__main__":
    sys.exit(main())
