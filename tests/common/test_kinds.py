"""Files as people have them: published data sets, exports of spreadsheets and pandas, broken ones.
Rows are used, or lost and counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from tests.common.test_records import read, written

U, A = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
QA = {"question": "q", "answer": "a"}
REPLY = {"from": "gpt", "value": "a"}


def said(text: str) -> dict[str, str]:
    return {"from": "human", "value": text}


def lines(*rows: Any) -> str:
    return "\n".join(map(json.dumps, rows))


FILES: dict[str, tuple[str, int, int]] = {  # content, rows used, rows lost
    "sharegpt.jsonl": (
        lines(
            {"id": "x", "conversations": [{"from": "system", "value": "s"}, said("u"), REPLY]},
            {"conversations": [said("v"), {"from": "bing", "value": "a"}]},
            {
                "conversations": [
                    said("w"),
                    {"from": "function_call", "value": "{}"},
                    {"from": "observation", "value": "1"},
                    REPLY,
                ]
            },
            {"conversations": [said("x"), REPLY | {"weight": None}]},
        ),
        3,
        1,
    ),
    "openai.jsonl": (
        lines(
            {"messages": [U, A]},
            {"messages": [U, A | {"weight": 0}, U, A | {"weight": 1}]},
            {"messages": [U, A | {"weight": 1}], "tools": []},
            {
                "messages": [
                    U,
                    {"role": "assistant", "content": None, "function_call": {"name": "f"}},
                ],
                "functions": [{"name": "f"}],
            },
            {"messages": [{"role": "developer", "content": "s"}, U, A]},
            {"messages": [U, A | {"name": "Ann", "refusal": None}]},
        ),
        4,
        2,
    ),
    "alpaca.jsonl": (
        lines(
            {"instruction": "i", "input": "", "output": "o", "history": [["a", "b"], ["c", "d"]]},
            {"instruction": "i", "input": None, "output": "o", "history": None},
            {
                "instruction": "i",
                "input": "x",
                "output": "o",
                "text": "Below.\n### i\n### x\n### o",
            },
            {"instruction": "i", "output": "o", "history": 7},
        ),
        3,
        1,
    ),
    "pandas.csv": ("\ufeff,question,answer,Unnamed: 0.1\n0,q,a,0\n1,r,b,1\n", 2, 0),
    "excel.csv": ('\ufeffquestion;answer;score\r\n"How; much?";"1.234,50";"3,5"\r\n', 1, 0),
    "mac.csv": ("question,answer\rq,a\rr,b\r", 2, 0),
    "mac.jsonl": (lines(QA, QA, QA).replace("\n", "\r"), 0, 3),
    "windows.jsonl": (lines(QA, QA).replace("\n", "\r\n") + "\r\n\x1a", 2, 1),
    "commas.json": (f"[{json.dumps(QA)},\n{json.dumps(QA)},]", 2, 0),
    "commas.jsonl": (lines(QA, QA).replace("\n", ",\n"), 1, 1),
    "nan.jsonl": (
        '{"question": "q", "answer": "a", "score": NaN}\n{"question": "q", "answer": "a"}',
        1,
        1,
    ),
    "nested.jsonl": (
        lines(QA | {"question": ["q"]}, QA | {"answer": {"text": "a"}}, [[QA]], QA),
        1,
        3,
    ),
    "repeated.jsonl": ('{"question": "q", "answer": "a", "answer": "b"}\n', 0, 1),
    "mixed.jsonl": (
        lines(QA, {"instruction": "i", "output": "o"}, {"messages": [U, A]}, {"text": "only"}),
        3,
        1,
    ),
    "pretty.jsonl": ("\n".join(json.dumps(row, indent=1) for row in (QA, QA)), 0, 8),
    "dpo.jsonl": (
        lines(
            {"prompt": [U], "chosen": [A], "rejected": [A | {"content": "b"}]},
            {"prompt": "u", "chosen": "c", "rejected": None},
            {
                "prompt": "u",
                "prompt_id": "1",
                "chosen": [U, A],
                "rejected": [U, A | {"content": "b"}],
                "messages": [U, A],
                "score_chosen": 8.5,
            },
            {"prompt": "u", "question": "other", "chosen": "c", "rejected": "r"},
        ),
        2,
        2,
    ),
    "kto.jsonl": (
        lines(
            *(
                {"prompt": "p", "completion": "c", "label": label}
                for label in ("true", "1", "thumbs_up", 0, "maybe")
            )
        ),
        4,
        1,
    ),
    "prompts.jsonl": (
        lines({"prompt": [U], "completion": [A]}, {"prompt": ["p"], "completion": "c"}),
        1,
        1,
    ),
    "ultrachat.jsonl": (
        lines(
            {"prompt": "u", "prompt_id": "x", "messages": [U, A, U, A]},
            {"id": "0", "data": ["q", "a"]},
        ),
        1,
        1,
    ),
    "oasst.jsonl": (
        lines(
            {"message_id": "1", "text": "hi", "role": "prompter", "replies": [{"text": "hello"}]}
        ),
        0,
        1,
    ),
    "squad.jsonl": (
        lines(
            {
                "id": "1",
                "title": "Alps",
                "context": "c",
                "question": "q",
                "answers": {"text": ["a"], "answer_start": [3]},
            },
            {
                "id": "2",
                "title": "Alps",
                "context": "c",
                "question": "q",
                "answers": {"text": ["a", "b"], "answer_start": [3, 4]},
            },
        ),
        1,
        1,
    ),
    "dolly.jsonl": (
        lines({"instruction": "i", "context": "", "response": "r", "category": "open_qa"}),
        1,
        0,
    ),
    "mtbench.jsonl": (
        lines({"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["x"]}),
        0,
        1,
    ),
    "mmlu.csv": ("question,A,B,C,D,answer\nWhat?,3,4,5,6,B\nWho?,a,b,c,d,c\n", 2, 0),
    "headless.csv": ('What is 2+2?,3,4,5,6,B\n"Which, of these?",a,b,c,d,A\n', 0, 1),
    "orca.jsonl": (
        lines({"id": "niv.1", "system_prompt": "", "question": "q", "response": "r"}),
        1,
        0,
    ),
    "numina.jsonl": (
        lines({"source": "s", "problem": "u", "solution": "a", "messages": [U, A]}),
        1,
        0,
    ),
    "thinking.jsonl": (
        lines(
            {
                "user": "u",
                "analysis": "t",
                "messages": [U | {"thinking": None}, A | {"thinking": "t"}],
            }
        ),
        1,
        0,
    ),
    "quoted.csv": ('question,answer\n"say ""hi""\nand go, now","x"\nq,a\n', 2, 0),
    "ragged.csv": ("question,answer\nq,a,b,c\nq\n\nq,a,,\n", 1, 2),
}


@pytest.mark.parametrize("name", FILES)
def test_every_row_of_a_file_is_used_or_lost_and_counted(name: str, tmp_path: Path) -> None:
    content, used, lost = FILES[name]
    rows, bad = read(written(tmp_path / name, content))
    assert (len(rows), sum(one.rows for one in bad)) == (used, lost), [one.reason for one in bad]


def test_a_row_of_nested_columns_with_nulls_is_read(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [
        {"messages": [U | {"meta": None}, A | {"meta": {"k": "v"}}], "extra": {"b": None}},
        {"messages": None, "extra": None},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found, bad = read(tmp_path / "a.parquet")
    assert [(row.question, row.answer) for row in found] == [("u", "a")] and len(bad) == 1


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "[[]]",
        "7",
        '"x"',
        "null",
        "[1, 2]",
        '{"data": []}',
        '{"a": [{}], "b": [{}]}',
        "\x00" * 40,
        "{" * 5000,
    ],
)
def test_no_file_gives_a_raw_exception(content: str, tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl", "a.csv", "a.tsv", "a", "a.json.gz", "a.parquet"):
        try:
            rows, _ = read(written(tmp_path / name, content))
        except PawlError:
            continue
        assert not rows
