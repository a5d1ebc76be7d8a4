"""An item that its own prompt shows with the answer measures nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stages.build_benchmark.examples import shown

LONG = "A baker in a very small town sells nine loaves a day; how many in a week?"


def config(template: str, *columns: str) -> dict[str, Any]:
    infer = {"prompt_template": {"template": {"round": [{"role": "HUMAN", "prompt": template}]}}}
    return {"reader_cfg": {"input_columns": list(columns)}, "infer_cfg": infer}


def among(
    template: str,
    rows: list[dict[str, str]],
    train: list[dict[str, str]] | None = None,
    shots: list[list[int]] | None = None,
) -> Any:
    from datasets import Dataset

    dataset = SimpleNamespace(test=Dataset.from_list(rows), train=Dataset.from_list(train or rows))
    return shown(config(template, *rows[0]), dataset, shots or [[] for _ in rows])


def test_an_example_of_another_row_is_none_of_ones_own() -> None:
    rows = [{"question": f"Which {n}?", "A": "red", "B": f"blue {n}"} for n in range(4)]
    assert among("{question}", rows, shots=[[0, 2]] * 4) == {0, 2}
    assert among("{question}", rows, shots=[[1], [0], [3], [3]]) == {3}, (
        "what another item's prompt shows does not answer this one"
    )


@pytest.mark.parametrize(
    ("template", "question", "found"),
    [
        (f"Question: {LONG.upper()}\nAnswer: 63\n\nQuestion: {{question}}\nAnswer:", LONG, True),
        (f"Q: {LONG}\nA: 63\nQ: {{question}}", f"{LONG} Now?", False),
        ("Q: True and not False is\nA: True\nQ: {question}", "True and not False is", True),
        ("Q: What is 14 + 17\nA: 31\nQ: {question}", "What is 4 + 17", False),
        ("Q: What is 4 + 17\nA: 21\nQ: {question}", "What is 4 - 17", False),
        ("Reverse the word cat carefully.\nQ: dog\nA: god\nQ: {question}", "cat", False),
        ("Reverse it.\nQ: dog\nA: god\nQ: {question}", "dog", True),
    ],
)
def test_a_question_that_the_template_itself_says_is_found(
    template: str, question: str, found: bool
) -> None:
    assert among(template, [{"question": question}]) == ({0} if found else set())


def test_a_long_question_is_told_whatever_its_choices() -> None:
    train = [{"question": LONG, "A": "63", "B": "9"}]
    assert among("{question}", [{"question": LONG, "A": "9", "B": "63"}], train, [[0]]) == {0}
    assert (
        among(
            "{question}",
            [{"question": "Why?", "A": "9", "B": "63"}],
            [{"question": "Why?", "A": "63", "B": "9"}],
            [[0]],
        )
        == set()
    )
