"""Make the validation and test items, fixed by the benchmark's seed: the same parameters give the
same bytes.

python -m stages.build_benchmark
python -m stages.build_benchmark --self-test
    which known replies each benchmark's scoring gets right; writes nothing

Writes data/benchmark/val/<task>.jsonl and data/benchmark/test/<task>.jsonl, rows {item_id,
benchmark, question, answer, category}; for a dataset of OpenCompass also the conversation, what its
evaluator compares with, and <task>.scoring.json, which names that evaluator.
reports/build_benchmark.json has counts, hashes and licences.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stages.build_benchmark import selftest, table
from stages.build_benchmark.splits import Task, build
from stages.common import detect
from stages.common.config import load_params
from stages.common.errors import run_main
from stages.common.files import ROOT, fresh_folder, sha256_folder, write_json, write_jsonl
from stages.common.items import SPLITS
from stages.common.keys import tracked
from stages.common.parts import takes_train_part
from stages.common.process import stage_lock
from stages.common.reports.benchmark import BenchmarkReport, SelfTest, TaskCounts
from stages.common.schema import Benchmark

_GROUPS = 50  # of places of one question in a file, that the report names


def write(tasks: dict[str, Task], folder: Path) -> dict[str, str]:
    """Write both splits under `folder`; the hash of each, over names and contents of its files."""
    hashes = {}
    for which in SPLITS:
        with fresh_folder(folder / which) as target:
            for name, task in tasks.items():
                write_jsonl(target / f"{name}.jsonl", getattr(task, which))
                if task.scoring:
                    write_json(target / f"{name}.scoring.json", task.scoring)
        hashes[f"{which}_sha256"] = sha256_folder(folder / which)
    return hashes


def counts(task: Task) -> TaskCounts:
    """What the report says of a task; what is nothing is left out."""
    more: dict[str, Any] = {
        "repeated": task.repeated[:_GROUPS],
        "in_worked_examples": task.shown,
        "spare": task.spare,
    }
    told = {name: value for name, value in more.items() if value}
    return TaskCounts(
        val=len(task.val),
        test=len(task.test),
        duplicates=task.duplicates,
        licence=task.licence,
        **told,
    )


def make(benchmark: Benchmark, root: Path) -> BenchmarkReport:
    """Build and write everything under `root`, and return the report."""
    tasks = build(benchmark)
    tested = {
        name: selftest.examine_items(name, task.val, task.test, task.scoring, benchmark)
        for name, task in tasks.items()
    }
    report = BenchmarkReport(
        name=benchmark.name,
        seed=benchmark.seed,
        tasks={name: counts(task) for name, task in tasks.items()},
        duplicates=sum(task.duplicates for task in tasks.values()),
        licence="; ".join(sorted({task.licence for task in tasks.values() if task.licence})),
        self_test={name: SelfTest(**found) for name, found in tested.items()},
        **write(tasks, root / "data" / "benchmark"),
    )
    report.write(root / "reports" / "build_benchmark.json")
    return report


def remarks(name: str, task: TaskCounts, params: Any) -> list[str]:
    """What a person should know of a task's size before anything is trained."""
    found, spare = [], task.spare
    if train := spare.get("train"):
        taken = takes_train_part(params.benchmark.tasks[name], params.data.sources)
        unused = (
            ", which no training source takes (part: train): benchmark.splits=halves asks them too"
        )
        found.append(f"{train} more questions are in the train part{'' if taken else unused}")
    if beyond := spare.get("beyond"):
        found.append(
            f"{beyond} more questions are beyond benchmark.val_items and benchmark.test_items"
        )
    return [*found, detect.told(task.val, params.judge.alpha, params.judge.min_effect)]


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m stages.build_benchmark", description=__doc__, formatter_class=form
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="of every option of conf/benchmark whose data can be had here",
    )
    if parser.parse_args().self_test:
        table.show()
        return
    with (
        stage_lock("build_benchmark"),
        load_params(
            *tracked("build_benchmark"),
            untracked=["data.sources", "judge.alpha", "judge.min_effect"],
            inputs=["data/local"],
        ) as params,
    ):
        report = make(params.benchmark, ROOT)
        for name, task in report.tasks.items():
            print(
                f"build_benchmark: {name}: {task.val} validation and {task.test} test items,"
                f" {task.duplicates} duplicates dropped"
            )
            if shown := task.in_worked_examples:
                print(
                    f"build_benchmark: {name}: {shown} questions left out: its own worked examples"
                    " show them with their answers"
                )
            for remark in remarks(name, task, params):
                print(f"build_benchmark: {name}: {remark}")
            print(f"build_benchmark: {name}: scored by {report.self_test[name].scored_by}")
        print(
            f"build_benchmark: no question is in both; val {report.val_sha256[:12]}, test"
            f" {report.test_sha256[:12]}"
        )


if __name__ == "__main__":
    run_main("build_benchmark", main)
