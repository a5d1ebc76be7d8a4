"""The rows of data/train as LLaMA-Factory will see them: counted, the longest found, some of them
rendered.
"""

from __future__ import annotations

import copy
import heapq
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from stages.common.files import ROOT, read_json, write_json, write_text
from stages.common.schema import Train
from stages.train.arguments import DATASET, EVAL_DATASET
from stages.train.known import refuse

_LOOKED_AT = 64
"""Rows with the most characters, among which the one with the most tokens is looked for."""
_BEYOND = 10**6
_IDS = {
    "sft": ("input_ids",),
    "dpo": ("chosen_input_ids", "rejected_input_ids"),
    "rm": ("chosen_input_ids", "rejected_input_ids"),
}


@dataclass(frozen=True)
class Rows:
    """`longest`: the rows with the most characters, longest first, as they are written; `first`:
    the first ones.

    `numbers`: which rows the longest ones are, counted from 1.
    """

    train: int
    held_out: int
    info: dict[str, Any]
    longest: list[str]
    first: list[str]
    numbers: list[int]


def read_rows(folder: Path) -> Rows:
    """Count and look at the rows of data/train; an empty or missing file is refused here, not by a
    traceback a minute later.

    Raises:
        PawlError: no dataset_info.json, no training rows.
    """
    info = read_json(folder / "dataset_info.json")
    if DATASET not in info:
        raise refuse(
            f"dataset_info.json names no dataset {DATASET!r}",
            str(folder / "dataset_info.json"),
            "run 'dvc repro generate_data'",
        )
    count, longest, first, numbers = _scan(folder / str(info[DATASET]["file_name"]))
    if not count:
        fix = "see reports/generate_data.json for what the filters removed"
        raise refuse(
            "there are no training rows", str(folder / str(info[DATASET]["file_name"])), fix
        )
    held_out = (
        _scan(folder / str(info[EVAL_DATASET]["file_name"]))[0] if EVAL_DATASET in info else 0
    )
    return Rows(count, held_out, info, longest, first, numbers)


def has_eval(folder: Path) -> bool:
    """Whether data/train holds rows to evaluate on; cheap, for the configuration."""
    info = (
        read_json(folder / "dataset_info.json") if (folder / "dataset_info.json").exists() else {}
    )
    file = folder / str(info.get(EVAL_DATASET, {}).get("file_name", ""))
    return file.is_file() and file.stat().st_size > 0


def count_rows(folder: Path) -> int:
    """Rows of data/train; cheap, for the configuration. 0 if there are none."""
    info = (
        read_json(folder / "dataset_info.json") if (folder / "dataset_info.json").exists() else {}
    )
    file = folder / str(info.get(DATASET, {}).get("file_name", ""))
    if not file.is_file():
        return 0
    with open(file, "rb") as lines:
        return sum(1 for line in lines if line.strip())


def _scan(file: Path) -> tuple[int, list[str], list[str], list[int]]:
    count, longest, first = 0, list[tuple[int, int, str]](), list[str]()
    try:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                if not line.strip():
                    continue
                count += 1
                if len(first) < 8:
                    first.append(line)
                entry = (len(line), -count, line)
                if len(longest) < _LOOKED_AT:
                    heapq.heappush(longest, entry)
                elif entry > longest[0]:
                    heapq.heapreplace(longest, entry)
    except FileNotFoundError:
        pass
    ordered = sorted(longest, reverse=True)
    return count, [line for *_, line in ordered], first, [-number for _, number, _ in ordered]


def check_stage(rows: Rows, train: Train) -> None:
    """Refuse rows of another kind than the stage trains on."""
    entry = rows.info[DATASET]
    columns = entry.get("columns", {})
    kind = "thumbs" if columns.get("kto_tag") else "answers"
    if entry.get("ranking"):
        kind = "preferences"
    if (
        kind == "answers"
        and entry.get("formatting", "alpaca") == "alpaca"
        and columns
        and not columns.get("response")
    ):
        kind = "plain text"
    # of a conversation, LLaMA-Factory's pt would take the first message alone and drop the answer
    wanted = {
        "dpo": "preferences",
        "rm": "preferences",
        "kto": "thumbs",
        "sft": "answers",
        "pt": "plain text",
    }[train.stage]
    if kind != wanted:
        fix = f"choose a data option that makes {wanted}, or a stage that learns from {kind}"
        raise refuse(
            f"train.stage is {train.stage}, which learns from {wanted}; data/train holds {kind}",
            "train.stage",
            fix,
        )


def aligned(lines: list[str], rows: Rows, data_args: Any) -> list[dict[str, Any]]:
    """Rows in LLaMA-Factory's common form: _prompt, _response, _system, ...

    Raises:
        PawlError: a row that the converter cannot read.
    """
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import DatasetAttr

    attribute = DatasetAttr("file", dataset_name=str(rows.info[DATASET]["file_name"]))
    attribute.join(rows.info[DATASET])
    convert = get_dataset_converter(attribute.formatting, attribute, data_args)
    try:
        examples = [json.loads(line) for line in lines]
        columns = {name: None for example in examples for name in example}
        return [convert({**columns, **example}) for example in examples]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        fix = (
            "see LLaMA-Factory's data/README.md for its columns, and dataset_info.json for those"
            " that are named"
        )
        raise refuse(
            f"LLaMA-Factory cannot read a row: {type(error).__name__}: {error}", "data/train", fix
        ) from None


def lengths(
    examples: list[dict[str, Any]], train: Train, template: Any, tokenizer: Any, data_args: Any
) -> list[int]:
    """Tokens of each row, not cut at cutoff_len; of preference rows the longer answer. Empty for
    plain text, which is cut into windows.
    """
    from llamafactory.data import loader

    kind = {"dpo": "rm"}.get(train.stage, train.stage)
    if kind == "pt":
        return []
    whole = copy.copy(data_args)
    whole.cutoff_len, whole.packing, whole.neat_packing = _BEYOND, False, False
    processor = loader._get_dataset_processor(whole, kind, template, tokenizer, None)
    found = []
    for example in examples:
        done = processor.preprocess_dataset({name: [value] for name, value in example.items()})
        found.append(
            max(
                (
                    len(ids)
                    for name in _IDS.get(train.stage, ("input_ids",))
                    for ids in done.get(name, [])
                ),
                default=0,
            )
        )
    return found


def write_longest(folder: Path, rows: Rows, order: list[int], count: int) -> None:
    """A dataset of the `count` longest rows, repeated where there are fewer, for the micro run."""
    lines = [rows.longest[number] for number in order] or rows.longest
    chosen = [lines[number % len(lines)].rstrip("\n") for number in range(count)]
    write_text(folder / "rows.jsonl", "\n".join(chosen) + "\n")
    write_json(
        folder / "dataset_info.json", {DATASET: rows.info[DATASET] | {"file_name": "rows.jsonl"}}
    )


def rebuilt(data: Any, train: Train) -> bool:
    """Whether the next repro makes data/train anew, from other parameters than it was made from. Of
    the stages, pt alone has other rows.
    """
    lock: Any = OmegaConf.load(ROOT / "dvc.lock") if (ROOT / "dvc.lock").exists() else {}
    made = OmegaConf.select(OmegaConf.create(lock), "stages.generate_data.params", default={}).get(
        "params.yaml", {}
    )
    other_rows = (made.get("train.stage") == "pt") != (train.stage == "pt")
    return bool(
        other_rows
        or made.get("data") != OmegaConf.structured(data)
        or made.get("train.cutoff_len") != train.cutoff_len
    )
