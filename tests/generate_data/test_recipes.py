"""A teacher's row is kept only where its answer is shown to be right; questions that it makes up
are new; the second run asks nothing.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stages.common import llm, questions
from stages.common.errors import PawlError
from stages.common.files import read_json, read_jsonl
from stages.common.schema import LLM, Data, Source, validate
from stages.common.schema.data import Teacher as TeacherParams
from stages.generate_data import __main__ as stage
from stages.generate_data import hub, sources
from stages.generate_data.recipes import divided, number_of
from tests.fake_hub import COMMIT, StartHub
from tests.fake_server import FakeServer
from tests.generate_data.test_generate_data import HELD_OUT, SUMS, local, trained, words_in
from tests.generate_data.test_generate_data import root as root


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_PAUSE_S", 0.01)


def asked(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def total(body: dict[str, Any]) -> str:
    """A teacher that adds up, with reasoning."""
    a, sign, b = re.search(r"(\d+) ([-+]) (\d+)", asked(body)).groups()  # type: ignore[union-attr]
    return (
        "I count.\nThen I check.\n**Answer:"
        f" {int(a) + int(b) if sign == '+' else int(a) - int(b)}**"
    )


def make(
    root: Path,
    server: FakeServer | None,
    *,
    limits: dict[str, Any] | None = None,
    teacher: dict[str, Any] | None = None,
    **given: Source,
) -> Any:
    strong = LLM(
        base_url=server.url if server else "",
        model="fake",
        concurrency=8,
        temperature=0.7,
        timeout_s=2,
        price_in=1.0,
        price_out=2.0,
    )
    settings = {"max_rows": 0, "ngram": 13, "max_contamination": 0.5, "max_bad_fraction": 0.2} | (
        limits or {}
    )
    data = Data(
        name="d",
        seed=3,
        sources=given,
        teacher=TeacherParams(strong=strong, **(teacher or {})),
        **settings,
    )
    return stage.make(data, 200, words_in, root, root).plain()


def from_procedural(**more: Any) -> Source:
    return Source(**{**vars(SUMS), "count": 20, "recipe": "answer", **more})


def test_a_procedural_row_is_kept_where_the_tasks_own_scorer_agrees(root: Path) -> None:
    def half_wrong(body: dict[str, Any]) -> str:
        return total(body) if body["seed"] == 4 else "I guess.\nAnswer: 1000"

    with FakeServer(half_wrong) as server:
        report = make(root, server, sums=from_procedural(candidates=2))
        assert report["rows"] == 20
        assert report["teacher"]["strong"]["requests"] == 2 * report["sources"]["sums"]["read"]
        for messages in trained(root):
            reasoning, answer = messages[-1]["content"].rsplit("\n\n", 1)
            assert reasoning == "I count.\nThen I check."
            assert eval(messages[0]["content"].split(":")[1].strip(" =")) == int(answer)  # noqa: S307 - our own digits


def test_a_teacher_that_is_always_wrong_is_stopped_early_with_one_of_its_answers(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = {**SUMS.settings, "max_digits": 4}
    with (
        FakeServer(lambda body: "I guess.\nAnswer: 123456") as server,
        pytest.raises(PawlError, match="88 rows in a row") as caught,
    ):
        make(root, server, sums=from_procedural(count=500, settings=wide))
    assert server.requests <= 88 + 4 * 8, "what was in flight ahead, and no more"
    assert (
        "none of 1 candidates is right" in caught.value.what
        and "reply: I guess. Answer: 123456" in caught.value.what
    )
    assert (
        "asked: " in caught.value.what
        and "right: " in caught.value.what
        and "stronger model" in caught.value.fix
    )
    assert "pilot: 0 of the first 20 rows are usable" in capsys.readouterr().out


def test_the_pilot_is_told_with_yield_and_price_before_the_rest_is_asked(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def half(body: dict[str, Any]) -> str:
        told.append(capsys.readouterr().out)
        number = int(re.search(r"What is (\d+)", asked(body)).group(1))  # type: ignore[union-attr]
        return f"Answer: {2 * number if number % 2 else 0}"

    lines = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 101)]
    with FakeServer(half) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer"))
    assert report["rows"] == 50 and server.requests == 100
    assert "pilot" in "".join(told) and "pilot" not in "".join(told[:20])
    [line] = [line for line in "".join(told).splitlines() if "pilot" in line]
    assert re.search(
        r"mine: pilot: 10 of the first 20 rows are usable, \S+ and \d+ tokens a row asked for", line
    )


def test_a_second_run_and_a_changed_filter_ask_nothing_and_the_report_does_not_tell(
    root: Path,
) -> None:
    lines = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(30)]
    source = local(root, lines, recipe="answer")
    with FakeServer(total) as server:
        first = make(root, server, mine=source)
        files = {path.name: path.read_bytes() for path in (root / "data/train").iterdir()}
        assert server.requests == 30
        assert make(root, server, mine=source) == first
        assert {path.name: path.read_bytes() for path in (root / "data/train").iterdir()} == files
        changed = make(
            root,
            server,
            limits={"filters": ["near_duplicates", "decontamination"], "near_duplicates": 0.9},
            mine=source,
        )
        assert server.requests == 30
    assert changed["rows"] <= first["rows"] == 30
    assert first["teacher"]["strong"] == {
        "model": "fake",
        "requests": 30,
        **{k: first["teacher"]["strong"][k] for k in ("prompt_tokens", "output_tokens", "cost")},
    }
    usage = first["teacher"]["strong"]
    assert usage["requests"] == 30
    assert usage["cost"] == pytest.approx(
        (usage["prompt_tokens"] + 2 * usage["output_tokens"]) / 1e6
    )
    assert make(root, None, mine=source) == first, "and no server is needed"


@pytest.mark.slow
def test_faults_of_the_server_change_nothing(root: Path, tmp_path: Path) -> None:
    lines = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]
    faults = ["429", "500", "hang", "cut", "shape", "html"]
    with FakeServer(
        total, lambda number, body: faults[number // 5 % 6] if number % 5 == 0 else "", hang_s=2.5
    ) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer"))
    assert report["rows"] == 40 and server.requests > 40


def test_a_right_number_verifies_and_a_wrong_one_is_noted_without_its_row(root: Path) -> None:
    lines = [
        {"question": f"What is {n} + {n}?", "answer": f"${2 * n if n != 7 else 99}.00"}
        for n in range(10)
    ]
    with FakeServer(total) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer"))
    assert {k: v for k, v in report["sources"]["mine"].items() if v} == {
        "read": 10,
        "unverified": 1,
        "kept": 9,
    }
    note = next(read_jsonl(root / "data/train/rejected.jsonl"))
    assert (note["filter"], note["reason"]) == ("unverified", "none of 1 candidates is right")


def test_the_majority_of_candidates_decides_where_no_program_can(root: Path) -> None:
    def votes(body: dict[str, Any]) -> str:
        if body["seed"] % 3 == 0:
            return "So.\nAnswer: Lyon"
        return (
            f"So.\nAnswer: city {body['seed']}" if "split" in asked(body) else "So.\nAnswer: PARIS"
        )

    lines = [{"question": "Which city?"}, {"question": "Which split city?"}]
    with FakeServer(votes) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer", candidates=3))
    assert [messages[-1]["content"] for messages in trained(root)] == ["So.\n\nPARIS"]
    assert report["sources"]["mine"]["unverified"] == 1


def test_no_benchmark_item_is_shown_to_the_teacher(root: Path) -> None:
    lines = [{"question": f"What is {n} + {n}?"} for n in range(6)] + [{"question": HELD_OUT[0]}]
    with FakeServer(total) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer"))
        assert "secret" not in json.dumps(server.bodies)
    assert report["sources"]["mine"]["contaminated"] == 1
    assert report["contamination"]["fraction"] == pytest.approx(1 / 7)


def test_rows_are_held_to_the_limit_against_all_that_were_searched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK", 4)
    lines = [{"question": f"What is {n} + {n}?"} for n in range(18)] + [
        {"question": HELD_OUT[n]} for n in range(2)
    ]
    with FakeServer(total) as server:
        report = make(
            root,
            server,
            mine=local(root, lines, recipe="answer"),
            limits={"max_contamination": 0.1},
        )
    assert report["contamination"]["fraction"] == pytest.approx(2 / 20)


@pytest.mark.parametrize("text", ["a \ud800\nAnswer: 2", "a\0\nAnswer: 2"])
def test_a_reply_that_no_file_can_hold_costs_its_row_alone(text: str, root: Path) -> None:
    lines = [{"question": f"What is {n} + {n}?"} for n in range(4)]
    with FakeServer(lambda body: text if "1 + 1" in asked(body) else total(body)) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer"))
    assert {k: v for k, v in report["sources"]["mine"].items() if v} == {
        "read": 4,
        "unverified": 1,
        "kept": 3,
    }


@pytest.mark.parametrize("recipe", ["similar", "documents"])
def test_a_made_up_question_that_no_file_can_hold_is_none(recipe: str, root: Path) -> None:
    odd = True

    def invent(body: dict[str, Any]) -> str:
        nonlocal odd
        odd = not odd
        mark = "\ud800 \0" if odd else "2"
        if "new problems" in asked(body):
            return f"1. What is {mark} and {body['seed']} in the box {body['seed']} of Tom?"
        return (
            "Well.\nAnswer: 9"
            if "Problem" in asked(body)
            else f"Q: When does ferry {mark} leave?\nA: At {mark}"
        )

    (root / "texts").mkdir()
    (root / "texts/a.md").write_text("The ferry leaves at noon. " * 120)
    documents = Source(kind="documents", path=str(root / "texts"), recipe="documents", count=3)
    mine = (
        documents
        if recipe == "documents"
        else local(root, [{"question": "What is 1 + 1?"}], recipe="similar", count=2)
    )
    with FakeServer(invent) as server:
        assert make(root, server, mine=mine, limits={"max_bad_fraction": 0.9})["rows"] == (
            1 if recipe == "documents" else 2
        )


def test_a_teacher_is_asked_for_no_more_rows_than_are_wanted(root: Path) -> None:
    lines = [{"question": f"What is {n} + {n}?"} for n in range(200)]
    with FakeServer(total) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer", count=10))
        assert report["rows"] == 10 and server.requests < 60


def test_a_weak_solution_is_shown_and_written_better(root: Path) -> None:
    lines = [{"question": "What is 2 + 3?", "reasoning": "obvious", "answer": "5"}]
    with FakeServer(total) as server:
        make(root, server, limits={"think_tags": True}, mine=local(root, lines, recipe="rewrite"))
        assert "Weak solution:\nobvious\n5" in asked(server.bodies[0])
    assert trained(root)[0][-1]["content"] == "<think>\nI count.\nThen I check.\n</think>\n\n5"


def test_new_questions_are_unlike_each_other_and_answered(root: Path) -> None:
    def invent(body: dict[str, Any]) -> str:
        if "new problems" not in asked(body):
            return total(body)
        n = body["seed"] - 3
        fruit = [
            "apples",
            "pears",
            "plums",
            "figs",
            "nuts",
            "dates",
            "limes",
            "kiwis",
            "melons",
            "grapes",
        ][n % 10]
        return (
            f"Here:\n1. Tom has {n} + {n} {fruit} in box {n}\n2. Tom has {n} + {n} {fruit} in box"
            f" {n}!\n3. What is 1 + 1?"
        )

    examples = local(
        root,
        [{"question": "What is 1 + 1?"}, {"question": "What is 2 + 2?"}],
        recipe="similar",
        count=6,
    )
    with FakeServer(invent) as server:
        report = make(root, server, mine=examples)
        again = server.requests
        assert make(root, server, mine=examples) == report and server.requests == again
    asked_for = [messages[0]["content"] for messages in trained(root)]
    assert len(asked_for) == len(set(asked_for)) == 6
    assert "What is 1 + 1?" not in asked_for, "an example is not new"


def test_documents_become_questions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "texts").mkdir()
    (root / "texts/a.md").write_text(
        "# Ferries\n\nThe ferry leaves at noon.\n\n" + "More words. " * 500
    )
    (root / "texts/b.html").write_text(
        "<html><body><p>The harbour is closed on Sundays because nobody works there"
        " then.</p></body></html>"
    )
    monkeypatch.setattr(sources, "ROOT", root)

    def quiz(body: dict[str, Any]) -> str:
        n = len(asked(body))
        return (
            f"Q: When does ferry {n} leave harbour {n}?\nA: At noon.\n\nQ: When does ferry {n}"
            f" leave harbour {n} ?\nA: twice"
        )

    with FakeServer(quiz) as server:
        source = Source(kind="documents", path="texts", recipe="documents", count=9)
        report = make(root, server, mine=source)
        assert any("The ferry leaves at noon." in asked(body) for body in server.bodies)
        assert any("closed on Sundays" in asked(body) for body in server.bodies)
    assert report["rows"] == server.requests == 4, (
        "one of the two questions of each passage repeats the other"
    )


def test_no_passage_with_a_benchmark_item_is_shown_to_the_teacher(root: Path) -> None:
    (root / "texts").mkdir()
    for number in range(3):
        (root / f"texts/{number}.txt").write_text(
            f"Ferry {number} leaves at noon." + f" Quiz: {HELD_OUT[1]}" * (number == 1)
        )
    source = Source(kind="documents", path=str(root / "texts"), recipe="documents", count=9)
    with FakeServer(lambda body: "Q: When does it leave?\nA: At noon") as server:
        report = make(root, server, mine=source)
        assert "secret" not in json.dumps(server.bodies)
    assert server.requests == 2
    assert {k: v for k, v in report["sources"]["mine"].items() if v} == {
        "read": 2,
        "contaminated": 1,
        "kept": 1,
    }


def test_a_budget_that_ends_keeps_what_was_paid_for(root: Path) -> None:
    source = local(root, [{"question": f"What is {n} + {n}?"} for n in range(60)], recipe="answer")
    with FakeServer(total) as server:
        with pytest.raises(PawlError, match="budget for one run is used up"):
            make(root, server, teacher={"max_tokens": 1500}, mine=source)
        paid = server.requests
        assert 0 < paid < 60
        assert not (root / "data/train").exists()
        make(root, server, mine=source)
        assert server.requests == 60


def test_what_the_server_refuses_is_a_noted_row(root: Path) -> None:
    lines = [{"question": f"What is {n} + {n}?"} for n in range(20)]
    with FakeServer(
        total,
        lambda number, body: "400" if "7 + 7" in asked(body) and "17" not in asked(body) else "",
    ) as server:
        report = make(root, server, mine=local(root, lines, recipe="answer"))
    assert report["sources"]["mine"]["refused"] == 1 and report["rows"] == 19


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a\nb\nAnswer: 4", ("a\nb", "4")),
        ("<think>hm</think>a\n\n**Final answer:** 4", ("hm\n\na", "4")),
        ("Answer: 3\nno, wait\nThe answer is 4", ("Answer: 3\nno, wait", "4")),
        ("four", None),
        ("Answer:", None),
    ],
)
def test_a_reply_is_divided_at_its_last_answer(text: str, parts: tuple[str, str] | None) -> None:
    assert divided(text) == parts


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4),
        ("$1,234.50", 1234.5),
        ("-3 km", -3),
        ("1e3", 1000),
        ("3 or 4", None),
        ("none", None),
        ("4.0", 4),
    ],
)
def test_a_number_is_read_whatever_its_form(text: str, number: float | None) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "file", "path": "data/local/x.jsonl", "recipe": "answer"}, "needs a teacher"),
        ({"kind": "documents", "path": "data/local/x", "recipe": "answer"}, "recipe is 'answer'"),
        ({"kind": "file", "path": "data/local/x", "recipe": "similar"}, "no end"),
        ({"kind": "file", "path": "data/local/x", "verify": "majority"}, "too few for a majority"),
        ({"kind": "hub", "repo": "a/b", "revision": "main"}, "no commit"),
    ],
)
def test_settings_that_cannot_work_are_refused(source: dict[str, Any], words: str) -> None:
    data = Data(
        name="d",
        seed=1,
        sources={"s": Source(**source)},
        max_rows=0,
        ngram=13,
        max_contamination=0.1,
        max_bad_fraction=0.1,
    )
    with pytest.raises(PawlError, match=words):
        validate(data, "data")


def test_the_hub_is_read_from_its_cache_and_its_absence_names_the_command(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    source = Source(kind="hub", repo="org/sums", revision=commit)
    with pytest.raises(PawlError, match="its cache has no such dataset") as error:
        make(root, None, mine=source)
    assert f"hf download --repo-type dataset org/sums --revision {commit}" in error.value.fix
    folder = root / "hub/datasets--org--sums/snapshots" / commit / "data"
    folder.mkdir(parents=True)
    (folder / "train-00000.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    (folder / "test-00000.jsonl").write_text('{"question": "t", "answer": "a"}\n')
    assert make(root, None, mine=source)["rows"] == 1
    assert trained(root)[0][0]["content"] == "q"


def test_of_a_data_set_of_the_hub_the_files_of_the_split_alone_are_fetched(
    root: Path, start_hub: StartHub
) -> None:
    files = {
        "data/train-00000-of-00002.jsonl": b'{"question": "q", "answer": "a"}\n',
        "README.md": b"",
    }
    files |= {
        "data/train-00001-of-00002.jsonl": b'{"question": "r", "answer": "b"}\n',
        "data/test-00000-of-00001.jsonl": b"broken",
    }
    hub = start_hub({"org/sums": files}, kind="dataset")
    assert make(root, None, mine=Source(kind="hub", repo="org/sums", revision=COMMIT))["rows"] == 2
    assert sorted(hub.files) == [
        "data/train-00000-of-00002.jsonl",
        "data/train-00001-of-00002.jsonl",
    ]


def test_procedural_difficulty_is_known() -> None:
    first = next(questions.stream(SUMS, 1, "x"))
    assert first.difficulty and questions.scorer(SUMS)(first.answer, first) == 1.0
    assert questions.scorer(SUMS)("no", first) < 1


def test_the_report_is_strict_json(root: Path) -> None:
    with FakeServer(total) as server:
        make(root, server, mine=local(root, [{"question": "What is 1 + 1?"}], recipe="answer"))
    assert read_json(root / "reports/generate_data.json")["teacher"]["strong"]["requests"] == 1
    assert "The strong teacher, fake, gave 1 replies" in (root / "reports/data_card.md").read_text()


def test_a_limit_in_money_without_a_price_is_refused() -> None:
    teacher = TeacherParams(
        strong=LLM(base_url="http://127.0.0.1:1/v1", model="m", temperature=0.7), max_cost=5.0
    )
    data = Data(
        name="d",
        seed=1,
        sources={"s": from_procedural()},
        teacher=teacher,
        max_rows=0,
        ngram=13,
        max_contamination=0.1,
        max_bad_fraction=0,
    )
    with pytest.raises(PawlError, match="has no price"):
        validate(data, "data")
    teacher.strong.price_out = 1.0
    validate(data, "data")


SHARDED = [
    "data/train_sft-00000-of-00002.parquet",
    "data/train_sft-00001-of-00002.parquet",
    "data/train_gen-00000-of-00001.parquet",
    "data/test_sft-00000-of-00001-0123456789abcdef.parquet",
]


@pytest.mark.parametrize(
    ("names", "subset", "split", "chosen"),
    [
        (SHARDED, "", "train_sft", SHARDED[:2]),
        (SHARDED, "", "test_sft", SHARDED[3:]),
        (
            ["train.jsonl", "train_long.jsonl", "constrained.jsonl", "test.jsonl"],
            "",
            "train",
            ["train.jsonl"],
        ),
        (["constrained.jsonl", "untrained.csv", "retrain.json"], "", "train", []),
        (
            ["sums_train.jsonl", "sums-test.jsonl", "train.v2/test.jsonl"],
            "",
            "train",
            ["sums_train.jsonl"],
        ),
        (
            ["main/train-0.parquet", "domain/train-0.parquet", "train.csv"],
            "main",
            "train",
            ["main/train-0.parquet"],
        ),
        (
            ["2023-01.csv", "2023-02.csv", "2023-01-00000-of-00001.csv"],
            "",
            "2023-01",
            ["2023-01.csv", "2023-01-00000-of-00001.csv"],
        ),
        (["a/latest.csv", "a/test.csv"], "", "test", ["a/test.csv"]),
        (["a.b/test.csv", "axb/test.csv"], "a.b", "test", ["a.b/test.csv"]),
        (
            ["algebra/train-0.parquet", "intermediate_algebra/train-0.parquet"],
            "algebra",
            "train",
            ["algebra/train-0.parquet"],
        ),
        (["algebra/train-0.parquet", "intermediate_algebra/test-0.parquet"], "algebra", "test", []),
        (["algebra_train.csv", "other/train.csv"], "algebra", "train", ["algebra_train.csv"]),
        (
            ["en.train.jsonl", "en.test.jsonl", "train.md.d/en.jsonl"],
            "",
            "train",
            ["en.train.jsonl"],
        ),
    ],
)
def test_a_split_is_a_word_of_a_file_s_name_and_no_part_of_one(
    names: list[str], subset: str, split: str, chosen: list[str]
) -> None:
    assert hub.of_split(names, subset, split) == chosen


def test_questions_that_the_teacher_refuses_count_in_a_procedural_source_too(root: Path) -> None:
    with (
        FakeServer(total, lambda number, body: "400" if number % 2 else "") as server,
        pytest.raises(PawlError, match="rows cannot be used"),
    ):
        make(root, server, mine=from_procedural())
