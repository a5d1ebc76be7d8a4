"""What may be said of a benchmark, and what may not."""

from __future__ import annotations

import time

import pytest

from stages.judge.leaks import Guard, sentences

ITEMS = [
    {
        "question": (
            "A farmer has 17 sheep and sells all but nine of them at the market. How many remain?"
        ),
        "answer": "9",
    },
    {"question": "State the final answer to the following problem: 94 + 95 =", "answer": "189"},
    {"question": "Which river flows through Paris?", "answer": "the Seine river of France"},
    *(
        {
            "question": f"State the final answer to the following problem: {k} + {k + 1} =",
            "answer": str(2 * k + 1),
        }
        for k in range(40, 60)
    ),
]
SHOWN = [
    {"question": ITEMS[1]["question"], "expected": "189", "output": "Quokka"},
    {"question": ITEMS[0]["question"], "expected": "9", "output": "yes"},
]
REPLIES = ["I would say that the capital is certainly Lyon by the sea", "189", "Quokka"]
PUBLIC = (
    "accuracy went from 0.0 % to 53.0 %, 200 items, learning rate 0.001, 30 of 60 losses,"
    " chain_sum, yes"
)


@pytest.fixture(scope="module")
def guard():
    return Guard(ITEMS, REPLIES, SHOWN, PUBLIC)


@pytest.mark.parametrize(
    "sentence",
    [
        # five words of a question, other case and signs
        "It fails where a FARMER has 17 sheep, and sells them.",
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
    assert (
        guard.leaks(sentence)
        and guard.cut(f"It is better. {sentence} Train longer.") == "It is better. Train longer."
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "Accuracy went from 0.0 % to 53.0 % on 200 items.",
        "The model stops its reasoning early and loses a step in sums of two terms.",
        "Raise the learning rate above 0.001 and train for 2 epochs.",
        # what a tenth of the questions say
        "It ignores the instruction to state the final answer to the following problem.",
        "Yes, the form is learnt.",
        "",
    ],
)
def test_insight_is_left_alone(guard, sentence):
    assert not guard.leaks(sentence)


LISTS = [
    {
        "benchmark": "back",
        "question": f"Solve it. Reverse this list of words: {words}",
        "answer": ", ".join(words.split(", ")[::-1]),
    }
    for words in (
        "that, have, or, think",
        "way, what, you, it",
        "river, stone, apple, cloud",
        "small, number, of, words",
        "paper, lamp, of, green, horse",
        *(f"alpha{k}, beta{k}, gamma{k}" for k in range(40)),
    )
]
SUMS = [
    {"benchmark": "sums", "question": f"State the sum: {k} + {k + 1} =", "answer": str(2 * k + 1)}
    for k in range(40, 100)
]
SEEN = [
    *(
        {"question": item["question"], "expected": item["answer"], "output": item["answer"]}
        for item in LISTS[:5]
    ),
    {"question": SUMS[54]["question"], "expected": "189", "output": "24"},
    {"question": "How many legs has a spider and a dog? Think.", "expected": "12", "output": "9"},
    {"question": "Is it nice?", "expected": "positive", "output": "positive"},
]
LABELS = [
    {
        "benchmark": "mood",
        "question": f"Review {k}: it was {k} times better. Mood?",
        "answer": "positive",
    }
    for k in range(9)
]


@pytest.fixture(scope="module")
def strict():
    replies = [
        "I think that it would be the best way to find out",
        "24",
        "the model is not able to say so",
        "Accuracy rose by 24 points",
    ]
    return Guard([*LISTS, *SUMS, *LABELS], replies, SEEN, PUBLIC)


@pytest.mark.parametrize(
    "sentence",
    [
        "It fails on that, have, or, think.",  # a short item of everyday words alone
        "It fails on way what you it.",  # its four words without commas
        "It cannot reverse 'way', 'what', 'you' and 'it'.",
        "It fails on that-have-or-think.",
        "It fails on `that` `have` `or` `think`.",
        "It fails on that_have_or_think.",
        "It fails on that.have.or.think too.",
        "It never finds \u0661\u0668\u0669.",  # Arabic digits
        "It never finds 0189.",
        "It fails on river stone apple cloud.",  # without commas
        "It mixes cloud with apple and the river.",  # in another order
        "It drops green horse from paper, lamp, of, green, horse.",
        "It never finds one hundred and eighty-nine.",
        "It never finds One Hundred Eighty Nine.",
        "It fails where the 189th is asked for.",
        "The sum is ninety-four plus ninety-five.",
        "It answers 24 where more is right.",
        "The answer is twelve, and it answers nine.",
        "Its reply was 9 again.",
        "The loss fell, yet it gives 24.",
    ],
)
def test_what_only_an_item_has_is_found_however_short_or_spelled(strict, sentence):
    assert strict.leaks(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Accuracy rose by 24 points.",
        "It rose by 24.",
        "Answers of 12 digits fail more often than those of 9 terms.",
        "Accuracy rose from 12 to 24 percent on 189 validation items.",
        "Raise the rank from 12 to 24, and train for 9 epochs on 189 rows.",
        "About 24 of 189 items are cut off.",
        "I think that it would be the best way to find out.",  # what anybody says, in a reply too
        "The model is not able to say so.",
        "You have to think that it is what it is.",  # the words of a list, not as a list
        "Most answers of the class positive are right.",  # a label of the task
        "It loses the second of two steps, then a third.",
        "The number of words that it drops is small.",
        "Twelve epochs are more than it needs, nine would do.",
    ],
)
def test_what_is_common_in_the_language_or_a_figure_of_the_run_is_no_leak(strict, sentence):
    assert not strict.leaks(sentence)


def test_a_grouped_number_is_the_number():
    guard = Guard(
        ITEMS, [], [{"question": "What is 1300 + 29?", "expected": "1329", "output": "yes"}], PUBLIC
    )
    assert (
        guard.leaks("It never finds 1,329.")
        and guard.leaks("It fails on 1'300.")
        and not guard.leaks("It has 2 tasks, 100 items each.")
    )


def test_sentences_end_where_they_end():
    text = (
        'The rate is 0.001. It helped, e.g. in sums. "Why?" he asked.\n\nNext: 2 epochs! '
        " [Benchmark] ok."
    )
    assert sentences(text)[0] == "The rate is 0.001." and " ".join(sentences(text)) == " ".join(
        text.split()
    )


def test_a_large_benchmark_takes_little_time():
    items = [
        {"question": f"question number {k} asks for thing {k * 7} of the list", "answer": str(k)}
        for k in range(5_000)
    ]
    begun = time.process_time()
    big = Guard(items, [f"I believe it is {k} or so" for k in range(5_000)], SHOWN, PUBLIC)
    assert big.leaks("Thing 7 of the list was asked for: question number 1 asks for thing 7.")
    assert time.process_time() - begun < 3
