"""`python -m stages.judge compare` on manipulated pairs: none is accepted, and what is no evidence
is one clear line.
"""

from __future__ import annotations

import json

import pytest

from stages.common.files import read_json, sha256_file, write_json
from stages.common.items import item_id
from tests.judge.test_compare import compare
from tests.synthetic import FINGERPRINT, make_rows, write_side

OLD, NEW = "old/val.jsonl", "new/val.jsonl"


@pytest.fixture
def pair(tmp_path):
    """A pair that is accepted, with the summaries beside the rows."""
    write_side(tmp_path / "old", make_rows(0.2, 30, seed=2))
    write_side(tmp_path / "new", make_rows(0.9, 30, seed=1), adapter="a" * 64)
    return tmp_path


def each(**changes):
    """Every row of the candidate changed; a function is given the row."""
    return lambda root: edit(
        root,
        NEW,
        lambda rows: [
            row | {k: v(row) if callable(v) else v for k, v in changes.items()} for row in rows
        ],
    )


def first(name=NEW, **changes):
    return lambda root: edit(root, name, lambda rows: [rows[0] | changes, *rows[1:]])


def edit(root, name, change):
    rows = [json.loads(line) for line in (root / name).read_text().splitlines()]
    write(root, name, "".join(f"{json.dumps(row)}\n" for row in change(rows)).encode())


def write(root, name, content):
    """Other content, and the summary's hash as by somebody who knows of it: what is wrong has to
    show in the rows.
    """
    (root / name).write_bytes(content)
    summary = root / name.replace("jsonl", "json")
    write_json(summary, read_json(summary) | {"rows_sha256": sha256_file(root / name)})


def bytes_of(change, name=NEW):
    return lambda root: write(root, name, change((root / name).read_bytes()))


def summary(name="new/val.json", **changes):
    return lambda root: write_json(root / name, {**read_json(root / name), **changes})


def fingerprint(*names, **changes):
    def change(root):
        for name in names:
            side = root / name.split("/")[0]
            write_side(
                side,
                make_rows(*((0.9, 30) if "new" in name else (0.2, 30)), seed=1),
                fingerprint={**FINGERPRINT, **changes},
            )

    return change


def bare(change):
    """The same without summaries: two files of rows."""

    def both(root):
        change(root)
        for name in (OLD, NEW):
            (root / name.replace("jsonl", "json")).unlink()

    return both


def without(row, column):
    return {name: value for name, value in row.items() if name != column}


def shuffled(rows):
    verdicts = [(row["correct"], row["score"]) for row in rows]
    return [
        row | dict(zip(("correct", "score"), pair, strict=True))
        for row, pair in zip(rows, verdicts[::-1], strict=True)
    ]


def permuted_without_the_summary_knowing(root):
    path = root / NEW
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in shuffled(rows)))


def other_sides(root):
    content = (root / NEW).read_bytes(), (root / OLD).read_bytes()
    for name, held in zip((OLD, NEW), content, strict=True):
        write(root, name, held)


CASES = {
    # conditions
    "rows mixed of two fingerprints": lambda root: edit(
        root, NEW, lambda rows: [rows[0] | {"fingerprint": "f" * 16}, *rows[1:]]
    ),
    "mixed without summaries": bare(first(fingerprint="f" * 16)),
    "one row without a fingerprint": lambda root: edit(
        root, NEW, lambda rows: [without(rows[0], "fingerprint"), *rows[1:]]
    ),
    "one without, no summaries": bare(first(fingerprint="")),
    "the incumbent's rows of two fingerprints": bare(first(OLD, fingerprint="0" * 16)),
    "all rows of another fingerprint than the summary": each(fingerprint="f" * 16),
    "no row with a fingerprint": lambda root: edit(
        root, NEW, lambda rows: [without(row, "fingerprint") for row in rows]
    ),
    "a fingerprint that is no text": first(fingerprint=7),
    "no fingerprint in both summaries": lambda root: [
        summary(name, fingerprint={})(root) for name in ("new/val.json", "old/val.json")
    ],
    "a fingerprint that is a list": summary(fingerprint=["engine"]),
    "another engine": fingerprint(NEW, engine="vllm", adapter_sha256="a"),
    "a key that begins with adapter": fingerprint(NEW, adapter_note="other", adapter_sha256="a"),
    "nobody says how answers were scored": fingerprint(
        NEW, OLD, evaluator=None, adapter_sha256="a"
    ),
    # what the summary says
    "verdicts moved to other items": permuted_without_the_summary_knowing,
    "sides changed places": other_sides,
    "a summary without its rows' hash": summary(rows_sha256=None),
    "a summary of other rows": summary(rows_sha256="0" * 64),
    "a summary with another accuracy": summary(overall={"n": 60, "accuracy": 0.99}),
    "a summary that counts true for one": summary(overall={"n": True, "accuracy": True}),
    "a broken summary": lambda root: (root / "new/val.json").write_text('{"overall": {"n": 60'),
    "a summary that is a list": lambda root: (root / "new/val.json").write_text("[]"),
    "a summary with NaN": lambda root: (root / "new/val.json").write_text('{"items_sha256": NaN}'),
    "a summary without the hash of its items, of another engine": lambda root: (
        fingerprint(NEW, engine="vllm", adapter_sha256="a")(root),
        write_json(
            root / "new/val.json", without(read_json(root / "new/val.json"), "items_sha256")
        ),
    ),
    "a summary with another hash of its items": summary(items_sha256="0" * 64),
    "a summary of the test split": summary(split="test"),
    "a summary of one side alone": lambda root: (root / "old/val.json").unlink(),
    "a summary with a key twice": (
        lambda root: (root / "new/val.json").write_text(
            '{"overall": 1, ' + (root / "new/val.json").read_text().lstrip()[1:]
        )
    ),
    # items
    "an item missing": bare(lambda root: edit(root, NEW, lambda rows: rows[1:])),
    "an item of its own": bare(
        lambda root: edit(root, NEW, lambda rows: [*rows, rows[0] | {"item_id": "f" * 16}])
    ),
    "all items others": bare(each(item_id=lambda row: row["item_id"][::-1])),
    "items of another benchmark": bare(each(benchmark="gsm8k")),
    "a benchmark renamed on one side": bare(first(benchmark="Chain_Sum")),
    "an item asked of two benchmarks": bare(
        lambda root: edit(root, NEW, lambda rows: [*rows, rows[0] | {"benchmark": "other"}])
    ),
    "a duplicated row": bare(lambda root: edit(root, NEW, lambda rows: [*rows, rows[0]])),
    "a duplicate with another verdict": bare(
        lambda root: edit(root, NEW, lambda rows: [*rows, rows[0] | {"correct": True, "score": 1}])
    ),
    "only the right answers": bare(
        lambda root: edit(root, NEW, lambda rows: [row for row in rows if row["correct"]])
    ),
    "another answer key": bare(first(gold="0")),
    "another answer key for all": bare(each(gold=lambda row: row["prediction"])),
    "an id that is empty": bare(first(item_id="")),
    "an id that is a number": bare(first(item_id=7)),
    "an id of another item": bare(first(item_id=item_id("chain_sum", "val question 3", "103"))),
    # repeats
    "a repeat on one side": bare(
        lambda root: edit(root, NEW, lambda rows: [*rows, *(row | {"repeat": 1} for row in rows)])
    ),
    "a repeat missing for one item": bare(
        lambda root: [
            edit(root, name, lambda rows: [*rows, *(row | {"repeat": 1} for row in rows[:-1])])
            for name in (NEW, OLD)
        ]
    ),
    "repeats that begin at one": bare(first(repeat=1)),
    "a negative repeat": bare(first(repeat=-1)),
    "a huge repeat": bare(first(repeat=2**70)),
    # splits
    "rows of the test split": bare(each(split="test")),
    "one row of the test split": bare(first(split="test")),
    "a split that is none": bare(first(split=None)),
    # values
    "score NaN": bare(bytes_of(lambda held: held.replace(b'"score": 1.0', b'"score": NaN', 1))),
    "score infinite": bare(
        bytes_of(lambda held: held.replace(b'"score": 1.0', b'"score": 1e999', 1))
    ),
    "score above one": bare(each(score=2.0)),
    "score below zero": bare(first(OLD, score=-5)),
    "score that is text": bare(first(score="1.0")),
    "correct as a number": bare(each(correct=lambda row: int(row["correct"]))),
    "correct as text": bare(first(correct="true")),
    "truncated as a number": bare(first(truncated=0)),
    "tokens as a boolean": bare(first(prompt_tokens=True)),
    "tokens beyond 64 bits": bare(first(prompt_tokens=2**70)),
    "tokens below zero": bare(first(output_tokens=-1)),
    "tokens with a fraction": bare(first(output_tokens=1.5)),
    "a prediction that is a list": bare(first(prediction=["x"])),
    "a column missing": bare(
        lambda root: edit(root, NEW, lambda rows: [without(row, "gold") for row in rows])
    ),
    "right without a full score": bare(each(score=0.5)),
    "right without a reply": bare(each(prediction=" ")),
    "a column that no row has": bare(first(Correct=True)),
    "a column twice": bare(
        bytes_of(
            lambda held: held.replace(b'"correct": false', b'"correct": false, "correct": true')
        )
    ),
    # files
    "empty": bare(bytes_of(lambda held: b"")),
    "a blank line alone": bare(bytes_of(lambda held: b"\n\n")),
    "cut in the middle of a line": bare(bytes_of(lambda held: held[: len(held) // 2])),
    "cut at the end of a line": bare(
        bytes_of(lambda held: held[: held.index(b"\n", len(held) // 2) + 1])
    ),
    "a byte order mark in the middle": bare(
        bytes_of(lambda held: held.replace(b"\n", b"\n\xef\xbb\xbf", 1))
    ),
    "UTF-16": bare(bytes_of(lambda held: held.decode().encode("utf-16"))),
    "not UTF-8": bare(bytes_of(lambda held: held.replace(b"no idea", b"\xff\xfe", 1))),
    "NUL bytes": bare(bytes_of(lambda held: held.replace(b"\n", b"\x00\n", 1))),
    "null rows": bare(bytes_of(lambda held: held + b"null\n")),
    "a list of rows": bare(bytes_of(lambda held: b"[" + held.replace(b"\n", b",")[:-1] + b"]")),
    "nested without end": bare(bytes_of(lambda held: held + b'{"a":' * 50_000)),
    "a folder": bare(lambda root: ((root / NEW).unlink(), (root / NEW).mkdir())),
    "no file": bare(lambda root: (root / NEW).unlink()),
    "the same file twice": bare(lambda root: (root / NEW).write_bytes((root / OLD).read_bytes())),
}
HARMLESS = {
    "nothing": lambda root: None,
    "no summaries": bare(lambda root: None),
    "rows in another order": bare(lambda root: edit(root, NEW, lambda rows: rows[::-1])),
    "a byte order mark at the beginning": bare(bytes_of(lambda held: b"\xef\xbb\xbf" + held)),
    "lines that end as on Windows": bare(bytes_of(lambda held: held.replace(b"\n", b"\r\n"))),
    "no line end after the last row": bare(bytes_of(lambda held: held.rstrip(b"\n"))),
    "two rows in a line": bare(bytes_of(lambda held: held.replace(b"}\n", b"} ", 1))),
    "something else beside the rows": bare(lambda root: (root / "new/val.txt").write_text("x")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_manipulated_pair_is_not_accepted(pair, capsys, monkeypatch, name):
    CASES[name](pair)
    code, out, err = compare(capsys, monkeypatch, pair / NEW, pair / OLD)
    assert code in (1, 2, 3), err
    if code == 3:
        what, *more = err.splitlines()
        assert (
            not out and what.startswith("judge: error: ") and len(what) < 1100 and len(more) <= 2
        ), err
        assert "Error:" not in what and "Traceback" not in err, (
            "a sentence of ours, and no exception's name"
        )
    else:
        assert (
            name in ("sides changed places", "the same file twice")
            and json.loads(out)["outcome"] == ("", "reject", "inconclusive")[code]
        )


@pytest.mark.parametrize("name", HARMLESS)
def test_the_same_pair_without_the_manipulation_is_accepted(pair, capsys, monkeypatch, name):
    HARMLESS[name](pair)
    code, out, err = compare(capsys, monkeypatch, pair / NEW, pair / OLD)
    assert code == 0 and not err and json.loads(out)["outcome"] == "accept", err
