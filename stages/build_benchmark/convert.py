"""Rows of a package's file, written as OpenCompass's loader of that benchmark reads them.

Each function gets the rows in file order and the folder or file to write, and returns what the
loader is given as its path.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import sha256_text, write_jsonl, write_text
from stages.common.records import Bad, parse

Rows = list[dict[str, Any]]


def gsm8k(rows: Rows, target: Path) -> Path:
    """The loader takes what follows "#### " for the answer, and wants a training split too: none of
    its rows is used.
    """
    solved = [{"question": row["question"], "answer": f"#### {row['answer']}"} for row in rows]
    write_jsonl(target / "test.jsonl", solved)
    write_jsonl(target / "train.jsonl", solved[:1])
    return target


def ifeval(rows: Rows, target: Path) -> Path:
    keyed = [
        {
            "key": int(row["task_id"].rpartition("/")[2]),
            **{k: row[k] for k in row if k != "task_id"},
        }
        for row in rows
    ]
    # a column of the loader has one type: each key that any instruction takes is there in all of
    # them, None where it is not meant
    names = sorted({name for row in keyed for kwargs in row["kwargs"] for name in kwargs})
    for row in keyed:
        row["kwargs"] = [{name: kwargs.get(name) for name in names} for kwargs in row["kwargs"]]
    write_jsonl(target.with_suffix(".jsonl"), keyed)
    return target.with_suffix(".jsonl")


def arc(rows: Rows, target: Path) -> Path:
    """Questions with other than four choices are left out by the loader itself."""
    write_jsonl(
        target.with_suffix(".jsonl"),
        (
            {
                "question": {"stem": row["question"], "choices": _choices(row)},
                "answerKey": row["answer"],
            }
            for row in rows
        ),
    )
    return target.with_suffix(".jsonl")


def hellaswag(rows: Rows, target: Path) -> Path:
    """The loader cuts the query at its first ": ", which was the activity's name."""
    write_jsonl(
        target.with_suffix(".jsonl"),
        (
            {
                "query": f"context: {row['question']}",
                "choices": row["choices"],
                "gold": row["labels"].index(row["answer"]),
            }
            for row in rows
        ),
    )
    return target.with_suffix(".jsonl")


def piqa(rows: Rows, target: Path) -> Path:
    plain = [
        {
            "id": row["task_id"],
            "goal": row["goal"],
            "sol1": row["choices"][0],
            "sol2": row["choices"][1],
        }
        for row in rows
    ]
    labels = [str(row["labels"].index(row["answer"])) for row in rows]
    for name, count in (("dev", len(rows)), ("train", 1)):
        write_jsonl(target / f"{name}.jsonl", plain[:count])
        write_text(target / f"{name}-labels.lst", "\n".join(labels[:count]) + "\n")
    return target


def boolq(rows: Rows, target: Path) -> Path:
    said = {
        True: "true",
        False: "false",
        "yes": "true",
        "no": "false",
        "true": "true",
        "false": "false",
        "A": "true",
        "B": "false",
    }
    write_jsonl(
        target.with_suffix(".jsonl"),
        (
            {"question": row["question"], "passage": row["passage"], "label": said[_plain(row)]}
            for row in rows
        ),
    )
    return target.with_suffix(".jsonl")


def mbpp(rows: Rows, target: Path) -> Path:
    """The loader leaves out the first seven rows (they were the examples of its prompt) and takes
    the next 257 only.
    """
    tests = [
        {
            "prompt": row["prompt"],
            "test_list": row["test"].split("\n"),
            "task_id": int(row["task_id"].rpartition("/")[2]),
            "code": "",
        }
        for row in rows
    ]
    write_jsonl(target.with_suffix(".jsonl"), tests)
    return target.with_suffix(".jsonl")


def humaneval(rows: Rows, target: Path) -> Path:
    write_jsonl(target.with_suffix(".jsonl"), rows)
    return target.with_suffix(".jsonl")


def choices(rows: Rows, target: Path) -> Path:
    """Multiple choice as rows {question, A, B, ..., answer}, the choices in the package's order.

    A question that has one choice twice has no one right letter, so it is left out (two of GPQA's
    198).
    """
    letters = [chr(number) for number in range(ord("A"), ord("Z") + 1)]
    write_jsonl(
        target.with_suffix(".jsonl"),
        (
            {
                "question": row["question"],
                **dict(zip(letters, row["choices"], strict=False)),
                "answer": row["answer"],
            }
            for row in rows
            if len({str(choice).strip() for choice in row["choices"]}) == len(row["choices"])
        ),
    )
    return target.with_suffix(".jsonl")


def shuffled_choices(rows: Rows, target: Path) -> Path:
    """As `choices`, in an order that a hash draws: TruthfulQA's file names the right one first."""
    drawn = []
    for row in rows:
        right = row["choices"][ord(row["answer"]) - ord("A")]
        keyed = [(sha256_text(f"{row['question']}\0{choice}"), choice) for choice in row["choices"]]
        mixed = [choice for _, choice in sorted(keyed, key=itemgetter(0))]
        drawn.append({**row, "choices": mixed, "answer": chr(ord("A") + mixed.index(right))})
    return choices(drawn, target)


def own(path: Path, target: Path, *, chosen: bool) -> Path:
    """A file of one's own as rows {question, answer}, or with choices {question, A, B, ...,
    answer}: asked as training rows ask it.

    Raises:
        PawlError: a row that cannot be used, or that has several turns, or choices where the others
            have none.
    """
    letters = '"A": ..., "B": ..., ' if chosen else ""
    fix = f'write rows {{"question": ..., {letters}"answer": ...}}'
    rows: Rows = []
    for found in parse(path, str(path), "question"):
        if isinstance(found, Bad):
            raise PawlError(found.reason, where=found.where, fix=fix)
        where, question = found
        if question.context or bool(question.choices) != chosen:
            what = "an item without choices" if chosen else "an item with choices"
            if question.context:
                what = "an item with several turns"
            raise PawlError(
                what,
                where=where,
                fix=(
                    fix
                    if question.context
                    else "benchmark=custom_mcq takes choices, custom_qa none"
                ),
            )
        rows.append(
            {
                "question": question.question,
                "answer": question.answer.strip(),
                **dict(question.choices),
            }
        )
    columns = sorted({key for row in rows for key in row} - {"question", "answer"})
    write_jsonl(
        target,
        (
            {
                "question": row["question"],
                "answer": row["answer"],
                **{at: row.get(at) for at in columns},
            }
            for row in rows
        ),
    )
    return target


def _choices(row: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"text": text, "label": label}
        for text, label in zip(row["choices"], row["labels"], strict=True)
    ]


def _plain(row: dict[str, Any]) -> Any:
    answer = row["answer"]
    return answer if isinstance(answer, bool) else str(answer)


CONVERT: dict[str, Callable[[Rows, Path], Path]] = {
    function.__name__: function
    for function in (
        gsm8k,
        ifeval,
        arc,
        hellaswag,
        piqa,
        boolq,
        choices,
        shuffled_choices,
        mbpp,
        humaneval,
    )
}


def read(path: Path) -> Rows:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]
