"""What may be said of a benchmark, and what may not."""

from __future__ import annotations

import time

import pytest

from stages.judge.leaks import Guard, sentences

ITEMS = [
    {"question": "A farmer has 17 sheep and sells all but nine of them at the market. How many remain?", "answer": "9"},
    {"question": "State the final answer to the following problem: 94 + 95 =", "answer": "189"},
    {"question": "Which river flows through Paris?", "answer": "the Seine river of France"},
    *({"question": f"State the final answer to the following problem: {k} + {k + 1} =", "answer": str(2 * k + 1)} for k in range(40, 60)),
]
SHOWN = [
    {"question": ITEMS[1]["question"], "expected": "189", "output": "Quokka"},
    {"question": ITEMS[0]["question"], "expected": "9", "output": "yes"},
]
REPLIES = ["I would say that the capital is certainly Lyon by the sea", "189", "Quokka"]
PUBLIC = "accuracy went from 0.0 % to 53.0 %, 200 items, learning rate 0.001, 30 of 60 losses, chain_sum, yes"


@pytest.fixture(scope="module")
def guard():
    return Guard(ITEMS, REPLIES, SHOWN, PUBLIC)


@pytest.mark.parametrize(
    "sentence",
    [
        "It fails where a FARMER has 17 sheep, and sells them.",  # five words of a question, other case and signs
        "The model fails on 94 + 95.",  # numbers that follow each other
        "It never finds 189.",  # an answer
        "It tends to say “quokka” instead.",  # a reply
        "It thinks the capital is certainly Lyon.",  # five words of a reply that was not shown
        "It does not know the Seine river of France.",  # an answer of several words
        "It never finds \uff11\uff18\uff19.",  # full-width digits
        "It tends to say Quo\u200bkka.",  # an invisible character within a word
        "A farmer has 17. Sheep and sells all.",  # a quotation cut into sentences
    ],
)
def test_content_of_items_is_found(guard, sentence):
    assert guard.leaks(sentence) and guard.cut(f"It is better. {sentence} Train longer.") == "It is better. Train longer."


@pytest.mark.parametrize(
    "sentence",
    [
        "Accuracy went from 0.0 % to 53.0 % on 200 items.",
        "The model stops its reasoning early and loses a step in sums of two terms.",
        "Raise the learning rate above 0.001 and train for 2 epochs.",
        "It ignores the instruction to state the final answer to the following problem.",  # what a tenth of the questions say
        "Yes, the form is learnt.",
        "",
    ],
)
def test_insight_is_left_alone(guard, sentence):
    assert not guard.leaks(sentence)


def test_a_grouped_number_is_the_number():
    guard = Guard(ITEMS, [], [{"question": "What is 1300 + 29?", "expected": "1329", "output": "yes"}], PUBLIC)
    assert guard.leaks("It never finds 1,329.") and guard.leaks("It fails on 1'300.") and not guard.leaks("It has 2 tasks, 100 items each.")


def test_sentences_end_where_they_end():
    text = 'The rate is 0.001. It helped, e.g. in sums. "Why?" he asked.\n\nNext: 2 epochs!  [Benchmark] ok.'
    assert sentences(text)[0] == "The rate is 0.001." and " ".join(sentences(text)) == " ".join(text.split())


def test_a_large_benchmark_takes_little_time():
    items = [{"question": f"question number {k} asks for thing {k * 7} of the list", "answer": str(k)} for k in range(5_000)]
    begun = time.process_time()
    big = Guard(items, [f"I believe it is {k} or so" for k in range(5_000)], SHOWN, PUBLIC)
    assert big.leaks("Thing 7 of the list was asked for: question number 1 asks for thing 7.")
    assert time.process_time() - begun < 3
