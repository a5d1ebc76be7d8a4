"""Files that broke other projects: each is trained on as it is meant, or refused with what is wrong
with it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl
from stages.common.schema import Source
from tests.generate_data.test_generate_data import make, trained
from tests.generate_data.test_generate_data import root as root

CASES = Path(__file__).parent / "cases"


def source(name: str, **more: Any) -> Source:
    return Source(kind="file", path=str(CASES / name), **more)


def bad_rows(root: Path) -> Counter[str]:
    return Counter(
        row["reason"]
        for row in read_jsonl(root / "data/train/rejected.jsonl")
        if row["filter"] == "bad"
    )


@pytest.mark.parametrize(
    ("name", "kept", "pair"),
    [
        (
            "04_u2028.jsonl",
            40,
            (
                "Copy this line 0: first\u2028second\u2029third\x85fourth\x0bfifth",
                "first\u2028second number 0",
            ),
        ),
        (
            "05_excel.csv",
            60,
            ('Line 0: what is written on the door?\r\nSecond line, with "quotes"', "null"),
        ),
        ("05_semicolon.csv", 40, ("Welche Nummer hat Haus 0?", "0,5")),
        (
            "08_rows.jsonl.gz",
            200,
            ("Who keeps the key of the bridge in Alba?", "The warden of Alba number 0"),
        ),
        ("09_chat.parquet", 40, ("Which shelf holds box 0?", "Shelf 0, left side")),
        (
            "11_system.jsonl",
            200,
            ("Who keeps the key of the bridge in Alba?", "The warden of Alba number 0"),
        ),
        (
            "13_turns.jsonl",
            50,
            ("Who keeps the key of the mill in Alba?", "The warden of Alba number 1"),
        ),
        (
            "16_one.jsonl",
            1,
            ("Who keeps the key of the bridge in Alba?", "The warden of Alba number 0"),
        ),
        (
            "16_three.jsonl",
            3,
            ("Who keeps the key of the mill in Alba?", "The warden of Alba number 1"),
        ),
        (
            "16_ten.jsonl",
            10,
            ("Who keeps the key of the tower in Alba?", "The warden of Alba number 4"),
        ),
        (
            "21_mcq.jsonl",
            2,
            (
                (
                    "Which town has the tallest mill?\nA. Alba\nB. Borno\nC. Cesk\nD. Dorin\n"
                    "Answer with the letter of the right choice alone."
                ),
                "B",
            ),
        ),
    ],
)
def test_a_file_is_trained_on_as_it_is_meant(
    name: str, kept: int, pair: tuple[str, str], root: Path
) -> None:
    report = make(root, 500, limits={"max_bad_fraction": 0.0}, mine=source(name))
    assert report["rows"] == kept
    assert pair in {tuple(turn["content"] for turn in row[-2:]) for row in trained(root)}


def test_a_column_of_floats_is_trained_as_whole_numbers(root: Path) -> None:
    make(root, limits={"max_bad_fraction": 0.05}, mine=source("09_float.parquet"))
    assert {row[-1]["content"] for row in trained(root)} == {
        str(number) for number in range(3, 43)
    } - {missing(root)}
    assert bad_rows(root) == {"answer is missing (NaN)": 1}


def missing(root: Path) -> str:
    (row,) = [
        row for row in read_jsonl(root / "data/train/rejected.jsonl") if row["filter"] == "bad"
    ]
    return str(3 + int(row["where"].rpartition("[")[2].rstrip("]")))


@pytest.mark.parametrize(
    "name", ["06_kto_desirable.jsonl", "06_kto_float.jsonl", "06_kto_yesno.jsonl"]
)
def test_a_bad_answer_is_learnt_as_a_bad_answer(name: str, root: Path) -> None:
    assert make(root, mine=source(name))["kind"] == "kto"
    labels = {
        row["messages"][-1]["content"]: row["label"]
        for row in read_jsonl(root / "data/train/train.jsonl")
    }
    given = [json.loads(line) for line in (CASES / name).read_text().splitlines()]
    assert labels == {row["completion"]: row["label"] in ("desirable", 1.0, "yes") for row in given}


@pytest.mark.parametrize(
    ("name", "reasons", "kept"),
    [
        (
            "01_parts.jsonl",
            {"image_url": 1, "user and assistant in turn": 1, "(system): content is empty": 1},
            1,
        ),
        (
            "02_images_in_good.jsonl",
            {"'images' holds pictures": 2, "'image' holds pictures": 1},
            200,
        ),
        (
            "03_tools_in_good.jsonl",
            {"'tool_calls' is about tools": 1, "'tools' is about tools": 1},
            200,
        ),
        ("10_dolly.jsonl", {"output is empty": 1}, 2),
    ],
)
def test_a_row_that_would_lose_its_meaning_is_refused_and_told(
    name: str, reasons: dict[str, int], kept: int, root: Path
) -> None:
    report = make(root, 500, limits={"max_bad_fraction": 0.8}, mine=source(name))
    assert (report["rows"], report["sources"]["mine"]["bad"]) == (kept, sum(reasons.values()))
    found = bad_rows(root)
    assert {
        part: sum(count for reason, count in found.items() if part in reason) for part in reasons
    } == reasons
    card = (root / "reports/data_card.md").read_text().replace("\\", "")
    assert all(part in card and part in "".join(report["remarks"]) for part in reasons)


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("07_weights.jsonl", "60 of 60 rows cannot be used", "data.sources.mine.ignore=[weight]"),
        ("05_stray_quote.csv", "150 of 200 rows cannot be used", "correct or remove those rows"),
        (
            "02_images_in_good.jsonl",
            "3 of 203 rows cannot be used",
            "data.sources.mine.ignore=[image, images]",
        ),
    ],
)
def test_too_many_of_them_fail_the_stage(name: str, what: str, fix: str, root: Path) -> None:
    with pytest.raises(PawlError, match=what) as error:
        make(root, limits={"max_bad_fraction": 0.01}, mine=source(name))
    assert fix in error.value.fix
    assert not (root / "data/train").exists()


def test_a_key_of_a_turn_can_be_ignored_too(root: Path) -> None:
    report = make(
        root, limits={"max_bad_fraction": 0.4}, mine=source("07_weights.jsonl", ignore=["weight"])
    )
    assert report["sources"]["mine"]["bad"] == 20 and report["rows"] == 40  # those with train=false


def test_harmless_keys_are_named_in_the_card(root: Path) -> None:
    report = make(root, mine=source("09_chat.parquet"))
    assert report["remarks"] == ["mine: keys of its rows that are not used: id"]
    assert "keys of its rows that are not used: id" in (root / "reports/data_card.md").read_text()
    assert "remarks" not in make(root, mine=source("16_ten.jsonl")) and "remarks" not in read_json(
        root / "reports/generate_data.json"
    )


@pytest.mark.parametrize(
    ("header", "fix"),
    [
        (
            "ticket_text,label",
            "data.sources.mine.columns.question=ticket_text data.sources.mine.columns.answer=label",
        ),
        (
            "label,ticket_text",
            "data.sources.mine.columns.question=ticket_text data.sources.mine.columns.answer=label",
        ),
        (
            "Problem,Loesung",
            "data.sources.mine.columns.question=Problem data.sources.mine.columns.answer=Loesung",
        ),
        (
            "left,right",
            "data.sources.mine.columns.question=left data.sources.mine.columns.answer=right",
        ),
        (
            "id,user text,intent",
            (
                "'data.sources.mine.columns.question=\"user text\"'"
                " data.sources.mine.columns.answer=intent"
            ),
        ),
        ("a,b,c", "data.sources.mine.columns.question=NAME"),
        ("What is two and two?,4", "names of the columns into the first line"),
    ],
)
def test_columns_of_other_names_are_listed_with_a_guess_to_paste(
    header: str, fix: str, root: Path
) -> None:
    path = root / "rows.csv"
    path.write_text(
        f"{header}\n"
        + "".join(
            ",".join(f"cell {n}{at}" for at in range(header.count(",") + 1)) + "\n"
            for n in range(8)
        )
    )
    with pytest.raises(PawlError) as error:
        make(root, mine=Source(kind="file", path=str(path)))
    assert "columns found" in error.value.what and fix in error.value.fix
    if not fix.startswith("data.sources.mine.columns.question=ticket"):
        return
    make(
        root,
        mine=Source(
            kind="file", path=str(path), columns={"question": "ticket_text", "answer": "label"}
        ),
    )
    assert len(trained(root)) == 8


def test_no_guess_shows_a_benchmark_item_that_stands_for_a_header(root: Path) -> None:
    (root / "rows.csv").write_text("What is the secret number 3?,gold\nx,y\n")
    with pytest.raises(PawlError) as error:
        make(root, mine=Source(kind="file", path=str(root / "rows.csv")))
    assert "secret" not in str(error.value)
