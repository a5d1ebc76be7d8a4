"""Rows that a broken file loses are counted as lost, in every format; compressed files are read,
and other encodings are named.
"""

from __future__ import annotations

import gzip
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from stages.common.errors import PawlError
from stages.common.shapes import Question
from tests.common.test_records import LINES, ROWS, WANTED, read, written

PLANKS = [f"How wide is plank {n}?,{n} cm\n" for n in range(200)]


def table(changes: dict[int, str], delimiter: str = ",") -> str:
    lines = [changes.get(n, line) for n, line in enumerate(PLANKS)]
    return "".join(["question,answer\n", *lines]).replace(",", delimiter)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({150: '"How wide is plank 150?,150 cm\n'}, 150),
        ({150: 'How wide is plank 150?,"150 cm\n'}, 150),
        ({10: '"How wide is plank 10?,10 cm\n', 79: 'How wide is plank 79?",79 cm\n'}, 130),
        ({10: '"How wide is plank 10?,10 cm\n', 12: 'How wide is plank 12?",12 cm\n'}, 197),
        ({10: '"How wide is plank 10?,10 cm\n', 79: 'How "wide is plank 79?,79 cm\n'}, 130),
        ({10: "How wide is plank 10?,10 cm,wide\n"}, 199),
    ],
)
def test_every_row_that_a_stray_quote_swallows_is_lost_and_counted(
    changes: dict[int, str], kept: int, name: str, tmp_path: Path
) -> None:
    rows, bad = read(
        written(tmp_path / name, table(changes, "\t" if name.endswith("tsv") else ","))
    )
    assert len(rows) == kept
    assert sum(one.rows for one in bad) == 200 - kept
    assert bad[0].where == f"{name}:{min(changes) + 2}"


@pytest.mark.parametrize(
    "field",
    [
        "one\ntwo",
        "first, line\nsecond line",
        "Dear all,\n\nthanks, and bye,\nAnn",
        "a,b\nc,d\ne",
        'she said ""no,""\nand left',
    ],
)
def test_a_field_of_several_lines_is_a_field(field: str, tmp_path: Path) -> None:
    """Also one of which each line could be a row, where the file has others that could not."""
    content = "question,answer\n" + "".join(
        f'"{text}",a{n}\n' for n, text in enumerate([field, "x\ny", "x\n\ny", "z\r\nz"])
    )
    rows, bad = read(written(tmp_path / "a.csv", content))
    assert not bad
    assert [row.answer for row in rows] == ["a0", "a1", "a2", "a3"]
    assert rows[0].question == field.replace('""', '"')


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("sep=;\nquestion;answer\nq;a,b\n", ("q", "a,b")),
        ("question\tanswer\nq\ta\n", ("q", "a")),
        ("question|answer\nq|a\n", ("q", "a")),
        ("question, answer\nq,a\n", ("q", "a")),
        ("question,answer,\nq,a,\n", ("q", "a")),
        ("question,answer,,\nq,a,,\n", ("q", "a")),
        ("question,answer\nq,a,,\n", ("q", "a")),
        (",question,answer\n0,q,a\n", ("q", "a")),
        ('question,"answer;text"\nq,a\n', None),
    ],
)
def test_what_a_spreadsheet_writes_is_read(
    content: str, wanted: tuple[str, str] | None, tmp_path: Path
) -> None:
    rows, bad = read(
        written(tmp_path / "a.csv", content), columns={} if wanted else {"answer": "answer;text"}
    )
    assert not bad and rows == [Question(*(wanted or ("q", "a")))]


def test_a_cell_without_a_column_is_no_blank(tmp_path: Path) -> None:
    for content in ("question,answer,\nq,a,lost\n", ",question,answer\nlost,q,a\n"):
        assert "without a name" in read(written(tmp_path / "a.csv", content))[1][0].reason


def test_a_field_that_is_quoted_beside_other_quoted_fields_is_meant(tmp_path: Path) -> None:
    rows, bad = read(
        written(tmp_path / "a.csv", 'question,answer\n"def f(a, b):\n    return a","x"\n')
    )
    assert not bad and rows == [Question("def f(a, b):\n    return a", "x")]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("more", [json.dumps(ROWS), LINES, "x", "]"])
def test_what_follows_an_array_is_an_error(more: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="goes on after its JSON array"):
        read(written(tmp_path / name, json.dumps(ROWS, indent=1) + "\n" + more))


def test_rows_that_share_a_line_are_all_lost(tmp_path: Path) -> None:
    rows, bad = read(
        written(
            tmp_path / "a.jsonl", f"{json.dumps(ROWS[0])}\n{' '.join(map(json.dumps, ROWS * 3))}\n"
        )
    )
    assert rows == WANTED[:1]
    assert [one.rows for one in bad] == [9]


def test_a_text_beside_a_list_of_rows_is_not_lost(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="'system'"):
        read(
            written(
                tmp_path / "a.json", json.dumps({"system": "Be brief.", "data": ROWS}, indent=1)
            )
        )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", LINES),
        ("a.json.gz", json.dumps(ROWS, indent=1)),
        ("a.json.gz", json.dumps({"data": ROWS}, indent=1)),
        ("a.csv.gz", "question,answer,category\nq0,a0,c\nq1,a1,c\nq2,a2,c\n"),
        ("a.tsv.gz", "question\tanswer\tcategory\nq0\ta0\tc\nq1\ta1\tc\nq2\ta2\tc\n"),
        ("a.jsonl", LINES),
    ],
)
def test_what_gzip_compressed_is_read_whatever_its_name_and_a_damaged_file_is_named(
    name: str, content: str, tmp_path: Path
) -> None:
    packed = gzip.compress(content.encode())
    assert read(written(tmp_path / name, packed)) == (WANTED, [])
    for broken in (packed[:-9], packed[:25] + b"\xff\xff\xff" + packed[28:], packed + b"junk"):
        with pytest.raises(PawlError, match="damaged or cut short"):
            read(written(tmp_path / name, broken))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PK\x03\x04xx", "zip"),
        (b"\x28\xb5\x2f\xfdxx", "zstd"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"BZh91AY", "bzip2"),
        (b"ARROW1\0\0", "Arrow"),
        (LINES.encode("utf-16-le"), "UTF-16"),
        (LINES.encode("utf-16-be"), "UTF-16"),
        (LINES.encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_of_another_kind_is_named(content: bytes, what: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        with pytest.raises(PawlError, match=what):
            read(written(tmp_path / name, content))


def test_numbers_of_a_table_are_written_as_they_were_meant(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {
        "whole": pyarrow.array([32.0, None, float("nan")], pyarrow.float64()),
        "short": pyarrow.array([0.1, 2.0, None], pyarrow.float32()),
        "money": pyarrow.array(
            [Decimal("18.500000"), Decimal("18"), None], pyarrow.decimal128(12, 6)
        ),
        "kind": pyarrow.array(["x", "y", None]).dictionary_encode(),
        "day": pyarrow.array([date(2024, 1, 31), date(2024, 2, 1), None]),
        "flag": pyarrow.array([True, False, None]),
        "moment": pyarrow.array([datetime(2024, 1, 31, 12), None, None]),
    }
    parquet.write_table(
        pyarrow.table({"question": ["q0", "q1", "q2"], **columns}), tmp_path / "a.parquet"
    )
    answers = {}
    for name in columns:
        rows, bad = read(
            tmp_path / "a.parquet", columns={"answer": name}, ignore=[*columns.keys() - {name}]
        )
        answers[name] = (
            [row.answer for row in rows],
            [one.reason.removeprefix("answer is ") for one in bad],
        )
    assert answers == {
        "whole": (["32"], ["missing", "missing (NaN)"]),
        "short": (["0.1", "2"], ["missing"]),
        "money": (["18.5", "18"], ["missing"]),
        "kind": (["x", "y"], ["missing"]),
        "day": (["2024-01-31", "2024-02-01"], ["missing"]),
        "flag": ([], ["not text but true or false"] * 2 + ["missing"]),
        "moment": ([], ["not text but a date and time"] + ["missing"] * 2),
    }


def test_numbers_of_json_are_written_as_they_were_meant(tmp_path: Path) -> None:
    lines = "\n".join(
        f'{{"question": "q", "answer": {number}, "difficulty": 3.0}}'
        for number in ("18.0", "5e5", "5.10", "-2.0E0", "7")
    )
    rows, bad = read(written(tmp_path / "a.jsonl", lines))
    assert not bad
    assert [row.answer for row in rows] == ["18", "500000", "5.10", "-2", "7"]
    assert {row.difficulty for row in rows} == {"3"}


def test_a_column_that_no_row_has_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    content = "question,answer,why\nq,a,b\n"
    with pytest.raises(PawlError, match=r"columns.reasoning names 'reason'.*\n.*\n.*'why'"):
        read(written(tmp_path / "a.csv", content), columns={"reasoning": "reason"}, ignore=["why"])
    assert read(
        written(tmp_path / "a.csv", content), columns={"question": "question", "reasoning": "why"}
    )[0] == [Question("q", "a", reasoning="b")]


SAYINGS = [("good morning", "guten Morgen"), ("thanks", "danke"), ("yes", "ja"), ("no", "nein")]


@pytest.mark.parametrize("key", ["source", "topic", "language", "date", "title"])
def test_a_key_by_which_alone_questions_differ_is_not_dropped(key: str, tmp_path: Path) -> None:
    rows = [
        {"instruction": "Translate.", key: english, "output": german} for english, german in SAYINGS
    ]
    file = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(PawlError, match=f"only '{key}' tells them apart"):
        read(file)
    assert read(file, columns={"input": key})[0][0] == Question(
        "Translate.\ngood morning", "guten Morgen"
    )
    assert len(read(file, ignore=[key])[0]) == len(rows)


def test_a_key_that_does_not_decide_the_answer_is_harmless(tmp_path: Path) -> None:
    own = [
        {"question": f"Translate {english}.", "source": "web", "answer": german}
        for english, german in SAYINGS
    ]
    samples = [
        {
            "question": "q",
            "id": number,
            "model": f"m{number}",
            "source": "web",
            "answer": f"a{number}",
        }
        for number in range(9)
    ]
    for rows in (own, samples):
        assert len(read(written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))))[0]) == len(
            rows
        )


def test_a_header_that_is_repeated_is_no_row(tmp_path: Path) -> None:
    rows, bad = read(written(tmp_path / "a.csv", "question,answer\nq,a\nquestion,answer\nr,b\n"))
    assert (
        rows == [Question("q", "a"), Question("r", "b")] and bad[0].reason == "the header once more"
    )


def test_a_dump_of_a_database_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows, bad = read(
        written(
            tmp_path / "a.tsv", "question\tanswer\tcontext\nq\tone\\ntwo\\\\n\t\\N\nr\t\\N\tk\n"
        )
    )
    assert rows == [Question("q", "one\ntwo\\n")] and "missing" in bad[0].reason
    rows, bad = read(written(tmp_path / "a.tsv", "question\tanswer\nq\tC:\\new\n"))
    assert rows == [Question("q", "C:\\new")] and not bad


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("// ours", "a comment"),
        ("# ours", "a comment"),
        ('{"question": "q", "answer": "a"},', "a comma"),
    ],
)
def test_what_json_lines_cannot_have_is_named(line: str, what: str, tmp_path: Path) -> None:
    bad = read(written(tmp_path / "a.jsonl", line + "\n"))[1]
    assert len(bad) == 1 and bad[0].reason.startswith(what)


def test_a_mark_of_byte_order_inside_a_header_hides_no_column(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a.csv", "question,\ufeffanswer\nq,a\n")) == (
        [Question("q", "a")],
        [],
    )
