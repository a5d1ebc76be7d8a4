"""Each filter removes what it names and counts it; samples keep their shares; nothing held out is
trained on; removed rows leave a note.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl, write_jsonl
from stages.common.schema import Data, Source, validate
from stages.generate_data import tokens
from stages.generate_data.filters import badly_formed
from tests.generate_data import test_generate_data
from tests.generate_data.test_generate_data import HELD_OUT, local, make, rows, trained
from tests.generate_data.test_generate_data import root as root

ORDER = [
    "empty",
    "refusal",
    "format",
    "language",
    "duplicates",
    "near_duplicates",
    "decontamination",
    "too_long",
]
PROSE = (
    "The old lighthouse keeper walked down to the harbour every morning to watch the fishing boats"
    " come in and to count the crates of mackerel that the crews carried ashore before the market"
    " opened at seven"
)


def removed(root: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(root / "data" / "train" / "rejected.jsonl"))


@pytest.mark.parametrize(
    ("filters", "row", "counted"),
    [
        (
            ["refusal"],
            {"question": "q", "answer": "I'm sorry, but I can't help with that."},
            "refusal",
        ),
        (
            ["refusal"],
            {"question": "q", "answer": "As an AI language model, I have no opinion."},
            "refusal",
        ),
        (
            ["refusal"],
            {"question": "q", "answer": "I\u2019m sorry, I cannot assist you."},
            "refusal",
        ),
        (
            ["refusal"],
            {"question": "q", "answer": "Sorry is the hardest word. He can't say it."},
            "",
        ),
        (["refusal"], {"question": "q", "answer": "The AI cannot move, so white wins."}, ""),
        (["format"], {"question": "q", "answer": "<think>\na\n</think>\n\n "}, "format"),
        (["format"], {"question": "q", "answer": "<think>a"}, "format"),
        (["format"], {"question": "q", "answer": "<think>a</think> b"}, ""),
        (
            ["language"],
            {
                "question": "Dies ist eine Frage in deutscher Sprache?",
                "answer": "Ja, das ist sie ganz bestimmt.",
            },
            "language",
        ),
        (["language"], {"question": "1 + 1", "answer": "2"}, ""),
        (
            ["near_duplicates"],
            {"question": PROSE.replace("seven", "eight"), "answer": "answer"},
            "near_duplicates",
        ),
        (["near_duplicates"], {"question": PROSE[::-1], "answer": "answer"}, ""),
    ],
)
def test_a_filter_removes_what_it_names_and_nothing_else(
    filters: list[str], row: dict[str, str], counted: str, root: Path
) -> None:
    limits: dict[str, Any] = {"filters": [*filters, "decontamination"]}
    limits |= {"languages": ["en"]} if "language" in filters else {}
    limits |= {"near_duplicates": 0.7} if "near_duplicates" in filters else {}
    report = make(
        root, 500, limits=limits, mine=local(root, [{"question": PROSE, "answer": "answer"}, row])
    )
    counts = {name: number for name, number in report["sources"]["mine"].items() if number}
    assert counts == ({"read": 2, counted: 1, "kept": 1} if counted else {"read": 2, "kept": 2})
    if counted:
        note = removed(root)[0]
        assert (note["filter"], note["source"]) == (counted, "mine")
        assert note["where"].endswith("rows.jsonl:2")


def test_filters_run_in_the_declared_order_and_say_what_passed(root: Path) -> None:
    limits = {"filters": ORDER, "languages": ["en"], "near_duplicates": 0.8}
    report = make(
        root,
        limits=limits,
        mine=local(root, [*rows(5), *rows(5), {"question": HELD_OUT[0], "answer": "x"}]),
    )
    assert [one["filter"] for one in report["filters"]] == ORDER
    for before, after in zip(report["filters"], report["filters"][1:], strict=False):
        assert before["out"] == after["in"] <= before["in"]
    removed_by = {
        one["filter"]: one["in"] - one["out"]
        for one in report["filters"]
        if one["in"] != one["out"]
    }
    assert removed_by == {"duplicates": 5, "decontamination": 1}
    assert report["filters"][4]["examples"][0].endswith("rows.jsonl:6: the same row came before")


def test_decontamination_cannot_be_left_out() -> None:
    data = Data(
        name="d",
        seed=1,
        sources={"s": Source(kind="file", path="data/local/x.jsonl")},
        max_rows=0,
        ngram=13,
        max_contamination=0.1,
        max_bad_fraction=0.1,
        filters=["duplicates"],
    )
    with pytest.raises(PawlError, match="decontamination cannot be left out"):
        validate(data, "data")


def test_removed_rows_are_noted_and_none_of_the_benchmark_is_repeated(root: Path) -> None:
    lines = [
        *rows(20),
        "{broken",
        json.dumps({"question": HELD_OUT[1]}),
        {"question": HELD_OUT[0], "answer": "x"},
    ]
    make(root, mine=local(root, lines))
    notes = removed(root)
    assert [(note["filter"], note["where"].rpartition(":")[2]) for note in notes] == [
        ("bad", "21"),
        ("bad", "22"),
        ("contaminated", "23"),
    ]
    assert notes[0]["row"] == "{broken"
    assert "row" not in notes[2] and notes[1]["row"] == ""
    assert "secret number" not in (root / "data/train/rejected.jsonl").read_text()


def test_an_item_in_escapes_or_in_the_reason_is_not_repeated_either(root: Path) -> None:
    item = (
        "\u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427"
    )
    test = {"item_id": "zh", "benchmark": "zh", "question": item, "answer": "gold", "category": ""}
    write_jsonl(root / "data/benchmark/test/zh.jsonl", [test])
    lines = [*rows(20), json.dumps({"question": f"{item}\n"}), json.dumps({HELD_OUT[5]: "x"})]
    make(root, mine=local(root, lines))
    assert [note["reason"] for note in removed(root)] == [
        "not told, because the row holds a benchmark item"
    ] * 2
    text = (root / "data/train/rejected.jsonl").read_text()
    assert "u4eca" not in text and "secret number" not in text
    with pytest.raises(PawlError) as error:
        make(root, mine=local(root, [json.dumps({HELD_OUT[5]: "x"})]))
    assert "secret number" not in str(error.value)


def test_a_row_with_an_item_in_its_rejected_answer_is_contaminated(root: Path) -> None:
    pairs = [{"prompt": f"p{n}", "chosen": f"good {n}", "rejected": f"worse {n}"} for n in range(4)]
    leak = {
        "prompt": "p",
        "chosen": "good",
        "rejected": f"Let me ask: {HELD_OUT[6]} {HELD_OUT[6]} {HELD_OUT[6]}",
    }
    report = make(root, mine=local(root, [*pairs, leak]))
    assert report["sources"]["mine"]["contaminated"] == 1


@pytest.mark.parametrize(
    ("row", "kind", "columns", "record"),
    [
        (
            {"prompt": "p", "chosen": "good", "rejected": "worse"},
            "dpo",
            {"messages", "chosen", "rejected"},
            {
                "messages": [{"role": "user", "content": "p"}],
                "chosen": {"role": "assistant", "content": "good"},
                "rejected": {"role": "assistant", "content": "worse"},
            },
        ),
        (
            {"prompt": "p", "completion": "c", "label": False},
            "kto",
            {"messages", "kto_tag"},
            {
                "messages": [
                    {"role": "user", "content": "p"},
                    {"role": "assistant", "content": "c"},
                ],
                "label": False,
            },
        ),
    ],
)
def test_pairs_and_labels_become_what_llamafactory_reads(
    row: dict[str, Any], kind: str, columns: set[str], record: Any, root: Path
) -> None:
    report = make(root, mine=local(root, [row]))
    info = read_json(root / "data/train/dataset_info.json")["train"]
    assert report["kind"] == kind
    assert set(info["columns"]) == columns
    assert info.get("ranking", False) == (kind == "dpo")
    assert list(read_jsonl(root / "data/train/train.jsonl")) == [record]


@pytest.mark.e2e
def test_llamafactory_itself_reads_pairs_and_labels_whole(root: Path) -> None:
    from llamafactory.data.converter import SharegptDatasetConverter
    from llamafactory.data.parser import get_dataset_list

    for row, answers in (
        ({"prompt": "p", "chosen": "good", "rejected": "worse"}, ["good", "worse"]),
        ({"prompt": "p", "completion": "c", "label": False}, ["", "c"]),
        ({"question": "p", "answer": "c"}, ["c"]),
    ):
        make(root, mine=local(root, [row]))
        attributes = get_dataset_list(["train"], str(root / "data/train"))[0]
        converted = SharegptDatasetConverter(attributes, None)(
            next(iter(read_jsonl(root / "data/train/train.jsonl")))
        )  # type: ignore[arg-type]
        assert [turn["content"] for turn in converted["_prompt"]] == ["p"]
        assert [turn["content"] for turn in converted["_response"]] == answers


def test_sources_of_two_kinds_are_refused(root: Path) -> None:
    pairs = local(root, [{"prompt": "p", "chosen": "good", "rejected": "worse"}], "pairs")
    with pytest.raises(PawlError, match="2 kinds"):
        make(root, mine=local(root, rows(3)), pairs=pairs)


def test_weights_are_shares_of_what_the_scarcest_source_allows(root: Path) -> None:
    other = [{"question": f"other {n}", "answer": "a"} for n in range(100)]
    sources = {
        "a": local(root, rows(60), "a", weight=3.0),
        "b": local(root, other, "b", weight=1.0),
    }
    assert {name: count["kept"] for name, count in make(root, **sources)["sources"].items()} == {
        "a": 60,
        "b": 20,
    }
    limited = make(root, limits={"max_rows": 40}, **sources)
    assert {name: count["kept"] for name, count in limited["sources"].items()} == {"a": 30, "b": 10}


@pytest.mark.parametrize(
    ("stratify", "wanted"), [("category", {"x": 18, "y": 2}), ("category=even", {"x": 10, "y": 10})]
)
def test_a_stratified_sample_keeps_or_evens_the_shares(
    stratify: str, wanted: dict[str, int], root: Path
) -> None:
    lines = [
        {"question": f"{c} {n}", "answer": "a", "category": c}
        for c, many in (("x", 90), ("y", 10))
        for n in range(many)
    ]
    make(root, limits={"max_rows": 20, "stratify": stratify}, mine=local(root, lines))
    found = [messages[0]["content"].split()[0] for messages in trained(root)]
    assert {name: found.count(name) for name in "xy"} == wanted


def test_held_out_rows_share_no_question_with_the_training_rows(root: Path) -> None:
    lines = [
        {"question": f"question {n}", "answer": f"answer {m}"} for n in range(40) for m in range(3)
    ]
    report = make(root, limits={"eval_fraction": 0.1}, mine=local(root, lines))
    held = [row["messages"][0]["content"] for row in read_jsonl(root / "data/train/eval.jsonl")]
    asked = {messages[0]["content"] for messages in trained(root)}
    assert report["eval_rows"] == len(held) >= 12
    assert report["rows"] + report["eval_rows"] == 120
    assert not set(held) & asked
    assert set(read_json(root / "data/train/dataset_info.json")) == {"train", "eval"}


def test_reasoning_is_put_into_tags_by_code(root: Path) -> None:
    lines = [
        {"question": "q", "answer": "4", "reasoning": "two and two"},
        {"question": "r", "answer": "5"},
    ]
    limits = {"think_tags": True, "filters": ["format", "decontamination"]}
    report = make(root, limits=limits, mine=local(root, lines))
    assert trained(root)[0][-1]["content"] == "<think>\ntwo and two\n</think>\n\n4"
    assert report["sources"]["mine"]["format"] == 1, (
        "a row without reasoning has no tags, and is no example of thinking"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "</think>a<think>",
        "<think>a</think>b<think>c</think>d",
        "a</think>b",
        "<think>a</think>\u200b\n",
    ],
)
def test_tags_that_do_not_match_are_told(answer: str) -> None:
    assert badly_formed(answer, Data(required_tags=[], think_tags=False))


NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{%"
    " endif %}{% for message in messages %}{{ message['content'] }}{% endfor %}"
)


def test_rows_that_the_chat_template_refuses_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(seen: list[Any]) -> list[int]:
        return [len(text) for text in tokens._rendered(seen, NO_SYSTEM, {})]

    monkeypatch.setattr(test_generate_data, "words_in", count)
    system = [{"role": role, "content": f"{role} says"} for role in ("system", "user", "assistant")]
    assert make(root, 500, mine=local(root, rows(3)))["rows"] == 3
    with pytest.raises(PawlError, match=r"refuses 2 rows: System role not supported") as refused:
        make(
            root,
            500,
            mine=local(
                root,
                [
                    *rows(3),
                    {"messages": system},
                    *rows(9)[3:],
                    {"messages": [*system, *system[1:]]},
                ],
            ),
        )
    assert (
        "rows.jsonl:4" in refused.value.where
        and "rows.jsonl:11" in refused.value.where
        and "system turn" in refused.value.fix
    )
