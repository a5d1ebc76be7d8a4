"""A benchmark item in a training row is found; what a benchmark says around every item is not taken for one."""

import random

import pytest

from stages.generate_data.overlap import Hit, Index, Item, boilerplate_limit, positive_control, words

INSTRUCTION = "Please read the following list of words with care and give them back in the reverse order, one after the other:"
VOCABULARY = [f"w{number}x" for number in range(5000)]


def lists(n: int, split: str = "val", seed: int = 0) -> list[Item]:
    """Items of 22 words of instruction and four of content."""
    rng = random.Random(f"{split}{seed}")
    drawn = [rng.sample(VOCABULARY, 4) for _ in range(n)]
    return [Item("lists", split, f"{INSTRUCTION} {', '.join(w)}", ", ".join(reversed(w))) for w in drawn]


SUM = Item("sums", "test", "State the final answer to the following arithmetic problem: 4 - 1 =", "3")


def test_the_question_itself_is_found_whatever_its_form() -> None:
    index = Index([SUM], 13)
    assert index.find(["  state the FINAL answer to the following arithmetic problem:\n4 - 1 ="], "3") == [Hit("sums", "test", "exact")]


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
    index = Index([Item("qa", "val", "Who wrote it?", "one two three four five six seven eight nine ten eleven")], 13)
    assert index.find(["tell me: who wrote it? one two three four five six seven eight nine ten eleven"], "yes")


def test_an_instruction_that_every_item_has_is_no_evidence() -> None:
    items = lists(200) + lists(200, "test")
    index = Index(items, 13)
    fresh = lists(500, "train")
    assert not [item for item in fresh if index.find([item.question], item.answer)]
    assert not index.find([INSTRUCTION], INSTRUCTION)


def test_an_item_among_boilerplate_is_still_found() -> None:
    items = lists(200)
    index = Index(items, 13)
    missed = [item for item in items if not index.find([f"Look: {item.question}. What do you say?"], "nothing")]
    assert not missed


def test_the_first_word_of_an_item_after_the_instruction_is_no_evidence() -> None:
    items = lists(200)
    first = items[0].question[len(INSTRUCTION) :].split(",")[0]
    assert not Index(items, 13).find([f"{INSTRUCTION}{first}, other, things, here"], "here, things, other")


def test_a_passage_shared_by_few_items_counts() -> None:
    passage = " ".join(VOCABULARY[:40])
    items = [Item("reading", "val", f"{passage} Question {number}?", "x") for number in range(5)] + lists(200)
    items += [Item("reading", "val", " ".join(random.Random(number).sample(VOCABULARY, 40)), "y") for number in range(195)]
    assert Index(items, 13).find([f"An essay. {passage}"], "Nice.") == [Hit("reading", "val", "ngram")]


@pytest.mark.parametrize(("items", "limit"), [(1, 1), (39, 1), (40, 2), (200, 10), (100_000, 10)])
def test_the_limit_of_boilerplate_is_low_and_bounded(items: int, limit: int) -> None:
    assert boilerplate_limit(items) == limit


def test_short_items_are_found_by_their_question_alone() -> None:
    index = Index([Item("short", "val", "How are you?", "Fine")], 13)
    assert index.find(["how are you?"], "x")
    assert not index.find(["I say how are you? every day"], "x")


def test_chinese_is_cut_into_characters() -> None:
    text = "\u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427"
    assert len(words(text)) == len(text)
    assert Index([Item("zh", "val", text, "\u597d")], 13).find([f"\u4ed6\u8bf4{text}\u3002"], "x")


def test_the_control_finds_what_it_plants() -> None:
    items = [
        *lists(200),
        Item("short", "val", "How are you?", "Fine"),
        *[Item("sums", "val", SUM.question.replace("4", str(n)), "1") for n in range(50)],
    ]
    results = positive_control(Index(items, 13), items)
    assert results["lists"] == {"exact": True, "embedded": True, "wrapped": True, "boilerplate": True}
    assert results["sums"] == {"exact": True, "embedded": True, "wrapped": None, "boilerplate": None}
    assert results["short"] == {"exact": True, "embedded": None, "wrapped": None, "boilerplate": None}


def test_the_control_fails_where_the_search_is_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    items = lists(200)
    index = Index(items, 13)
    monkeypatch.setattr(index, "_grams", {})
    assert positive_control(index, items)["lists"] == {"exact": True, "embedded": False, "wrapped": False, "boilerplate": True}
    monkeypatch.setattr(index, "_questions", {})
    assert positive_control(index, items)["lists"]["exact"] is False
