"""Made-up reports of a whole run, consistent with one another, for the tests of what reads them.
Nothing in them was measured.
"""

from __future__ import annotations

import atexit
import csv
import functools
import io
import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.common.files import sha256_file, sha256_text, write_json, write_jsonl, write_text
from stages.common.items import ids_sha256, item_id
from stages.common.reports.evaluation import Answer, EvalSummary, write_rows
from stages.evaluate.score import KINDS
from stages.evaluate.summary import summarize

TASKS = ("chain_sum", "word_sequence_reversal")
HIT = {
    "benchmark": "chain_sum",
    "split": "test",
    "match": "exact",
    "rows": 21,
    "question": "A SECRET TEST QUESTION",
}
FINGERPRINT = {
    "engine": "transformers",
    "engine_version": "5.6.0",
    "dtype": "float32",
    "device": "cpu",
    "base_sha256": "b" * 64,
    "chat_template_sha256": "c" * 64,
    "temperature": 0.0,
    "top_p": 1.0,
    "seed": 0,
    "max_output_tokens": 32,
    "evaluator": "Exact",
}


def make_row(
    number: int,
    correct: bool,
    *,
    benchmark: str = "chain_sum",
    split: str = "val",
    prediction: str | None = None,
    **changes: Any,
) -> Answer:
    """Item `number` of a benchmark: the same number is the same item, whoever answers it."""
    gold = str(100 + number)
    given = prediction if prediction is not None else gold if correct else "no idea"
    values: dict[str, Any] = {
        "item_id": item_id(benchmark, f"{split} question {number}", gold),
        "benchmark": benchmark,
        "split": split,
        "correct": correct,
        "score": float(correct),
        "prediction": given,
        "gold": gold,
        "prompt_tokens": 20,
        "output_tokens": 4,
        "truncated": False,
        "repeat": 0,
    }
    return KINDS[split](**{**values, **changes})


def changed(row: Answer, **changes: Any) -> Answer:
    """A row with other values, checked again."""
    values = {**row.plain(), **changes}
    return KINDS[values["split"]](**values)


def make_rows(
    rate: float,
    n: int = 100,
    *,
    seed: int = 0,
    split: str = "val",
    tasks: Sequence[str] = TASKS,
    verbose: float = 0,
) -> list[Answer]:
    """`n` rows a task, each correct with probability `rate`; a share `verbose` of the others holds
    the answer in another form.
    """
    rng = random.Random(seed)
    rows = []
    for task in tasks:
        for number in range(n):
            correct = rng.random() < rate
            wordy = (
                f"The answer is {100 + number}" if not correct and rng.random() < verbose else None
            )
            rows.append(make_row(number, correct, benchmark=task, split=split, prediction=wordy))
    return rows


def write_side(
    folder: Path,
    rows: list[Answer],
    *,
    adapter: str | None = None,
    split: str = "val",
    **changes: Any,
) -> None:
    """One evaluation as the evaluate stage leaves it: SPLIT.jsonl and SPLIT.json. `changes`
    overwrite keys of the summary.
    """
    fingerprint = changes.get("fingerprint", {**FINGERPRINT, "adapter_sha256": adapter})
    short = sha256_text(json.dumps(fingerprint, sort_keys=True))[:16]
    write_rows(
        folder / f"{split}.jsonl", (changed(row, split=split, fingerprint=short) for row in rows)
    )
    overall, benchmarks = summarize(rows)
    summary = {
        "overall": overall.plain(),
        "benchmarks": {name: scores.plain() for name, scores in benchmarks.items()},
        "split": split,
        "model": "synthetic",
        "items_sha256": ids_sha256(row.item_id for row in rows),
        "fingerprint": fingerprint,
        "settings": {"concurrency": 32},
        "runtime_s": 12.5,
        "rows_sha256": sha256_file(folder / f"{split}.jsonl"),
    }
    write_json(folder / f"{split}.json", {**summary, **changes})


def make_summary(**changes: Any) -> EvalSummary:
    """The summary of an evaluation, for readers of its conditions."""
    overall, benchmarks = summarize(make_rows(0.5, 10))
    return EvalSummary(
        **{
            "split": "val",
            "overall": overall,
            "benchmarks": benchmarks,
            "fingerprint": FINGERPRINT,
            **changes,
        }
    )


def write_items(root: Path, n: int = 100) -> None:
    """The items behind the rows of `write_run`, validation and test."""
    for split in ("val", "test"):
        for task in TASKS:
            rows = [(f"{split} question {number}", str(100 + number)) for number in range(n)]
            write_jsonl(
                root / f"data/benchmark/{split}/{task}.jsonl",
                (
                    {
                        "item_id": item_id(task, q, a),
                        "benchmark": task,
                        "question": q,
                        "answer": a,
                        "category": task,
                    }
                    for q, a in rows
                ),
            )


def write_losses(path: Path, losses: Sequence[float], held_out: Sequence[float] = ()) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "epoch", "split", "loss"])
    writer.writerows(
        [5 * (k + 1), (k + 1) / len(losses), "train", loss] for k, loss in enumerate(losses)
    )
    writer.writerows(
        [20 * (k + 1), (k + 1) / len(held_out), "eval", loss] for k, loss in enumerate(held_out)
    )
    write_text(path, out.getvalue())


def write_run(
    root: Path,
    *,
    base: float = 0.1,
    tuned: float = 0.7,
    n: int = 100,
    seed: int = 1,
    runtime_s: float = 240.5,
) -> Path:
    """A whole run's reports under `root`/reports, as every stage before judge leaves them. Returns
    `root`.
    """
    made = _made_run(base, tuned, n, seed, runtime_s)
    shutil.copytree(made, root, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return root


@functools.cache
def _made_run(base: float, tuned: float, n: int, seed: int, runtime_s: float) -> Path:
    """The same, once for all tests of a process, to be copied: most of them change a few figures of
    one run.
    """
    root = Path(tempfile.mkdtemp(prefix="pawl-run-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    reports = root / "reports"
    write_items(root, n)
    for split, count in (("val", n), ("test", n)):
        offset = 0 if split == "val" else 10
        write_side(
            reports / "baseline",
            make_rows(base, count, seed=seed + offset, split=split, verbose=0.3),
            split=split,
            runtime_s=runtime_s,
        )
        write_side(
            reports / f"eval_{split}",
            make_rows(tuned, count, seed=seed + offset + 1, split=split, verbose=0.1),
            split=split,
            adapter="a" * 64,
            runtime_s=runtime_s,
        )
    counts = {"val": n, "test": n}
    write_json(
        reports / "build_benchmark.json",
        {
            "name": "synthetic",
            "tasks": {task: counts for task in TASKS},
            "val_sha256": "d" * 64,
            "test_sha256": "e" * 64,
        },
    )
    source = {
        "read": 350,
        "bad": 0,
        "duplicates": 12,
        "contaminated": 21,
        "too_long": 0,
        "kept": 317,
    }
    write_json(
        reports / "generate_data.json",
        {
            "rows": 634,
            "seed": 7,
            "sources": {task: source for task in TASKS},
            "positive_control": {
                task: {"exact": True, "wrapped": None} for task in ("(control)", *TASKS)
            },
            "tokens": {"total": 41234, "p50": 60, "p90": 80, "p99": 95, "max": 110},
            "contamination": {"fraction": 0.06, "hits": [HIT]},
        },
    )
    write_json(
        reports / "train.json",
        {
            "initial_loss": 3.2,
            "final_loss": 0.31,
            "best_eval_loss": None,
            "steps": 80,
            "epochs": 1.0,
            "rows": 634,
            "trainable_parameters": 4_884_480,
            "total_parameters": 139_400_064,
            "runtime_s": runtime_s,
            "tokens_per_s": 171.4,
            "peak_memory_gib": 2.9,
            "adapter_sha256": "a" * 64,
        },
    )
    write_losses(
        reports / "loss.csv",
        [3.2, 2.1, 1.2, 0.8, 0.55, 0.45, 0.4, 0.37, 0.35, 0.34, 0.33, 0.32, 0.32, 0.31, 0.31, 0.31],
    )
    return root
