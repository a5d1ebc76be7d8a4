"""What a model thinks aloud is not scored; a thought that never ended is no answer."""

from __future__ import annotations

import pytest

from stages.common.llm import Reply
from stages.common.scoring import Scorer
from stages.evaluate import score
from stages.evaluate.think import Thinking
from tests.evaluate.test_score import AccwithDetailsEvaluator, make_task


@pytest.mark.parametrize(
    ("begun", "cut_off", "reply", "text", "unclosed"),
    [
        (False, False, "<think>2 and 2</think>\n\n4", "4", False),
        (False, False, "<think>a</think> no <think>b</think>4", "4", False),
        (False, False, "4", "4", False),
        (False, False, "<think>2 and", "", True),
        (True, True, "2 and 2</think>4", "4", False),
        (True, True, "2 and 2", "", True),
        (True, False, "<think>2 and 2", "", True),
        (False, False, "</think>4", "4", False),
        (False, True, "4 and", "4 and", False),
        (False, False, "<think></think>", "", False),
    ],
)
def test_the_answer_is_what_follows_the_thinking(
    begun: bool, cut_off: bool, reply: str, text: str, unclosed: bool
) -> None:
    answer = Thinking("<think>", "</think>", begun).strip(reply, cut_off=cut_off)
    assert (answer.text, answer.unclosed) == (text, unclosed)


def test_without_tags_nothing_is_taken_off() -> None:
    assert Thinking().strip("<think>4", cut_off=False).text == "<think>4"


def test_answers_without_thoughts_are_scored_although_the_prompt_begins_one() -> None:
    thinking = Thinking("<think>", "</think>", begun=True)
    replies = [
        Reply("4", 5, 2, "stop"),
        Reply("2 and 2 are", 5, 9, "length"),
        Reply("so</think>4", 5, 9, "stop"),
    ]
    rows = score.rows(
        make_task(["4", "4", "4"]),
        replies,
        Scorer(AccwithDetailsEvaluator(), str),
        thinking=thinking,
    )
    assert [(row.correct, row.truncated) for row in rows] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert thinking.counts == {"replies": 2, "characters": 13, "unclosed": 1}


def test_thinking_is_counted_and_an_open_thought_is_a_truncation() -> None:
    thinking = Thinking("<think>", "</think>")
    replies = [
        Reply("<think>abc</think>4", 5, 9, "stop"),
        Reply("<think>abcd", 5, 9, "stop"),
        Reply("4", 5, 1, "stop"),
    ]
    rows = score.rows(
        make_task(["4", "4", "4"]),
        replies,
        Scorer(AccwithDetailsEvaluator(), str),
        thinking=thinking,
    )
    assert [(row.correct, row.truncated) for row in rows] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert rows[0].prediction == "<think>abc</think>4", "the row keeps what was generated"
    assert thinking.counts == {"replies": 2, "characters": 7, "unclosed": 1}
