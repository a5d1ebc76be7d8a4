"""The self-test of every option of conf/benchmark, as a table:
`python -m stages.build_benchmark --self-test`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from stages.build_benchmark import convert, opencompass, selftest
from stages.build_benchmark.splits import build
from stages.common.errors import PawlError
from stages.common.files import ROOT, write_jsonl
from stages.common.schema import Benchmark
from stages.common.scoring import Item, Scoring

_COLUMNS = ("gold", "sentences", "wrong", "empty", "label", "essay")
_QA = [
    ("What is the capital of France?", "Paris"),
    ("How much is 12 + 30?", "42"),
    ("Who wrote Faust?", "Goethe"),
    ("Is ice cold?", "yes"),
]
_MCQ = [
    {"question": f"Which one is {word}?", "A": "red", "B": "blue", "C": "green", "answer": letter}
    for word, letter in (("the sky", "B"), ("grass", "C"), ("blood", "A"), ("the sea", "B"))
]


def show() -> None:
    """Print the table; options whose data are not here stand below it, with what gets them."""
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    print(
        "| option | dataset | scored by | "
        + " | ".join(_COLUMNS)
        + " |\n|---|---|---|"
        + "---|" * len(_COLUMNS)
    )
    absent = []
    for path in sorted((ROOT / "conf/benchmark").glob("*.yaml")):
        try:
            for name, found in examined(path):
                print(
                    f"| {path.stem} | {name} | {found['scored_by']} | "
                    + " | ".join(_cell(found, column) for column in _COLUMNS)
                    + " |",
                    flush=True,
                )
        except PawlError as error:
            absent.append(f"{path.stem}: {error.what}; {error.fix}")
    print(
        "\nA cell is the share of replies that scoring gets right. Two numbers: OpenCompass's own,"
        " and what decides."
    )
    for line in absent:
        print(line)


def examined(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each dataset of an option and what the self-test says of it; options for items of one's own
    are tried with a few examples.
    """
    benchmark = declared(path)
    tasks = list(_examples(benchmark)) if _own(benchmark) else _built(benchmark)
    for name, val, test, scoring in tasks:
        yield name, selftest.examine_items(name, val, test, scoring, benchmark)


def declared(path: Path) -> Benchmark:
    """An option of conf/benchmark as an object."""
    made = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(Benchmark), OmegaConf.load(path))
    )
    assert isinstance(made, Benchmark)
    return made


def _own(benchmark: Benchmark) -> bool:
    paths = [source.path for source in benchmark.tasks.values()]
    paths += [suite.path for suite in benchmark.suites.values()]
    return paths == ["data/local/items.jsonl"] and not (ROOT / paths[0]).exists()


def _built(benchmark: Benchmark) -> list[tuple[str, list[Item], list[Item], Scoring | None]]:
    return [(name, task.val, task.test, task.scoring) for name, task in build(benchmark).items()]


def _examples(
    benchmark: Benchmark,
) -> Iterator[tuple[str, list[Item], list[Item], Scoring | None]]:
    rows = [{"question": question, "answer": answer} for question, answer in _QA]
    for name in benchmark.tasks:
        yield (
            f"{name} (examples)",
            [_example(name, row) for row in rows],
            [],
            None,
        )
    for name, suite in benchmark.suites.items():
        with tempfile.TemporaryDirectory(prefix="pawl-") as folder:
            path = Path(folder) / "items.jsonl"
            write_jsonl(path, _MCQ if suite.config == "custom_mcq" else rows)
            read = convert.own(
                path, Path(folder) / "own.jsonl", chosen=suite.config == "custom_mcq"
            )
            for dataset in opencompass.read_datasets(name, suite, read):
                yield (
                    f"{name} (examples)",
                    [_example(name, item) for item in dataset.items],
                    [],
                    dataset.scoring,
                )


def _example(name: str, item: dict[str, Any]) -> Item:
    return cast(Item, {"item_id": item["question"], "benchmark": name, **item})


def _cell(found: dict[str, Any], column: str) -> str:
    shares = [found[who][column] for who in ("opencompass", "decides") if who in found]
    if not found["items"]:
        return "wrong by rule" if column in ("empty", "label") else "not known"
    said = ["-" if share is None else f"{100 * share:.0f}" for share in shares]
    return " → ".join(said if len(said) < 2 or said[0] != said[1] else said[:1])
