"""One answer is read from a reply, or none: what models write, and what must not pass for an
answer.
"""

# ruff: noqa: RUF001  full-width letters, quotation marks and signs of multiplication are what is
# read here

from __future__ import annotations

import time

import pytest

from stages.common import extraction, numerals
from stages.common.extraction import missing, right, visible
from stages.common.items import holds

CITY = (
    "Question: What is the capital of England?\nA. Paris\nB. London\nC. Rome, Italy\nD. It has no"
    " capital\nAnswer:"
)
YES_NO = "The sky is blue.\nQuestion: is it\nA. Yes\nB. No\nAnswer:"

# --- one letter of several: every reply answers B, in the words that models use
RIGHT_LETTER = [
    "B",
    "b",
    " B\n",
    "B.",
    "(B)",
    "[B]",
    "B)",
    "**B**",
    "**B.**",
    "`B`",
    "B. London",
    "B) London",
    "(B) London",
    "B: London",
    "**B. London**",
    "London",
    "London.",
    "**London**",
    "The answer is London.",
    "The answer is B.",
    "The answer is (B).",
    "The answer is: B",
    "The answer is **B**.",
    "The answer is B: London",
    "The answer is B, London.",
    "The correct answer is B) London",
    "The correct answer is option B.",
    "Answer: B",
    "ANSWER: B",
    "**Answer:** B",
    "**Answer: B**",
    "Answer: (B)",
    "Answer: b",
    "Answer:\nB",
    "Answer: **B. London**",
    "Final answer: B",
    "### Final Answer\nB",
    "Final Answer: The final answer is (B). I hope it is correct.",
    "So the answer is \\boxed{B}.",
    "$\\boxed{B}$",
    "\\boxed{\\text{B}}",
    "\\boxed{\\textbf{(B) London}}",
    "\\[\n\\boxed{B}\n\\]",
    "\\boxed{B}.",
    "Option B",
    "Option B is correct.",
    "B is correct.",
    "B is the correct answer.",
    "(B) is the best answer because it is on the Thames.",
    "I would choose B.",
    "I'd go with (B).",
    "I choose B because Paris is in France.",
    "I think the answer is B since A is wrong.",
    "Let us think. Paris is in France.\nB",
    "Paris is in France, and Rome is in Italy.\n\n**B**",
    "A is in France. C is in Italy. Therefore, the answer is B.",
    "The answer is not A but B.",
    "The answer is not A. The answer is B.",
    "A is not correct. B is correct.",
    "It cannot be A.\nAnswer: B",
    "I first thought that the answer is A. Wait, the answer is B.",
    "B\n\nExplanation: A is in France, C is in Italy.",
    "B. Because London is the seat of government.",
    "<think>The answer is A. Or C.</think>B",
    "<think>\nA\n</think>\n\nThe answer is B.",
    "thinking about A</think>\n\nB",
    "◁think▷A?◁/think▷ B",
    "<answer>B</answer>",
    "The answer is <answer>B</answer>",
    "答案是B",
    "答案：B",
    "正确答案是 B。",
    "因此选B",
    "故选：B",
    "B是正确的",
    "Die Antwort ist B.",
    "La réponse est B.",
    "La respuesta correcta es B.",
    "Ответ: B",
    "答えはB",
    "정답: B",
    "Ｂ",
    "The answer is “B”.",
    "The answer is 'B'.",
    "Answer - B\nB",
    "Answer: B\n\nQuestion: What is 1 + 1?\nA. 1\nB. 2\nAnswer: C",
    "The best option would be B",
    "The correct choice is B; the others are not capitals of England.",
    "Answer=B",
    "The answer to the question is B.",
    "The answer to this question is therefore B.",
    "Therefore, I say B.",
    "A. Paris\nB. London\nC. Rome, Italy\nD. It has no capital\n\nAnswer: B",
    "> B",
    "- B",
    "# B",
    "The answer is $B$.",
    "The answer is \\(B\\).",
    "Hmm, the answer is B!",
    "It is B.",
    "I think it's B",
    "The answer is A. No wait, it's B.",
    "The answer is A? No, it is B.",
    "Answer: B) London, or so I think",
]

# and none of these does
WRONG_LETTER = [
    "",
    " ",
    "\n\n",
    "Answer:",
    "**Answer:**",
    "The answer is",
    "The answer is:",
    "Final answer:",
    "\\boxed{}",
    "So the answer is \\boxed{}.",
    "答案：",
    "...",
    "-",
    "None",
    "N/A",
    "<think>The answer is B",
    "<think>The answer is B</think>",
    "<think>The answer is B</think>\nAnswer:",
    "A",
    "(A)",
    "Paris",
    "The answer is A.",
    "Answer: C",
    "\\boxed{D}",
    "A. Paris",
    "A, not B",
    "The answer is A, not B.",
    "The answer is not B.",
    "The answer isn't B",
    "It is not B.",
    "B is not correct.",
    "B is incorrect.",
    "B is wrong.",
    "Not B",
    "The answer is A or B.",
    "A or B",
    "A/B",
    "Either A or B",
    "Both A and B",
    "The answer is A and B.",
    "Answer: A, B",
    "Answer: A, B and C",
    "A, B, C, D",
    "Neither A nor B is correct.",
    "All of A, B and C",
    "A\nB\nC\nD",
    "A. Paris\nB. London\nC. Rome, Italy\nD. It has no capital",
    "The answer could be anything.",
    "The wrong answer is B.",
    "The answer is B. No, the answer is A.",
    "\\boxed{A} or \\boxed{B}",
    "\\boxed{A, B}",
    "B? No. The answer is A.",
    "I cannot answer this question.",
    "I'm sorry, but I can't help with that.",
    "As an AI language model, I have no opinion.",
    "Big cities have Bakeries and Banks.",
    "Berlin",
    "BBC",
    "Plan B failed, so they went on with a new plan.",
    "Vitamin B is healthy.",
    "The band is called The B Sides.",
    "Paris or London",
    "The answer is Paris or London.",
    "The answer is London or Paris.",
    "Londonderry",
    "London is on the Thames, and Paris on the Seine. Both are capitals.",
    "This is a hard question; many people get it wrong.",
    (
        "Question: What is the capital of England?\nA. Paris\nB. London\nC. Rome, Italy\nD. It has"
        " no capital\nAnswer:"
    ),
    "The answer is E.",
    "The answer is in the question.",
    "The options are A, B, C and D.",
    "Choose from A, B, C and D.",
    "The answer is one of A and B.",
    "Answer: B, maybe C",
    "Answer: B (or C)",
    "The answer is B. Or C.",
    "不选B",
    "答案不是B",
    "The answer is B. No, it's A.",
    "The answer is B. It is not B.\nAnswer: A",
]


@pytest.mark.parametrize("reply", RIGHT_LETTER)
def test_a_right_letter_is_read_however_it_is_said(reply: str) -> None:
    assert right("choice", "B", reply, CITY)
    assert not any(right("choice", letter, reply, CITY) for letter in "ACD")


@pytest.mark.parametrize("reply", WRONG_LETTER)
def test_no_letter_is_read_where_none_or_another_one_is_said(reply: str) -> None:
    assert not right("choice", "B", reply, CITY)
    assert not right("choice", "(B)", reply)


@pytest.mark.parametrize("letter", ["A", "I"])
@pytest.mark.parametrize(
    "reply",
    [
        "This is a hard question; I choose B.",
        "A hard question.",
        "I am not sure.",
        "I do not know",
        "A is for apple",
        "The answer is a mystery.",
        "The answer is I do not know.",
        "A",
        "I think so",
        "A city in England",
        "The answer is a city.",
        "a",
        "The answer is A mystery.",
    ],
)
def test_an_article_or_a_pronoun_is_no_letter(letter: str, reply: str) -> None:
    assert right("choice", letter, reply) == (reply.upper() == letter)


@pytest.mark.parametrize(
    "reply",
    [
        "Yes",
        "yes.",
        "**Yes**",
        "Yes, it is.",
        "Yes, because the passage says so.",
        "The answer is yes.",
        "Answer: Yes",
        "\\boxed{\\text{Yes}}",
        "A",
        "A. Yes",
        "The sky is blue.\nYes",
        "The answer is A (yes).",
        "True",
        "Answer: true",
        "I would say yes.",
    ],
)
def test_yes_is_read_as_a_word_and_as_its_letter(reply: str) -> None:
    if reply not in ("A", "A. Yes", "The answer is A (yes)."):
        assert (
            right("boolean", "yes", reply)
            and right("boolean", "true", reply)
            and not right("boolean", "no", reply)
        )
    if "rue" not in reply:
        assert right("choice", "A", reply, YES_NO) and not right("choice", "B", reply, YES_NO)


@pytest.mark.parametrize(
    "reply",
    [
        "There is no such thing.",
        "Yes and no.",
        "Yes or no?",
        "",
        "Answer:",
        "I have no idea.",
        "No one knows.",
        "The answer is not no.",
        "It is not true.",
        "Nobody",
        "<think>no</think>",
        "Answer: yes or no",
        "Neither yes nor no.",
    ],
)
def test_a_word_in_passing_is_no_verdict(reply: str) -> None:
    assert not right("boolean", "no", reply) and not right("boolean", "yes", reply)
    assert not right("choice", "B", reply, YES_NO)


# --- numbers: (gold, reply)
RIGHT_NUMBER = [
    ("8000", "\\boxed{8,000}"),
    ("8000", "8{,}000"),
    ("9500", "$9,500"),
    ("9500", "\\$9{,}500"),
    ("9500", "The answer is $9,500."),
    ("-5", "−5"),
    ("-5", "-5"),
    ("-5", "x = -5"),
    ("-5", "-$5"),
    ("5", "3 + 2 = 5"),
    ("18", "18"),
    ("18", "18."),
    ("18", "18.0"),
    ("18", "$18.00"),
    ("18", "**18**"),
    ("18", "18 dollars"),
    ("18", "18%"),
    ("18", "18 km"),
    ("18", "18km"),
    ("18", "18 m²"),
    ("18", "18 cm^2"),
    ("18", "€18"),
    ("18", "18 €"),
    ("18", "#### 18"),
    ("18", "１８"),
    ("18", "١٨"),
    ("18", "The answer is 18 dollars, since 16 - 3 - 4 = 9 eggs at 2 dollars."),
    ("18", "She sells 9 eggs.\n9 * 2 = 18\nSo she makes $18 every day."),
    ("18", "Step 1: 16 - 3 - 4 = 9\nStep 2: 9 x 2 = 18\nAnswer: 18"),
    ("18", "The answer is 9 * 2 = 18."),
    ("18", "\\boxed{18}"),
    ("18", "\\boxed{\\$18}"),
    ("18", "\\boxed{18\\text{ dollars}}"),
    ("18", "\\[ x = \\boxed{18} \\]"),
    ("18", "\\boxed{x = 18}"),
    ("18", "**Final Answer:** \\boxed{18}"),
    ("18", "Let x be 3.\n\n18"),
    ("18", "<think>17? 19?</think>18"),
    ("18", "18\n\nQuestion: And now?\nAnswer: 99"),
    ("18", "答案是18"),
    ("18", "答案：18元"),
    ("18", "La réponse est 18."),
    ("18", "Die Antwort ist 18."),
    ("18", "The final answer is: $\\boxed{18}$"),
    ("18", "The answer is **18**"),
    ("18", "Total: 18"),
    ("1234.56", "1.234,56"),
    ("1234.56", "1,234.56"),
    ("1234", "1 234"),
    ("1234", "1'234"),
    ("1234567", "1,234,567"),
    ("1234567", "12,34,567"),
    ("4.5", "4,5"),
    ("4.5", "4.50"),
    ("0.5", "1/2"),
    ("0.5", "\\frac{1}{2}"),
    ("0.5", "\\dfrac{1}{2}"),
    ("0.5", "½"),
    ("0.5", "50%"),
    ("0.5", ".5"),
    ("1/2", "0.5"),
    ("2.5", "2 1/2"),
    ("2.5", "2½"),
    ("1500", "1.5e3"),
    ("1500", "1.5 × 10³"),
    ("1500", "1.5 \\times 10^{3}"),
    ("2000000", "2 million"),
    ("5000", "5k"),
    ("100000", "10⁵"),
    ("32", "2^5"),
    ("3", "The answer is 3 apples and 2 pears"),
    ("007", "7"),
    ("5", "The answer is not 4. The answer is 5."),
    ("17", "It is 17, not 18."),
    ("5", "5 apples (not 6)"),
    ("-18", "minus 18"),
    ("-18", "The answer is negative 18."),
    ("-18", "x = - 18"),
    ("2", "20 minus 2 is 18, so 18 / 9 = 2"),
    ("1800", "18 hundred"),
    ("18", "The answer is 18, 5 more than 13."),
    ("8000", "So 8,000, not 800."),
    ("4", "1. First we add.\n2. Then we have 4"),
]
WRONG_NUMBER = [
    ("45", "4,5"),
    ("45", "4.5"),
    ("0", "8,000"),
    ("0", "\\boxed{8,000}"),
    ("500", "$9,500"),
    ("5", "-5"),
    ("-5", "3-5"),
    ("5", "H5O"),
    ("5", "v1.2.5"),
    ("18", ""),
    ("18", "Answer:"),
    ("18", "18 eggs are laid.\nAnswer:"),
    ("18", "18 eggs.\nThe answer is \\boxed{}"),
    ("18", "<think>18"),
    ("18", "<think>18</think>"),
    ("18", "The answer is 17 or 18."),
    ("18", "17 or 18"),
    ("18", "The answer is 17-18"),
    ("18", "The answer is 17 to 18."),
    ("18", "18 hens, 3 foxes"),
    ("18", "The answer is not 18."),
    ("18", "\\boxed{17}"),
    ("18", "180"),
    ("18", "118"),
    ("18", "1,8"),
    ("18", "18,5"),
    ("18", "-18"),
    ("18", "18/2"),
    ("18", "1 / 18"),
    ("18", "18 million"),
    ("18", "18k"),
    ("18", "m18"),
    ("2", "m^2"),
    ("3", "2^3"),
    ("25", "2⁵"),
    ("18", "I cannot answer that."),
    ("18", "eighteen thousand"),
    ("18", "The answer is \\boxed{17} or \\boxed{18}"),
    ("5", "5/0"),
    ("18", "18 apples = 9 pairs"),
    ("18", "It is 17, not 18."),
    ("18", "17, 18"),
    ("18", "17-18"),
    ("18", "between 17 and 18"),
    ("18", "15 16 17 18"),
    ("2", "18 + 2"),
    ("18", "Answer: 18, 19, or 20"),
    ("18", "Answer: 18 and 19"),
    ("18", "Answer: 18; 19"),
    ("18", "\\boxed{18, 19}"),
    ("18", "minus 18"),
    ("18", "The answer is: - 18"),
    ("18", "\\boxed{18\\pi}"),
    ("3", "\\boxed{2\\sqrt{3}}"),
    ("2", "\\boxed{2\\sqrt{3}}"),
    ("18", "x = \\pm 18"),
    ("18", "√18"),
    ("18", "18 trillion"),
]


def test_a_letter_beside_the_words_of_another_option_is_no_answer() -> None:
    assert not right("choice", "B", "Answer: B) Paris", CITY) and not right(
        "choice", "A", "Answer: B) Paris", CITY
    )


@pytest.mark.parametrize(("gold", "reply"), RIGHT_NUMBER)
def test_a_right_number_is_read_however_it_is_written(gold: str, reply: str) -> None:
    assert right("number", gold, reply)
    assert not right("number", "77", reply)


@pytest.mark.parametrize(("gold", "reply"), WRONG_NUMBER)
def test_no_number_is_read_where_none_or_another_one_is_said(gold: str, reply: str) -> None:
    assert not right("number", gold, reply)


@pytest.mark.parametrize("kind", extraction.KINDS)
@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \n",
        "Answer:",
        "**Answer:**",
        "The final answer is:",
        "\\boxed{}",
        "<think>18 B yes",
        "答案是",
        "<think></think>",
        "Assistant:",
    ],
)
def test_an_empty_or_missing_answer_is_never_right(kind: str, reply: str) -> None:
    assert missing(reply)
    assert not any(
        right(kind, gold, reply, CITY)
        for gold in {"choice": "ABCD", "boolean": ["yes", "no", "true"], "number": ["0", "18"]}[
            kind
        ]
    )


@pytest.mark.parametrize(
    "reply",
    [
        "A",
        "a",
        "0",
        "no",
        "B.",
        "42",
        "x",
        "(A)",
        "Answer: A",
        "ok",
        "The answer is blue",
        "None of them",
    ],
)
def test_a_short_answer_is_not_missing(reply: str) -> None:
    assert not missing(reply)


def test_an_answer_of_signs_alone_is_not_missing_where_the_gold_one_is_such() -> None:
    assert (
        missing(") ]")
        and not missing(") ]", ") ]")
        and not missing(">", "] >")
        and missing(" ", ")")
    )


@pytest.mark.parametrize(
    ("golds", "kind"),
    [
        (["A", "B", "J"], "choice"),
        (["(A)", "(C)"], "choice"),
        (["yes", "No"], "boolean"),
        (["True", "False"], "boolean"),
        (["1", "-2", "3.5", "8,000"], "number"),
        (["A", "Paris"], ""),
        (["1", "two"], ""),
        ([], ""),
        (["A", ""], ""),
        ([["A"]], ""),
        ([{"key": 1}], ""),
        (["2024-05-06"], ""),
        (["1 2 3"], ""),
    ],
)
def test_the_kind_of_a_benchmark_is_what_all_of_its_answers_are(golds: list, kind: str) -> None:
    assert extraction.kind(golds) == kind


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        "9" * 200_000,
        "1," * 100_000,
        "\\boxed{" * 20_000,
        "answer is " * 20_000,
        "A or " * 40_000,
        "(" * 100_000,
        "<think>" * 20_000,
        "1/" * 50_000,
        "\n" * 200_000,
        "A\n" * 50_000,
        "answer " * 30_000,
        "{" * 100_000,
        " " * 200_000,
        "**" * 100_000,
        "1'" * 60_000,
        "B is " * 30_000,
        "\\frac{" * 20_000,
        "\ud800",
        "\x00",
        "1e999",
        "9" * 299 + "^99",
        "2^99^99",
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_a_hostile_reply_costs_neither_time_nor_an_error(hostile: str) -> None:
    begun = time.process_time()
    for kind, gold in (("choice", "B"), ("boolean", "yes"), ("number", "18")):
        assert not right(kind, gold, hostile, CITY)
    missing(hostile)
    assert time.process_time() - begun < 10


def test_thoughts_are_seen_in_no_tag_that_is_known() -> None:
    assert (
        visible("<think>a</think>b") == "b"
        and visible("a</think>b") == "b"
        and visible("<think>a") == ""
        and visible("a < b") == "a < b"
    )
    assert visible("<thinking>a</thinking>b<think>c</think>d") == "d"


def test_fold_changes_the_form_of_a_text_and_not_its_meaning() -> None:
    assert (
        numerals.fold("cafe\u0301") == "caf\u00e9"
        and numerals.fold("１２") == "12"
        and numerals.fold("\u22125") == "-5"
        and numerals.fold("a\u00a0b") == "a b"
    )
    assert numerals.fold("2⁵") == "2⁵" and numerals.fold("½") == "½" and numerals.fold("①") == "①"


# --- the lenient verdict: (gold, reply, whether it holds the answer)
@pytest.mark.parametrize(
    ("gold", "reply", "held"),
    [
        ("A", "This is a hard question; I choose B.", False),
        ("I", "I do not know.", False),
        ("no", "There is no such thing.", False),
        ("no", "No, there is not.", True),
        ("yes", "Yes.", True),
        ("A", "I choose A.", True),
        ("(B)", "The answer is (B).", True),
        ("a", "a", True),
        ("9500", "9{,}500", True),
        ("-5", "\u22125", True),
        ("5", "3-5", True),
        ("-5", "3-5", False),
        ("45", "4,5", False),
        ("4.5", "4,5", True),
        ("12", "\uff11\uff12", True),
        ("19", "12 + 7 is 19", True),
        ("19", "19 is what 12 and 7 are", False),
        ("19", "<think>19</think>", False),
        ("caf\u00e9", "a cafe\u0301 it is", True),
        ("Paris", "<think>Paris?</think> London", False),
        ("Paris", "It is Paris.", True),
        ("Paris", "<think>It is Paris", False),
        ("Paris", "Parisian", False),
        ("19", "", False),
        ("", "x", False),
        ("8000", "\\boxed{8,000}", True),
    ],
)
def test_a_lenient_verdict_sees_the_answer_and_nothing_that_looks_like_it(
    gold: str, reply: str, held: bool
) -> None:
    assert holds(gold, reply) == held


@pytest.mark.parametrize("gold", ["18", "-18", "180", "1800", "1"])
@pytest.mark.parametrize(
    "reply",
    [
        "18",
        "It is 1,800.",
        "1.8e1",
        "18k",
        "1 800",
        "36/2",
        "eighteen hundred",
        "18 hundred",
        "1.8 thousand",
        "50 %",
        "2^4",
        "none",
        "",
        "１８",
        "1",
        "81",
        "The answer is 17",
        "-18.0",
        "18e2",
        "0018",
        "1{,}800",
        "١٨",
    ],
)
def test_what_is_called_absent_without_reading_is_absent(gold: str, reply: str) -> None:
    if numerals.absent(gold, reply):
        assert not extraction.right("number", gold, reply) and not extraction.ends_with_number(
            gold, reply
        )


def test_a_reply_without_the_gold_numbers_digits_is_passed_over_unread() -> None:
    assert numerals.absent("18", "The answer is 17") and numerals.absent("-18", "")
    assert (
        not numerals.absent("18", "eighteen hundred")
        and not numerals.absent("18", "36/2")
        and not numerals.absent("18.5", "17")
    )
