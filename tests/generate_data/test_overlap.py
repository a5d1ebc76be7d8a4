"""A benchmark item in a training row is found; what a benchmark says around every item is not taken
for one.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.common.errors import PawlError
from stages.generate_data import decontaminate
from stages.generate_data.decontaminate import paraphrase, positive_control
from stages.generate_data.grams import Lookup
from stages.generate_data.overlap import Hit, Index, Item, boilerplate_limit, words
from stages.generate_data.shorts import Shorts

INSTRUCTION = (
    "Please read the following list of words with care and give them back in the reverse order, one"
    " after the other:"
)
VOCABULARY = [f"w{number}x" for number in range(5000)]


def lists(n: int, split: str = "val", seed: int = 0) -> list[Item]:
    """Items of 22 words of instruction and four of content."""
    rng = random.Random(f"{split}{seed}")
    drawn = [rng.sample(VOCABULARY, 4) for _ in range(n)]
    return [
        Item("lists", split, f"{INSTRUCTION} {', '.join(w)}", ", ".join(reversed(w))) for w in drawn
    ]


SUM = Item(
    "sums", "test", "State the final answer to the following arithmetic problem: 4 - 1 =", "3"
)


def test_the_question_itself_is_found_whatever_its_form() -> None:
    index = Index([SUM], 13)
    assert index.find(
        ["  state the FINAL answer to the following arithmetic problem:\n4 - 1 ="], "3"
    ) == [Hit("sums", "test", "exact")]


def test_another_sign_is_another_question() -> None:
    assert not Index([SUM], 13).find([SUM.question.replace("-", "+")], "5")


def test_a_question_in_an_earlier_turn_is_found() -> None:
    assert Index([SUM], 13).find(["hello", "hi", SUM.question, "so what?"], "3")


def test_an_item_inside_a_longer_row_is_found_in_prompt_and_in_answer() -> None:
    index = Index([SUM], 13)
    hit = [Hit("sums", "test", "ngram")]
    assert index.find([f"My homework says: {SUM.question} Help!"], "3") == hit
    assert index.find(["Write an exam."], f"Task one. {SUM.question} Task two.") == hit


def test_the_answer_belongs_to_the_item() -> None:
    index = Index(
        [
            Item(
                "qa",
                "val",
                "Who wrote it?",
                "one two three four five six seven eight nine ten eleven",
            )
        ],
        13,
    )
    assert index.find(
        ["tell me: who wrote it? one two three four five six seven eight nine ten eleven"], "yes"
    )


def test_an_instruction_that_every_item_has_is_no_evidence() -> None:
    items = lists(200) + lists(200, "test")
    index = Index(items, 13)
    fresh = lists(500, "train")
    assert not [item for item in fresh if index.find([item.question], item.answer)]
    assert not index.find([INSTRUCTION], INSTRUCTION)


def test_an_item_among_boilerplate_is_still_found() -> None:
    items = lists(200)
    index = Index(items, 13)
    missed = [
        item
        for item in items
        if not index.find([f"Look: {item.question}. What do you say?"], "nothing")
    ]
    assert not missed


def test_the_first_word_of_an_item_after_the_instruction_is_no_evidence() -> None:
    items = lists(200)
    first = items[0].question[len(INSTRUCTION) :].split(",")[0]
    assert not Index(items, 13).find(
        [f"{INSTRUCTION}{first}, other, things, here"], "here, things, other"
    )


def test_a_passage_shared_by_few_items_counts() -> None:
    passage = " ".join(VOCABULARY[:40])
    items = [
        Item("reading", "val", f"{passage} Question {number}?", "x") for number in range(5)
    ] + lists(200)
    items += [
        Item("reading", "val", " ".join(random.Random(number).sample(VOCABULARY, 40)), "y")
        for number in range(195)
    ]
    assert Index(items, 13).find([f"An essay. {passage}"], "Nice.") == [
        Hit("reading", "val", "ngram")
    ]


@pytest.mark.parametrize(
    ("items", "limit"), [(1, 1), (4, 2), (19, 9), (20, 10), (400, 10), (20_000, 200)]
)
def test_the_limit_of_boilerplate_is_low_and_bounded(items: int, limit: int) -> None:
    assert boilerplate_limit(items) == limit


def test_short_items_are_found_by_their_question_alone() -> None:
    index = Index([Item("short", "val", "How are you?", "Fine")], 13)
    assert index.find(["how are you?"], "x")
    assert not index.find(["I say how are you? every day"], "x")


def test_chinese_is_cut_into_characters() -> None:
    text = (
        "\u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427"
    )
    assert len(words(text)) == len(text)
    assert Index([Item("zh", "val", text, "\u597d")], 13).find([f"\u4ed6\u8bf4{text}\u3002"], "x")


def test_the_control_finds_what_it_plants() -> None:
    items = [
        *lists(200),
        Item("short", "val", "How are you?", "Fine"),
        *[Item("sums", "val", SUM.question.replace("4", str(n)), "1") for n in range(50)],
    ]
    results = positive_control(Index(items, 13), items)
    assert results["lists"] == {
        "exact": True,
        "embedded": True,
        "wrapped": True,
        "paraphrase": None,
        "boilerplate": True,
    }
    assert results["sums"] == {
        "exact": True,
        "embedded": True,
        "wrapped": None,
        "paraphrase": None,
        "boilerplate": None,
    }
    assert results["short"] == {
        "exact": True,
        "embedded": None,
        "wrapped": None,
        "paraphrase": None,
        "boilerplate": None,
    }


def test_the_control_fails_where_the_search_is_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    items = lists(200)
    index = Index(items, 13)
    monkeypatch.setattr(index, "_grams", Lookup(np.zeros(0, np.uint64), np.zeros(0, np.int32)))
    monkeypatch.setattr(index, "_shorts", Shorts(13))
    found = positive_control(index, items)["lists"]
    assert found == {
        "exact": True,
        "embedded": False,
        "wrapped": False,
        "paraphrase": None,
        "boilerplate": True,
    }
    monkeypatch.setattr(index, "_questions", {})
    assert positive_control(index, items)["lists"]["exact"] is False


SHOP = (
    "Maria buys 14 pencils and 3 notebooks at the corner shop, gives half of the pencils to her"
    " brother Tom and loses one notebook on the way home. How many things does she still have?"
)


def test_a_question_with_other_numbers_is_found_by_resemblance_alone() -> None:
    # no n-gram of forty words: only the fuzzy search is left
    index = Index([Item("shop", "test", SHOP, "9")], 40)
    assert index.find([paraphrase(SHOP, 0.6)], "x") == [Hit("shop", "test", "fuzzy")]
    assert index.find([SHOP.replace("Maria", "Elena").replace("14", "20")], "x") == [
        Hit("shop", "test", "fuzzy")
    ]
    assert not index.find(
        [
            "Tom has a corner shop and sells pencils to his brother. How many pencils are left on"
            " the way home?"
        ],
        "x",
    )


def test_sums_with_other_numbers_are_other_questions() -> None:
    items = [Item("sums", "val", SUM.question.replace("4", str(n)), "1") for n in range(10, 60)]
    assert not Index(items, 13).find([SUM.question.replace("4", "77")], "76")


@pytest.mark.parametrize(
    ("prompt", "answer", "found"),
    [
        ("Tell me: what is the capital of France? Thank you.", "x", True),
        ("What is the capital of Francestan?", "x", False),
        ("Question: who wrote Hamlet?", "It was Shakespeare.", True),
        ("Question: who wrote Hamlet?", "No idea.", False),
        ("My homework is 8 - 0 = please", "8", True),
        ("My homework is 8 - 0 - 3 = please", "5", False),
        ("My homework is 18 - 0 = please", "18", False),
        ("Work it out.", "First 8 - 0 = 8, then we add 3.", False),
    ],
)
def test_a_short_question_inside_a_longer_turn(prompt: str, answer: str, found: bool) -> None:
    given = [
        ("What is the capital of France?", "Paris"),
        ("Who wrote Hamlet?", "Shakespeare"),
        ("8 - 0 =", "8"),
        ("How are you?", "Fine"),
    ]
    index = Index([Item("short", "test", question, gold) for question, gold in given], 13)
    assert [hit.match for hit in index.find([prompt], answer)] == (["short"] if found else [])


def test_a_question_is_found_without_the_instruction_that_all_items_have() -> None:
    messages = ["where is my card", "top up failed", "exchange rates", "lost phone", "change pin"]
    index = Index(
        [Item("intents", "val", f"Customer message: {text}\nIntent:", "x") for text in messages], 13
    )
    assert index.find(["lost phone"], "y") == [Hit("intents", "val", "exact")]
    assert not index.find(["lost phones"], "y")
    assert not index.find(["Customer message: new card\nIntent:"], "y")


def test_a_passage_of_two_items_of_a_small_task_is_no_boilerplate() -> None:
    passage = " ".join(VOCABULARY[:40])
    items = [Item("reading", "val", f"{passage} Question {number}?", "x") for number in range(2)]
    items += [
        Item("reading", "val", " ".join(random.Random(number).sample(VOCABULARY, 40)), "y")
        for number in range(18)
    ]
    assert Index(items, 13).find([f"An essay. {passage}"], "Nice.")


def test_every_planted_run_of_thirteen_words_is_found_and_nothing_else() -> None:
    rng = random.Random(3)
    items = [
        Item(
            "b",
            "test",
            " ".join(rng.choices(VOCABULARY, k=40)),
            " ".join(rng.choices(VOCABULARY, k=15)),
        )
        for _ in range(300)
    ]
    index = Index(items, 13)
    for item in items:
        text = f"{item.question} {item.answer}".split()
        start = rng.randint(0, len(text) - 13)
        noise = rng.choices(VOCABULARY, k=30)
        assert index.find(
            [" ".join(noise[:15])],
            " ".join([*noise[15:20], *text[start : start + 13], *noise[20:]]),
        )
        assert not index.find(
            [" ".join(noise[:15])],
            " ".join([*noise[15:20], *text[start : start + 12], *noise[20:]]),
        )


@pytest.mark.parametrize(
    "hide",
    [
        str.upper,
        lambda w: f"**{w}**",
        lambda w: f"_{w}_",
        lambda w: f"`{w}`",
        lambda w: f"\ufeff{w}",
        lambda w: f"\r\n\u2003{w}",
        lambda w: f"{w[0]}\u00ad{w[1:]}",
        lambda w: f"{w[0]}\u200b{w[1:]}",
        lambda w: f"{w[0]}\0{w[1:]}",
        lambda w: "".join(chr(ord(c) + 0xFEE0) for c in w),
    ],
)
def test_what_the_eye_does_not_see_hides_no_item(hide: Callable[[str], str]) -> None:
    told = [hide(word) if number % 6 == 0 else word for number, word in enumerate(VOCABULARY[:30])]
    index = Index([Item("b", "val", " ".join(VOCABULARY[:30]), "9")], 13)
    assert index.find([f"{' '.join(VOCABULARY[100:140])} {' '.join(told)}"], "x") == [
        Hit("b", "val", "ngram")
    ]


def test_a_minus_is_a_hyphen_and_a_star_between_numbers_a_sign() -> None:
    index = Index([Item("b", "val", "What is 48 - 17 + 5 * 3 in all?", "46")], 13)
    assert index.find(["what is 48 \u2212 17 + 5 * 3 in all?"], "x")
    assert not index.find(["What is 48 - 17 + 5 / 3 in all?"], "x")


def test_an_item_that_is_there_twice_is_no_boilerplate() -> None:
    items = [Item("b", split, " ".join(VOCABULARY[:40]), "9") for split in ("val", "test")]
    hits = [Hit("b", "test", "ngram"), Hit("b", "val", "ngram")]
    assert Index(items, 13).find([" ".join(VOCABULARY[5:20])], "x") == hits


@pytest.mark.parametrize("part", ["_find_runs", "_find_similar"])
def test_the_control_fails_where_one_search_alone_is_blind(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Index, part, lambda *_: None)
    with pytest.raises(PawlError, match="misses a planted item"):
        decontaminate.search([Item("shop", "val", SHOP, "9")], 13, 0.6)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[1]",
        "{",
        '{"question": null}',
        '{"other": "x"}',
        '{"question": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"messages": ' + '{"content": ' * 400 + '"x"' + "}" * 401,
        '{"question": ' + "9" * 5000 + "}",
    ],
)
def test_items_that_cannot_be_read_end_the_search_with_code_3(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "answer": "Me"}\n')
    (tmp_path / "items.jsonl").write_text(line + "\n")
    argv = [
        "--train",
        str(tmp_path / "rows.jsonl"),
        "--items",
        f"b:val={tmp_path / 'items.jsonl'}",
        "--workers",
        "1",
    ]
    assert decontaminate.main(argv) == 3
    assert capsys.readouterr().out == ""


COOPER = (
    "A cooper in Elva makes 7 barrels a day; how many barrels does he keep for the long cold"
    " winter?"
)


@pytest.mark.parametrize("text", [COOPER, "Who built the old mill?", '"Who" built\nthe old mill?'])
@pytest.mark.parametrize(
    "hide",
    [
        lambda t: {"instruction": "Answer from the passage.", "context": t, "response": "49"},
        lambda t: {"system": "You are kind.", "query": t, "response": "49"},
        lambda t: {"instruction": "Solve.", "inputs": t, "targets": "49", "output": ""},
        lambda t: {
            "messages": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"function": {"name": "ask", "arguments": json.dumps({"query": t})}}
                    ],
                }
            ],
            "output": "x",
        },
        lambda t: {
            "question": "Which one?",
            "choices": ["no", {"label": "B", "text": t}],
            "answer": "B",
        },
        lambda t: {"question": "Q", "answer": "A", "meta": [[[[{"deep": [{"er": t}]}]]]]},
        lambda t: {"qa": {t: "49"}},
        lambda t: {
            "messages": [
                {"role": "user", "content": "Hi", "name": t},
                {"role": "assistant", "content": "Yes"},
            ]
        },
        lambda t: {"messages": [{"role": t, "content": "Hi"}]},
    ],
)
def test_every_string_of_a_row_is_searched(
    text: str, hide: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(hide(text)) + "\n")
    (tmp_path / "items.jsonl").write_text(
        json.dumps({"item_id": "1", "question": text, "answer": "49", "licence": "MIT"}) + "\n"
    )
    argv = [
        "--train",
        str(tmp_path / "rows.jsonl"),
        "--items",
        f"b:val={tmp_path / 'items.jsonl'}",
        "--workers",
        "1",
    ]
    assert decontaminate.main(argv) == 1
    assert [hit["row"] for hit in json.loads(capsys.readouterr().out)["contaminated"]] == [0]


def test_a_row_too_deep_to_be_searched_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": ' * 300 + '"x"' + "}" * 300 + "\n")
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": COOPER, "answer": "9"}) + "\n")
    argv = [
        "--train",
        str(tmp_path / "rows.jsonl"),
        "--items",
        f"b:val={tmp_path / 'items.jsonl'}",
        "--workers",
        "1",
    ]
    assert decontaminate.main(argv) == 3 and "rows.jsonl:1" in capsys.readouterr().err


def test_a_field_that_rows_gain_later_is_searched_too() -> None:
    from dataclasses import make_dataclass

    from stages.common.shapes import Question
    from stages.generate_data.texts import turns

    later = make_dataclass("Later", [("tools", object, None)], bases=(Question,), frozen=True)
    assert Index([Item("b", "val", COOPER, "49")], 13).find_all(
        [turns(later("Q", "A", tools=[{"description": COOPER}]))]
    ) != [[]]


def test_text_in_parts_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"type": "text", "text": SHOP}]
    row = {
        "messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "Five."}]
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": SHOP, "answer": "9"}) + "\n")
    argv = [
        "--train",
        str(tmp_path / "rows.jsonl"),
        "--items",
        f"b:val={tmp_path / 'items.jsonl'}",
        "--workers",
        "1",
    ]
    assert decontaminate.main(argv) == 1
    assert json.loads(capsys.readouterr().out) == {
        "rows": 1,
        "contaminated": [{"row": 0, "benchmark": "b", "split": "val", "match": "exact"}],
    }


@pytest.mark.parametrize("fuzzy", [0.3, 0.6, 0.88, 0.89, 0.9, 0.95, 1.0])
def test_the_control_asks_for_no_more_resemblance_than_is_declared(fuzzy: float) -> None:
    # eight runs of three words, the fewest that are searched for
    short = "There were 12 apples and 7 pears in the basket"
    _, results = decontaminate.search(
        [Item("shop", "val", SHOP, "9"), Item("fruit", "val", short, "19")], 13, fuzzy
    )
    assert (
        results["shop"]["paraphrase"]
        and results["fruit"]["paraphrase"]
        and results["(control)"]["paraphrase"]
    )


@pytest.mark.parametrize("line", ['{"answer": "' + COOPER + '", "answer": "x"}', "question,answer"])
def test_a_row_of_which_a_part_is_not_searched_is_refused(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": COOPER, "answer": "9"}) + "\n")
    argv = [
        "--train",
        str(tmp_path / "rows.jsonl"),
        "--items",
        f"b:val={tmp_path / 'items.jsonl'}",
        "--workers",
        "1",
    ]
    assert decontaminate.main(argv) == 3 and "JSON Lines" in capsys.readouterr().err
