"""No key that changes what a row means is dropped: it is used, or the row is refused with the key
named; harmless keys are told.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from stages.common.fields import Unused, text_of
from stages.common.shapes import Question, question_of
from tests.common.test_records import GOOD, USER, WORSE, turns

QA = {"question": "q", "answer": "a"}
SAID = {"role": "assistant", "content": "good"}


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (QA | {"tools": [{"name": "f"}]}, "tools"),
        (QA | {"functions": [{"name": "f"}]}, "functions"),
        (QA | {"images": ["a.jpg"]}, "images"),
        (QA | {"image": {"bytes": b"x"}}, "image"),
        (QA | {"audio": "a.wav"}, "audio"),
        (QA | {"videos": ["a.mp4"]}, "videos"),
        (QA | {"weight": 0}, "weight"),
        (QA | {"weight": 0.5}, "weight"),
        (QA | {"train": False}, "train"),
        (QA | {"loss": "false"}, "loss"),
        (QA | {"hint": "think"}, "hint"),
        (QA | {"background": "A long story."}, "background"),
        (QA | {"is_correct": False}, "is_correct"),
        (QA | {"source": "word " * 30}, "source"),  # a text, whatever it is called
        (QA | {"explanation": "because"}, "explanation"),
        ({"instruction": "i", "output": "o", "choices": ["x", "y"]}, "choices"),
        ({"prompt": "p", "completion": "c", "context": "k"}, "context"),
        ({"prompt": "p", "chosen": "x", "rejected": "y", "tools": ["t"]}, "tools"),
        ({"messages": turns(USER, GOOD), "tools": ["t"]}, "tools"),
        ({"messages": [*turns(USER), SAID | {"tool_calls": [{"id": "1"}]}]}, "tool_calls"),
        ({"messages": [*turns(USER), SAID | {"function_call": {"name": "f"}}]}, "function_call"),
        ({"messages": [*turns(USER), SAID | {"weight": 0}]}, "weight"),
        ({"messages": [*turns(USER), SAID | {"train": False}]}, "train"),
        ({"messages": [*turns(USER), SAID | {"loss_mask": 0}]}, "loss_mask"),
        ({"messages": [*turns(USER), SAID | {"prefix": True}]}, "prefix"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "u", "image": "a.png"},
                    {"from": "gpt", "value": "a"},
                ]
            },
            "image",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
                    SAID,
                ]
            },
            "image_url",
        ),
    ],
)
def test_a_key_that_may_change_what_a_row_means_is_refused_by_name(
    row: dict[str, Any], key: str
) -> None:
    with pytest.raises(Unused, match=repr(key)) as error:
        question_of(row)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"id": 7, "source": "web", "Unnamed: 0": 3}, ("Unnamed: 0", "id", "source")),
        (
            {
                "__index_level_0__": 4,
                "score_chosen": 0.5,
                "num_tokens": 9,
                "metadata": {"prompt": "x " * 50},
            },
            None,
        ),
        (
            {
                "questionId": "x",
                "model_name": "m",
                "created_at": "2024-01-01",
                "lang": "en",
                "tags": ["a", "b"],
                "label": "spam",
            },
            None,
        ),
        (
            {"images": [], "tools": None, "context": "", "weight": 1, "train": True, "choices": []},
            ("train", "weight"),
        ),
        ({"text": "### q\n\n### a"}, ("text",)),  # the whole of it, put together once more
        ({"prompt": "q"}, ("prompt",)),
    ],
)
def test_harmless_keys_are_left_out_and_told(
    extra: dict[str, Any], told: tuple[str, ...] | None
) -> None:
    found = question_of(QA | extra)
    assert found == Question("q", "a")
    assert found.unused == (told or tuple(sorted(extra)))


def test_keys_of_turns_are_told_and_what_a_user_turn_does_not_teach_is_harmless() -> None:
    messages = [
        {"role": "user", "content": "u", "id": 1, "weight": 0, "tool_calls": None},
        SAID | {"weight": 1, "refusal": None},
    ]
    assert question_of({"messages": messages}) == Question("u", "good")
    assert question_of({"messages": messages}).unused == ("id", "weight")
    pair = {
        "chosen": [messages[0], SAID | {"id": 2}],
        "rejected": [messages[0] | {"id": 3}, *turns(WORSE)],
    }
    assert question_of(pair) == Question("u", "good", rejected="worse")


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (QA | {"context": "The passage."}, Question("The passage.\n\nq", "a")),
        (QA | {"passage": "The passage."}, Question("The passage.\n\nq", "a")),
        (QA | {"context": ["One.", "Two."]}, Question("One.\n\nTwo.\n\nq", "a")),
        (
            QA | {"history": [["h", "r"]]},
            Question("q", "a", context=(("user", "h"), ("assistant", "r"))),
        ),
        (QA | {"system_prompt": "s"}, Question("q", "a", context=(("system", "s"),))),
        (
            {"instruction": "i", "context": "k", "response": "o", "category": "c"},
            Question("i\nk", "o", "c"),
        ),
        (
            {"system": "s", "query": "q", "response": "a"},
            Question("q", "a", context=(("system", "s"),)),
        ),
        ({"prompt": "p", "response": "r"}, Question("p", "r")),
        ({"instruction": "i", "output": "o", "reasoning": "r"}, Question("i", "o", reasoning="r")),
        (
            {"question": "q", "answers": {"text": ["x", "x"], "answer_start": [1, 5]}, "id": "1"},
            Question("q", "x"),
        ),
        (
            {"messages": [*turns(USER), SAID | {"reasoning_content": "r"}]},
            Question("u", "good", reasoning="r"),
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "one"},
                            {"type": "text", "text": "two"},
                        ],
                    },
                    SAID,
                ]
            },
            Question("one\ntwo", "good"),
        ),
        (
            {"messages": [{"role": "developer", "content": "s"}, *turns(USER, GOOD)]},
            Question("u", "good", context=(("system", "s"),)),
        ),
        (
            {
                "conversations": [
                    {"from": "prompter", "value": "u"},
                    {"from": "chatgpt", "value": "a"},
                ]
            },
            Question("u", "a"),
        ),
        (
            {"conversations": [{"from": "Human", "value": "u"}, {"from": "GPT", "value": "a"}]},
            Question("u", "a"),
        ),
    ],
)
def test_what_other_shapes_mean_is_used(row: dict[str, Any], wanted: Question) -> None:
    assert question_of(row) == wanted


CHOSEN = "q\nA. red\nB. blue\nAnswer with the letter of the right choice alone."


@pytest.mark.parametrize(
    "row",
    [
        {"choices": ["red", "blue"], "answer": "B"},
        {"options": ["red", "blue"], "answer": "(B)"},
        {"choices": ["red", "blue"], "answer": "blue"},
        {"choices": ["red", "blue"], "answer": 1},
        {"choices": ["red", "blue"], "answer": "1"},
        {"choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answerKey": "B"},
        {"options": {"A": "red", "B": "blue", "C": None}, "answer": "blue", "answer_idx": "B"},
        {"A": "red", "B": "blue", "C": "", "answer": "B"},
    ],
)
def test_a_question_is_asked_with_its_choices_and_for_a_letter(row: dict[str, Any]) -> None:
    assert question_of({"question": "q", **row}) == Question(CHOSEN, "B")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"choices": ["red", "blue"], "answer": "C"}, "none of the choices"),
        ({"choices": ["red", "blue"], "answer": 2}, "none of the choices"),
        ({"choices": ["1", "2", "3"], "answer": "2"}, "B and as C"),
        ({"choices": [1, 2, 3], "answer": 2}, "B and as C"),
        ({"choices": ["red", "blue"], "answer": "red", "answer_idx": "B"}, "A and as B"),
        ({"choices": ["red", "red"], "answer": "A"}, "two different choices"),
        ({"choices": "red, blue", "answer": "A"}, "neither a list"),
        (
            {"choices": {"text": ["red", "blue"], "label": ["A"]}, "answer": "A"},
            "2 texts and 1 labels",
        ),
        ({"choices": ["red", "blue"], "answer": None}, "answer is missing"),
        ({"answers": ["x", "y"]}, "2 different answers"),
    ],
)
def test_a_choice_that_can_be_read_in_two_ways_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        question_of({"question": "q", **row})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (32.0, "32"),
        (Decimal("18.0"), "18"),
        (Decimal("5e5"), "500000"),
        (5e5, "500000"),
        (-0.5, "-0.5"),
        (Decimal("5.10"), "5.10"),
        (0.1, "0.1"),
        (1e-7, "0.0000001"),
        (7, "7"),
        (0.0, "0"),
        (date(2024, 1, 31), "2024-01-31"),
        ("18.0", "18.0"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_a_value_is_the_text_that_a_person_would_write(value: Any, text: str) -> None:
    assert text_of(value, "answer") == text


@pytest.mark.parametrize(
    "value",
    [
        True,
        float("nan"),
        float("inf"),
        datetime(2024, 1, 31, 12),
        2.0**60,
        Decimal("1e400000000"),
        Decimal("1e-40"),
        b"",
        ["x"],
        {},
        None,
    ],
)
def test_a_value_that_is_no_sure_text_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^answer is"):
        text_of(value, "answer")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (
            [{"role": "system", "content": ""}, *turns(USER, GOOD)],
            r"messages\[0\] \(system\): content is empty",
        ),
        ([*turns(USER, GOOD, USER), {"role": "tool", "content": "x"}], "role 'tool'"),
        ([*turns(USER), SAID | {"thinking": "t"}, *turns(USER, GOOD)], "thoughts of its own"),
        ([{"role": "user", "content": [{"type": "text"}]}, SAID], "part of the type 'text'"),
        ([{"role": "user", "content": []}, SAID], "not text but a list"),
    ],
)
def test_a_turn_that_cannot_be_used_is_named(messages: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        question_of({"messages": messages})


@pytest.mark.parametrize("history", ["abc", [{"q": 1}], 7, [["a"]], {"a": "b"}])
def test_a_history_of_another_form_is_refused(history: Any) -> None:
    with pytest.raises(ValueError, match="not a list of pairs"):
        question_of({"instruction": "i", "output": "o", "history": history})


@pytest.mark.parametrize(
    "row",
    [
        {"system": "other", "messages": turns(("system", "s"), USER, GOOD)},
        {"prompt": "other", "chosen": turns(USER, GOOD), "rejected": turns(USER, WORSE)},
    ],
)
def test_two_prompts_that_differ_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"keep one|not in the conversations"):
        question_of(row)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\u200b", "is empty"),
        ("\ufeff\u00a0\u200e", "is empty"),
        ("\x07", "is empty"),
        ("\\N", "is missing"),
        ("<NA>", "is missing"),
        ("#REF!", "spreadsheet"),
        ("#N/A", "spreadsheet"),
        ("#DIV/0!", "spreadsheet"),
    ],
)
def test_what_says_nothing_is_no_answer(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        question_of({"question": "q", "answer": text})


@pytest.mark.parametrize(
    "text",
    [
        "None",
        "nan",
        "null",
        "0",
        "-",
        "\U0001f468\u200d\U0001f469",
        "\u0646\u0645\u06cc\u200c",
        "#hashtag",
    ],
)
def test_what_says_little_is_an_answer(text: str) -> None:
    assert question_of({"question": "q", "answer": text}) == Question("q", text)


@pytest.mark.parametrize("mark", ["NULL", "nan", "NaN", "None", "N/A"])
@pytest.mark.parametrize(
    "row",
    [{"instruction": "i", "output": "o", "input": ""}, QA | {"context": ""}, QA | {"system": ""}],
)
def test_a_word_for_a_missing_value_is_not_asked_as_text(mark: str, row: dict[str, Any]) -> None:
    name = next(name for name, value in row.items() if not value)
    with pytest.raises(ValueError, match=f"{name} is '{mark}'"):
        question_of(row | {name: mark})
    for sure in ("\\N", "<noinput>", "<NA>"):
        assert question_of(row | {name: sure}) == question_of(row)


def test_a_pair_is_refused_where_its_ratings_say_the_contrary() -> None:
    pair = {"prompt": "p", "chosen": "x", "rejected": "y"}
    for better, worse in (("chosen-rating", "rejected-rating"), ("score_chosen", "score_rejected")):
        with pytest.raises(ValueError, match="the rejected answer is the better one"):
            question_of(pair | {better: 1.0, worse: "5"})
        assert question_of(pair | {better: 5, worse: 1.0}) == Question("p", "x", rejected="y")
    assert question_of(pair | {"chosen_logprob": -9.5, "rejected_logprob": -1.0}) == Question(
        "p", "x", rejected="y"
    )


@pytest.mark.parametrize("rating", ["bad", "Thumbs down", "\U0001f44e", "wrong"])
def test_an_answer_that_its_rating_calls_bad_is_not_learnt(rating: str) -> None:
    with pytest.raises(Unused, match="bad one"):
        question_of(QA | {"rating": rating})
    assert question_of(QA | {"rating": "good", "topic": rating}) == Question("q", "a")


def test_columns_are_no_row() -> None:
    with pytest.raises(ValueError, match="orient"):
        question_of({"question": {"0": "q", "1": "r"}, "answer": {"0": "a", "1": "b"}})
