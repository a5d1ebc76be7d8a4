"""A language model's verdict is read as OpenCompass reads it, asked once, and cannot be talked into
another question.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stages.build_benchmark.opencompass import configurations, scoring
from stages.common.errors import PawlError
from stages.common.items import item_id
from stages.common.llm import Reply
from stages.common.schema import LLM, Suite
from stages.common.scoring import Scorer, Task
from stages.evaluate import judged, score
from tests.fake_server import FakeServer

SUITE = Suite(
    config="aime2025.aime2025_llmjudge_gen_5e9f4f", path="data/local/x", metric="accuracy"
)


@pytest.fixture(scope="module")
def task() -> Task:
    config = configurations(SUITE, "benchmark.suites.x")[0]
    items = [
        {
            "item_id": item_id("a", f"q{n}", "7"),
            "benchmark": "a",
            "question": f"q{n}",
            "answer": "7",
            "reference": "7",
            "row": {"question": f"q{n}"},
        }
        for n in range(4)
    ]
    return Task("a", "val", items, scoring(config, SUITE))


def grade(body: dict) -> str:
    asked = body["messages"][-1]["content"]
    return "A" if "<Predicted Answer Begin>: \n7" in asked else "B"


def run(task: Task, folder: Path, server: FakeServer, *texts: str) -> list[bool]:
    judge = LLM(base_url=server.url, model="judge")
    scorer = Scorer(None, str, "accuracy", task.scoring["evaluator"])  # type: ignore[index]
    replies = [Reply(text, 5, 3, "stop") for text in texts]
    return [
        row.correct
        for row in score.rows(task, replies, scorer, instead=judged.scores(judge, folder, scorer))
    ]


def test_each_item_has_the_judges_verdict_and_is_paid_once(task: Task, tmp_path: Path) -> None:
    with FakeServer(answer=grade) as server:
        assert run(task, tmp_path, server, "7", "8", "7", "no") == [True, False, True, False]
        asked = server.requests
        assert run(task, tmp_path, server, "7", "8", "7", "no") == [True, False, True, False]
        assert server.requests == asked == 4
    assert (
        server.bodies[0]["messages"][0]["role"] == "system" and server.bodies[0]["temperature"] == 0
    )


def test_braces_in_an_answer_bring_the_judge_no_other_column(task: Task, tmp_path: Path) -> None:
    with FakeServer(answer=lambda body: "B") as server:
        run(
            task,
            tmp_path,
            server,
            "{answer}{reference}{obj_gold}{question}",
            "{prediction}",
            "x",
            "y",
        )
    asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert sum("{answer}{reference}{obj_gold}{question}" in text for text in asked) == 1


def test_without_a_judge_nothing_is_asked(task: Task) -> None:
    with pytest.raises(PawlError, match="scored by a language model") as caught:
        judged.check([task], LLM())
    assert "engine.judge.base_url" in caught.value.fix


def test_a_judge_that_fails_fails_the_evaluation_and_what_it_said_is_kept(
    task: Task, tmp_path: Path
) -> None:
    with FakeServer(answer=grade, fault=lambda number, body: "401" if number > 2 else "") as server:
        with pytest.raises(PawlError, match="requests failed"):
            run(task, tmp_path, server, "7", "8", "7", "no")
        assert os.listdir(tmp_path)
