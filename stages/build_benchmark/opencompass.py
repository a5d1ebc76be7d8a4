"""Benchmarks of OpenCompass as items: loaded by its loaders, put into words by its templates, with
all that its evaluators will ask for.

Everything is rendered here, once. So an evaluation needs no more of OpenCompass than an evaluator
and a post-processor, and what the model was asked can be read in data/benchmark.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.build_benchmark import examples
from stages.build_benchmark.convert import CONVERT, own, read
from stages.common import wheels
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.lazy import quick_opencompass
from stages.common.questions import normalize
from stages.common.schema import Suite
from stages.common.scoring import Scoring

_CONFIGS = "opencompass.configs.datasets"
_MESSAGES = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}
# what OpenCompass's own wrapper of an OpenAI server takes for the form of a conversation
# (opencompass/models/openai_api.py, 0.5.4)
_META = {
    "round": [
        {"role": "HUMAN", "api_role": "HUMAN"},
        {"role": "BOT", "api_role": "BOT", "generate": True},
    ],
    "reserved_roles": [{"role": "SYSTEM", "api_role": "SYSTEM"}],
}


@dataclass(frozen=True)
class Dataset:
    """One dataset of a suite, ready to be split.

    Attributes:
        name: of the file and of the `benchmark` column.
        items: {question, answer, category, messages, reference, row}; the question is the last user
            turn, `row` the loader's columns where the evaluator looks at them.
        own_val: the items of the benchmark's own validation split.
        shown: of both, the questions that stand among the worked examples of their own prompt,
            normalized.
        scoring: how replies become scores (see `scoring`).
    """

    name: str
    items: list[dict[str, Any]]
    own_val: list[dict[str, Any]]
    scoring: Scoring
    shown: frozenset[str] = frozenset()


def load(name: str, suite: Suite, *, own: bool) -> list[Dataset]:
    """All datasets of a suite.

    Raises:
        PawlError: no such configuration or dataset (names the nearest), no data (says what gets
            it), data that the loader cannot read.
    """
    where = f"benchmark.suites.{name}"
    with _data(suite, where) as path:
        return read_datasets(name, suite, path, own=own)


def read_datasets(name: str, suite: Suite, path: Path, *, own: bool = False) -> list[Dataset]:
    """All datasets of a suite, from data at `path`."""
    where, made = f"benchmark.suites.{name}", []
    for number, config in enumerate(configurations(suite, where, path)):
        abbreviation = str(config["abbr"])
        safe = (
            re.sub(r"[^A-Za-z0-9_.-]", "_", abbreviation)
            if abbreviation.isascii()
            else f"{name}-{number}"
        )
        shown: set[str] = set()
        items = _items(config, path, suite, where, shown)
        own_val = (
            _items(_at(config, suite.val_split), path, suite, where, shown)
            if own and suite.val_split
            else []
        )
        made.append(Dataset(safe, items, own_val, scoring(config, suite), frozenset(shown)))
    return made


def configurations(suite: Suite, where: str, path: Path | None = None) -> list[dict[str, Any]]:
    """The dataset configurations that a suite names, as OpenCompass holds them.

    Raises:
        PawlError: no such module or dataset.
    """
    quick_opencompass()
    if suite.config in ("custom_mcq", "custom_qa"):
        return [_custom(suite.config, suite, path)]
    try:
        module = importlib.import_module(f"{_CONFIGS}.{suite.config}")
    except ModuleNotFoundError as error:
        folder = (
            Path(importlib.import_module("opencompass").__file__ or "").parent
            / "configs/datasets"
            / suite.config.split(".")[0]
        )
        near = sorted(path.stem for path in folder.glob("*_gen*.py"))[:8]
        raise PawlError(
            f"OpenCompass has no configuration {suite.config!r} ({error})",
            where=f"{where}.config",
            fix=(
                f"there are: {', '.join(near)}"
                if near
                else "see opencompass/configs/datasets for what there is"
            ),
        ) from None
    found: dict[str, dict[str, Any]] = {}
    for variable, value in vars(module).items():
        if isinstance(value, list) and ("dataset" in variable.lower()):
            found.update(
                {
                    part["abbr"]: part
                    for part in value
                    if isinstance(part, dict) and "infer_cfg" in part
                }
            )
    wanted = suite.abbreviations or list(found)
    if missing := [abbreviation for abbreviation in wanted if abbreviation not in found]:
        raise PawlError(
            f"{suite.config} has no dataset {missing[0]!r}",
            where=f"{where}.abbreviations",
            fix=f"there are: {', '.join(found)[:300]}",
        )
    return [copy.deepcopy(found[abbreviation]) for abbreviation in wanted]


def scoring(config: dict[str, Any], suite: Suite) -> Scoring:
    """How an evaluation turns replies into scores, as JSON: evaluator, post-processors, the
    deciding metric; classes by dotted name.
    """
    spec = config["eval_cfg"]
    evaluator = {"type": suite.evaluator} if suite.evaluator else to_json(spec["evaluator"])
    post = (
        {"type": suite.postprocessor}
        if suite.postprocessor
        else to_json(spec.get("pred_postprocessor"))
    )
    return {
        "evaluator": evaluator,
        "postprocessor": post,
        "metric": suite.metric,
        "executes_code": suite.executes_code,
        "config": suite.config,
        "abbreviation": str(config["abbr"]),
    }


def to_json(value: Any) -> Any:
    """Configuration as JSON: classes and functions by dotted name, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, type) or callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return value


def render(
    config: dict[str, Any], dataset: Any, taken: list[list[int]] | None = None
) -> list[list[dict[str, str]]]:
    """The conversation of each test item, as OpenCompass's generation task would send it to an
    OpenAI server.

    Args:
        taken: gets the rows that each item's examples are.
    """
    from opencompass.models.base_api import APITemplateParser

    infer = config["infer_cfg"]
    template, ice = (_built(infer.get(key)) for key in ("prompt_template", "ice_template"))
    retriever = infer["retriever"]["type"](
        dataset, **{key: value for key, value in infer["retriever"].items() if key != "type"}
    )
    parser, conversations = APITemplateParser(_META), []
    for index, shots in enumerate(retriever.retrieve()):
        if taken is not None:
            taken.append(shots)
        worked = retriever.generate_ice(shots, ice_template=ice)
        prompt = retriever.generate_prompt_for_generate_task(
            index, worked, gen_field_replace_token="", ice_template=ice, prompt_template=template
        )
        parsed = parser.parse_template(prompt, mode="gen")
        conversations.append(
            [{"role": "user", "content": parsed}]
            if isinstance(parsed, str)
            else [_message(turn) for turn in parsed]
        )
    return conversations


def _message(turn: dict[str, str]) -> dict[str, str]:
    if "content" in turn:
        return {"role": turn["role"], "content": turn["content"]}
    return {"role": _MESSAGES[turn["role"]], "content": turn["prompt"]}


def _built(spec: dict[str, Any] | None) -> Any:
    return (
        spec["type"](**{key: value for key, value in spec.items() if key != "type"})
        if spec
        else None
    )


def _at(config: dict[str, Any], split: str) -> dict[str, Any]:
    return {**config, "reader_cfg": {**config["reader_cfg"], "test_split": split}}


def _items(
    config: dict[str, Any], path: Path, suite: Suite, where: str, shown: set[str]
) -> list[dict[str, Any]]:
    """The items of one dataset's test split; `shown` gets the questions that stand among their own
    examples.
    """
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    given = {
        key: value
        for key, value in config.items()
        if key not in ("type", "infer_cfg", "eval_cfg", "path")
    }
    try:
        dataset = config["type"](path=str(path.resolve()), **given)
        _answers_first(dataset)
        rows = list(dataset.test)
        taken: list[list[int]] = []
        conversations = render(config, dataset, taken)
        told = examples.shown(config, dataset, taken)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AssertionError) as error:
        raise PawlError(
            f"OpenCompass cannot load {config['abbr']}: {type(error).__name__}: {str(error)[:300]}",
            where=str(path),
            fix=(
                f"its loader is {config['type'].__name__}; get the data as it reads them:"
                f" {suite.get or 'see conf/benchmark'}"
            ),
        ) from None
    column = config["reader_cfg"].get("output_column")
    post = config["eval_cfg"].get("dataset_postprocessor")
    keep_rows = suite.executes_code or wants_rows(config["eval_cfg"]["evaluator"])
    items = [
        _item(config, row, turns, _reference(row, column, post), keep_rows)
        for row, turns in zip(rows, conversations, strict=True)
    ]
    shown |= {normalize(items[number]["question"]) for number in told}
    return items


def _answers_first(dataset: Any) -> None:
    """Templates are filled in column by column: with what the model is shown last, "{answer}" in a
    question stays as it is.
    """
    test = dataset.reader.dataset["test"]
    shown = [name for name in test.column_names if name in dataset.reader.input_columns]
    dataset.reader.dataset["test"] = test.select_columns(
        [*(name for name in test.column_names if name not in shown), *shown]
    )


def wants_rows(spec: dict[str, Any]) -> bool:
    """Whether an evaluator looks at the dataset's other columns: by a parameter of its score(), or
    in a judge's template.
    """
    return (
        "test_set" in inspect.signature(spec["type"].score).parameters
        or "llm_evaluator" in spec
        or "dataset_cfg" in spec
    )


def _reference(row: dict[str, Any], column: str | None, post: dict[str, Any] | None) -> Any:
    reference = row[column] if column else ""
    if post:
        process = post["type"]
        if isinstance(process, str):
            from opencompass.registry import TEXT_POSTPROCESSORS

            process = TEXT_POSTPROCESSORS.get(process)
        reference = process(
            reference, **{key: value for key, value in post.items() if key != "type"}
        )
    return reference


def _item(
    config: dict[str, Any],
    row: dict[str, Any],
    turns: list[dict[str, str]],
    reference: Any,
    keep_row: bool,
) -> dict[str, Any]:
    asked = [turn["content"] for turn in turns if turn["role"] == "user"]
    plain = {key: value for key, value in row.items() if key not in ("subdivision", "idx")}
    return {
        "question": asked[-1] if asked else turns[-1]["content"],
        "answer": (
            reference
            if isinstance(reference, str)
            else json.dumps(reference, ensure_ascii=False, sort_keys=True, default=str)
        ),
        "category": str(config["abbr"]),
        "messages": turns,
        "reference": reference,
        **({"row": plain} if keep_row else {}),
    }


@contextmanager
def _data(suite: Suite, where: str) -> Iterator[Path]:
    """What the loader is given: the path in data/local where it exists, else what the wheel holds,
    written as the loader reads it.
    """
    path = ROOT / suite.path
    with tempfile.TemporaryDirectory(prefix="pawl-") as name:
        folder = Path(name)
        if not path.exists():
            if not suite.package:
                raise PawlError(
                    "the benchmark's data are not here",
                    where=str(path),
                    fix=suite.get or f"put them at {suite.path}",
                )
            wheels.extract(suite.package, suite.sha256, suite.file, folder / "rows.jsonl")
            path = CONVERT[suite.convert](read(folder / "rows.jsonl"), folder / "data")
        is_own = suite.config in ("custom_mcq", "custom_qa")
        yield (
            own(path, folder / "own.jsonl", chosen=suite.config == "custom_mcq") if is_own else path
        )


def _custom(kind: str, suite: Suite, path: Path | None) -> dict[str, Any]:
    """OpenCompass's configuration for a JSONL file: rows {question, A, B, ..., answer} or
    {question, answer}.
    """
    from opencompass.datasets import custom

    name = Path(suite.path).stem
    if kind == "custom_qa":
        meta = {
            "abbr": name,
            "path": suite.path,
            "input_columns": ["question"],
            "output_column": "answer",
        }
        meta["evaluator"] = importlib.import_module(
            "opencompass.openicl.icl_evaluator.icl_hf_evaluator"
        ).AccwithDetailsEvaluator
        return dict(custom.make_qa_gen_config(meta))
    letters = (
        [key for key in read(path)[0] if key not in ("question", "answer")] if path else ["A", "B"]
    )
    meta = {
        "abbr": name,
        "path": suite.path,
        "input_columns": ["question"],
        "output_column": "answer",
        "options": letters,
        "human_prompt": "{question}",
        "bot_prompt": "{answer}",
    }
    return dict(custom.make_mcq_gen_config(meta))
