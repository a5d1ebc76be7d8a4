"""Make the training data: read or draw every source, filter, remove what the benchmark holds too, shuffle.

python -m stages.generate_data

Writes data/train (train.jsonl, OpenAI messages, and dataset_info.json for LLaMA-Factory), reports/generate_data.json and
reports/data_card.md. Filters, in order: unusable rows, exact duplicates, decontamination, length. No report holds an item's text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stages.common.config import load_params
from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, fresh_folder, read_jsonl, write_json, write_jsonl, write_text
from stages.common.items import SPLITS
from stages.common.models import base_model
from stages.common.process import stage_lock
from stages.common.schema import Data
from stages.generate_data import card, overlap, sources, tokens
from stages.generate_data.rows import Counts, Filters, Kept, Messages, quantiles, table

# 0.9.5 takes a tag that is absent for None, so all are named; "sharegpt" is its name for role-and-content turns
DATASET_INFO = {
    "train": {
        "file_name": "train.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system",
            "observation_tag": "observation", "function_tag": "function",
        },
    }
}  # fmt: skip


def read_items(benchmark: Path) -> list[overlap.Item]:
    """Every validation and test item under data/benchmark.

    Raises:
        PawlError: there are none, or a file is broken.
    """
    items = []
    for split in SPLITS:
        for path in sorted((benchmark / split).glob("*.jsonl")):
            items += [overlap.Item(row["benchmark"], split, row["question"], row["answer"]) for row in read_jsonl(path)]
    if {item.split for item in items} != set(SPLITS):
        raise PawlError("there are no benchmark items to compare with", where=str(benchmark), fix="run 'dvc repro build_benchmark'")
    return items


def control(index: overlap.Index, items: list[overlap.Item]) -> dict[str, dict[str, bool | None]]:
    """The positive control of the decontamination; a search that finds nothing must not pass for clean data."""
    results = overlap.positive_control(index, [item for item in items if item.split == "val"])
    for name, result in results.items():
        if failed := [kind for kind, passed in result.items() if passed is False]:
            what = f"the decontamination misses a planted item of {name} ({', '.join(failed)})"
            raise PawlError(
                what,
                where="stages/generate_data/overlap.py",
                fix="training data cannot be trusted: this is a bug, or data.ngram does not suit the items",
            )
    return results


def summarize(data: Data, rows: list[Kept], counts: dict[str, Counts], filters: Filters, controls: dict[str, Any]) -> dict[str, Any]:
    """What reports/generate_data.json says."""
    looked_at = sum(count.read - count.bad - count.duplicates for count in counts.values())
    found = sum(count.contaminated for count in counts.values())
    return {
        "name": data.name,
        "rows": len(rows),
        "seed": data.seed,
        "sources": {name: asdict(count) for name, count in counts.items()},
        "tokens": quantiles(row.tokens for row in rows),
        "contamination": {"fraction": found / looked_at, "hits": [asdict(hit) | {"rows": n} for hit, n in sorted(filters.hits.items())]},
        "positive_control": controls,
    }


def make(data: Data, cutoff_len: int, count_tokens: Callable[[Messages], int], root: Path) -> dict[str, Any]:
    """Build and write everything under `root`, and return the report."""
    items = read_items(root / "data" / "benchmark")
    index = overlap.Index(items, data.ngram)
    controls = control(index, items)
    filters = Filters(index, count_tokens, cutoff_len)
    rows, counts = sources.gather(data, filters)
    report = summarize(data, rows, counts, filters, controls)
    with fresh_folder(root / "data" / "train") as folder:
        write_jsonl(folder / "train.jsonl", table(rows))
        write_json(folder / "dataset_info.json", DATASET_INFO)
    write_text(root / "reports" / "data_card.md", card.write(data, rows, report))
    write_json(root / "reports" / "generate_data.json", report)
    return report


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(prog="python -m stages.generate_data", description=__doc__, formatter_class=form).parse_args()
    with stage_lock("generate_data"), load_params("data", "train.cutoff_len", inputs=["data/local"]) as params:
        _, model = base_model()
        report = make(params.data, params.train.cutoff_len, tokens.counter(model), ROOT)
        for name, count in report["sources"].items():
            print(f"generate_data: {name}: " + ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in count.items() if number))
        total, share = report["tokens"]["total"], report["contamination"]["fraction"]
        print(
            f"generate_data: {report['rows']} rows, {total:,} tokens; {share:.1%} of the different rows were in the benchmark and are gone"
        )


if __name__ == "__main__":
    run_main("generate_data", main)
