"""Continued pre-training gets plain text from rows and documents: filtered, searched for the
benchmark, and trained on by LLaMA-Factory.
"""

from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl, write_jsonl
from stages.common.schema import Data, Source
from stages.generate_data import __main__ as stage
from stages.generate_data.documents import PIECE, pieces
from tests.generate_data.test_filters import PROSE
from tests.generate_data.test_generate_data import HELD_OUT, SUMS, local, make
from tests.generate_data.test_generate_data import root as root


def texts(root: Path) -> list[str]:
    rows = list(read_jsonl(root / "data/train/train.jsonl"))
    assert all(list(row) == ["text"] for row in rows)
    return [row["text"] for row in rows]


def folder(root: Path, **documents: str | bytes) -> Source:
    (root / "texts").mkdir()
    for name, text in documents.items():
        (root / "texts" / name.replace("_", ".")).write_bytes(
            text.encode() if isinstance(text, str) else text
        )
    return Source(kind="documents", path=str(root / "texts"))


def test_rows_with_a_text_become_plain_text(root: Path) -> None:
    report = make(
        root,
        plain=True,
        mine=local(
            root, [{"text": "one", "instruction": "i", "output": "o"}, {"text": "two\n  lines\n"}]
        ),
    )
    assert report["kind"] == "pt"
    assert sorted(texts(root)) == ["one", "two\n  lines\n"]
    assert read_json(root / "data/train/dataset_info.json") == {
        "train": {"file_name": "train.jsonl", "columns": {"prompt": "text"}}
    }


def test_a_column_of_another_name_can_hold_the_text(root: Path) -> None:
    make(root, plain=True, mine=local(root, [{"body": "one"}], columns={"text": "body"}))
    assert texts(root) == ["one"]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answer": "a"},
        {"text": ""},
        {"text": None},
        {"text": ["a"]},
        {"text": "a\0"},
        ["a"],
    ],
)
def test_a_row_without_a_text_is_a_bad_row(row: Any, root: Path) -> None:
    report = make(
        root,
        plain=True,
        limits={"max_bad_fraction": 0.5},
        mine=local(root, [row, {"text": "fine"}]),
    )
    assert report["sources"]["mine"]["bad"] == 1
    assert texts(root) == ["fine"]


def test_texts_pass_the_same_filters(root: Path) -> None:
    lines = [
        PROSE,
        PROSE,
        PROSE.replace("seven", "eight"),
        "Dies ist ein deutscher Satz, der hier gar nichts zu suchen hat.",
        HELD_OUT[0],
        f"Once upon a time. {HELD_OUT[5]} Nobody knew.",
    ]
    filters = [
        "empty",
        "refusal",
        "format",
        "language",
        "duplicates",
        "near_duplicates",
        "decontamination",
        "too_long",
    ]
    limits = {"filters": filters, "languages": ["en"], "near_duplicates": 0.7}
    report = make(
        root,
        plain=True,
        limits=limits | {"max_contamination": 1.0},
        mine=local(root, [{"text": line} for line in lines]),
    )
    counts = {name: number for name, number in report["sources"]["mine"].items() if number}
    assert counts == {
        "read": 6,
        "duplicates": 1,
        "near_duplicates": 1,
        "language": 1,
        "contaminated": 2,
        "kept": 1,
    }
    assert {hit["match"] for hit in report["contamination"]["hits"]} == {"exact", "short"}
    assert texts(root) == [PROSE]


def test_a_text_longer_than_the_cutoff_stays_since_the_trainer_makes_windows_of_it(
    root: Path,
) -> None:
    report = make(root, 10, plain=True, mine=local(root, [{"text": "word " * 99}]))
    assert report["tokens"]["max"] == 99 and report["rows"] == 1


def test_held_out_texts_are_others_than_those_trained_on(root: Path) -> None:
    make(
        root,
        plain=True,
        limits={"eval_fraction": 0.25},
        mine=local(root, [{"text": f"text {n % 30}"} for n in range(40)]),
    )
    held = {row["text"] for row in read_jsonl(root / "data/train/eval.jsonl")}
    assert held and not held & set(texts(root))


def test_documents_are_trained_on_as_they_stand(root: Path) -> None:
    code = "# Title\n\n\n    indented\n\ttab  two blanks\n"
    make(
        root,
        plain=True,
        limits={"max_bad_fraction": 0.0},
        mine=folder(root, a_md=b"\xef\xbb\xbf" + code.encode(), b_txt="x\r\ny"),
    )
    assert sorted(texts(root)) == [code, "x\ny"]


def test_a_benchmark_item_in_a_book_costs_its_piece_alone(root: Path) -> None:
    pages = [f"Page {n}. " + f"word{n} " * (PIECE - 2) for n in range(5)]
    pages[2] += HELD_OUT[3]
    report = make(root, 10**6, plain=True, mine=folder(root, book_txt="\n\n".join(pages)))
    assert (report["sources"]["mine"]["contaminated"], report["rows"]) == (1, 4)
    assert not any("secret" in text for text in texts(root))


@pytest.mark.parametrize(
    ("gap", "most"), [("\n\n", PIECE), ("\r\n \t\n", PIECE), ("\n", 2 * PIECE)]
)
def test_a_text_is_divided_where_it_has_a_gap_and_loses_nothing(gap: str, most: int) -> None:
    text = gap.join(f"{n} " * n for n in range(300))
    found = pieces(text)
    assert "".join(found) == text
    assert all(most <= len(piece.split()) < most + 300 for piece in found[:-1])
    assert pieces(" \n\n ") == []


def test_documents_that_are_no_text_are_bad_rows(root: Path) -> None:
    source = folder(
        root,
        a_txt=b"caf\xe9",
        b_txt="",
        c_txt="fine\0",
        d_txt="\ufeffx".encode("utf-16"),
        e_txt="good",
    )
    (root / "texts/dir.md").mkdir()
    (root / "texts/gone.md").symlink_to("nowhere")
    report = make(root, plain=True, limits={"max_bad_fraction": 0.9}, mine=source)
    assert report["sources"]["mine"]["bad"] == 4
    assert texts(root) == ["good"]


@pytest.mark.parametrize(
    "source",
    [
        SUMS,
        Source(kind="file", path="x", recipe="rewrite"),
        Source(kind="file", path="x", format="alpaca"),
    ],
)
def test_what_makes_answers_is_refused_for_pretraining(source: Source, root: Path) -> None:
    with pytest.raises(PawlError, match="learns from plain text"):
        make(root, plain=True, mine=source)


def test_documents_without_a_teacher_are_refused_for_other_stages(root: Path) -> None:
    with pytest.raises(PawlError, match="holds no questions"):
        make(root, mine=folder(root, a_txt="x"))


@pytest.mark.e2e
def test_what_the_stage_writes_for_pretraining_passes_preflight_and_trains(root: Path) -> None:
    from stages.fetch_model import tiny
    from stages.generate_data.tokens import counter
    from stages.train import preflight
    from tests.train.test_e2e import ask, params, work

    (root / "base").mkdir()
    tiny.write(root / "base", "float32")
    write_jsonl(root / "texts.jsonl", ({"text": f"Text {n}: {PROSE[n:]}. " * 4} for n in range(64)))
    source = Source(kind="file", path=str(root / "texts.jsonl"))
    data = Data(
        name="d",
        seed=3,
        sources={"mine": source},
        max_rows=0,
        ngram=13,
        max_contamination=0.5,
        max_bad_fraction=0.0,
        eval_fraction=0.1,
    )
    report = stage.make(data, 64, counter(root / "base", plain=True), root, root, plain=True)
    assert report.kind == "pt"
    assert report.tokens.max > 64
    found = params(
        root,
        "train=pt",
        "train.max_steps=2",
        "train.cutoff_len=64",
        "train.per_device_train_batch_size=2",
    )
    asked = ask(root, found, root / "out", data="data/train")
    assert preflight.check(found.train, found.launcher, **asked)["memory"]["tokens"] == 64
    done = work(root, [{"name": "pt", "config": asked["config"]}])
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_json(root / "out/trainer_state.json")["global_step"] == 2
