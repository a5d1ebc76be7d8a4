"""The stage writes everything or nothing, and the same twice."""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.common import llm, scoring
from stages.common.errors import PawlError
from stages.common.files import sha256_file, sha256_text, write_json, write_jsonl
from stages.common.items import item_id
from stages.common.reports.evaluation import Answer, read_rows
from stages.common.schema import LLM, Engine, Evaluate
from stages.evaluate import __main__ as stage
from stages.evaluate import benchmark, infer, results
from stages.evaluate.serve.engine import Endpoint
from stages.evaluate.serve.server import ServerDiedError
from tests.evaluate.test_score import AccwithDetailsEvaluator
from tests.fake_server import FakeServer

ROWS = {"val": 12, "test": 7}


def make_items(root: Path) -> None:
    for split, count in ROWS.items():
        for name in ("loud", "long"):
            questions = [f"{split} {name} {'word ' * (n % 4)}{n}" for n in range(count)]
            rows = [
                {
                    "benchmark": name,
                    "question": text,
                    "answer": text.upper() if n % 2 else "no",
                    "category": "",
                }
                for n, text in enumerate(questions)
            ]
            write_jsonl(
                root / f"data/benchmark/{split}/{name}.jsonl",
                [{"item_id": item_id(name, row["question"], row["answer"]), **row} for row in rows],
            )


class Run:
    """The stage in a folder of its own, against a fake server, without OpenCompass."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch
        make_items(root)
        for module in (stage, benchmark, results):
            monkeypatch.setattr(module, "ROOT", root)
        monkeypatch.setattr("stages.common.process.ROOT", root)
        monkeypatch.setattr(llm, "_PAUSE_S", 0.01)
        monkeypatch.setattr(
            stage, "base_model", lambda: ({"name": "Fake", "weights_sha256": "abc"}, root)
        )
        monkeypatch.setattr(scoring, "evaluator", lambda spec: AccwithDetailsEvaluator())
        (root / ".pawl").mkdir()

    def __call__(self, server: FakeServer, *splits: str, **changes: object) -> None:
        self.call(server, *(f"--split={split}" for split in splits or ("val", "test")), **changes)

    def call(self, server: FakeServer, *arguments: str, **changes: object) -> None:
        evaluate = {"temperature": 0.0, "top_p": 1.0, "seed": 0, "max_output_tokens": 32}
        evaluate |= {"concurrency": 4, "request_timeout_s": 1.0, "retries": 2}
        engine = Engine(
            name="external",
            kind="external",
            dtype="auto",
            max_model_len=64,
            startup_timeout_s=5.0,
            base_url=server.url,
        )
        params = SimpleNamespace(
            engine=engine,
            evaluate=Evaluate(**{"name": "e", **evaluate, **changes}),
            benchmark=SimpleNamespace(
                evaluator="x.Y", postprocessor="strip", allow_code_execution=False
            ),
            launcher=SimpleNamespace(timeout_h=1.0),
        )

        @contextmanager
        def load_params(*keys: str, untracked: list[str]) -> Iterator[SimpleNamespace]:
            yield params

        self.monkeypatch.setattr(stage, "load_params", load_params)
        self.monkeypatch.setattr("sys.argv", ["evaluate", "--base", *arguments])
        stage.main()

    def kept(self) -> int:
        """Replies of unfinished evaluations."""
        paths = (self.root / ".pawl/eval").glob("*.sqlite")
        return sum(
            sqlite3.connect(path).execute("SELECT count(*) FROM replies").fetchone()[0]
            for path in paths
        )

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted((self.root / "reports").rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def test_every_item_has_its_row_in_the_order_of_the_files(run: Run) -> None:
    with FakeServer() as server:
        run(server)
    assert list(run.files()) == [
        f"reports/baseline/{split}.{kind}"
        for split in ("test", "val")
        for kind in ("json", "jsonl")
    ]
    for split, count in ROWS.items():
        rows = read_rows(run.root / f"reports/baseline/{split}.jsonl", Answer)
        wanted = [row["item_id"] for task in benchmark.read([split]) for row in task.items]
        assert [row.item_id for row in rows] == wanted and len(rows) == 2 * count
        summary = json.loads((run.root / f"reports/baseline/{split}.json").read_text())
        assert summary["overall"]["accuracy"] == pytest.approx(
            sum(row.correct for row in rows) / len(rows)
        )
        assert (
            summary["split"] == split
            and summary["model"] == "Fake, base"
            and summary["fingerprint"]["temperature"] == 0.0
        )
        assert summary["rows_sha256"] == sha256_file(
            run.root / f"reports/baseline/{split}.jsonl"
        ), "or no verdict trusts these rows"
    assert (
        sum(row.correct for row in read_rows(run.root / "reports/baseline/val.jsonl", Answer)) == 12
    )


@pytest.mark.slow
def test_a_repeated_run_differs_in_nothing_but_its_runtime(run: Run) -> None:
    with FakeServer() as server:
        run(server)
        first = run.files()
        run(server, concurrency=1)
    for name, content in run.files().items():
        if name.endswith(".json"):
            before, after = json.loads(first[name]), json.loads(content)
            assert before.pop("runtime_s") >= 0 and after.pop("runtime_s") >= 0
            assert (
                before == after
                and b"127.0.0.1" not in content
                and str(run.root).encode() not in content
            )
        else:
            assert content == first[name]


def test_items_files_differ_where_the_items_differ(run: Run) -> None:
    with FakeServer() as server:
        run(server)
    hashes = {
        split: json.loads((run.root / f"reports/baseline/{split}.json").read_text())["items_sha256"]
        for split in ROWS
    }
    assert hashes["val"] != hashes["test"]


def test_faults_that_pass_change_nothing(run: Run) -> None:
    with FakeServer() as server:
        run(server)
    undisturbed = run.files()
    faults = ["429", "500", "cut", "html", "nothing", "no_choices"]
    with FakeServer(
        fault=lambda number, body: faults[number // 5 % 6] if number % 5 == 0 else ""
    ) as server:
        run(server, retries=6)
    rows = {name: content for name, content in run.files().items() if name.endswith("jsonl")}
    assert rows == {
        name: content for name, content in undisturbed.items() if name.endswith("jsonl")
    }


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "hang", "cut", "no_choices", "redirect"])
def test_one_request_that_stays_failed_leaves_no_file(run: Run, fault: str) -> None:
    def stubborn(number: int, body: dict[str, Any]) -> str:
        return fault if body["messages"][0]["content"] == "test long 0" else ""

    with (
        FakeServer(fault=stubborn, hang_s=1) as server,
        pytest.raises(PawlError, match="1 of 38 requests failed"),
    ):
        run(server, retries=1, request_timeout_s=0.5)
    assert run.files() == {}


class AnythingIsRight(AccwithDetailsEvaluator):
    """As a multiple-choice evaluator is that takes nothing for the first choice."""

    def score(
        self, predictions: list[Any], references: list[Any], origin_prompt: list[Any]
    ) -> dict[str, Any]:
        return super().score(references, references, origin_prompt)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("null", "stop"), ("tool", "tool_calls"), ("refusal", "stop"), ("nothing", "stop")],
)
def test_an_item_without_an_answer_is_wrong_and_counted(run: Run, fault: str, reason: str) -> None:
    run.monkeypatch.setattr(scoring, "evaluator", lambda spec: AnythingIsRight())
    odd = ("val loud 1", "val long 2", "test long 0")

    def silent(number: int, body: dict[str, Any]) -> str:
        return (
            fault
            if " ".join(body["messages"][0]["content"].split()).replace("word ", "") in odd
            else ""
        )

    with FakeServer(fault=silent) as server:
        run(server, retries=1)
    for split, count in (("val", 2), ("test", 1)):
        summary = json.loads((run.root / f"reports/baseline/{split}.json").read_text())
        rows = read_rows(run.root / f"reports/baseline/{split}.jsonl", Answer)
        assert summary["unanswered"] == {"n": count, "finish_reasons": {reason: count}}
        assert [row.prediction for row in rows if not row.correct] == [""] * count and len(
            rows
        ) == summary["overall"]["n"]
        assert summary["overall"]["accuracy"] == pytest.approx(1 - count / len(rows))
    assert server.requests == 38 + (3 if fault == "nothing" else 0)


def test_usual_replies_leave_no_trace_in_a_summary(run: Run) -> None:
    with FakeServer() as server:
        run(server, "val")
    summary = json.loads((run.root / "reports/baseline/val.json").read_text())
    odd = {"unanswered", "answered_as", "estimated_token_counts", "not_sent", "engine_judge"}
    assert not odd & (summary.keys() | summary["fingerprint"].keys())


def test_what_is_odd_about_replies_is_told_also_after_a_run_that_was_stopped(run: Run) -> None:
    broken = True

    def odd(number: int, body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        if text == "val long 0":
            return "500" if broken else ""
        return {
            "val loud word 1": "other_model",
            "val loud word word 2": "no_usage",
            "val long word 1": "tool",
        }.get(text, "")

    with FakeServer(fault=odd) as server:
        server.refuses = {"temperature": "temperature is not supported by this model"}
        with pytest.raises(PawlError) as caught:
            run(server, "val", retries=0, concurrency=1)
        assert "18 of 24 answers are kept, and the next run asks only the rest" in caught.value.fix
        asked, broken = server.requests, False
        run(server, "val", retries=0)
        assert server.requests == asked + 6
    summary = json.loads((run.root / "reports/baseline/val.json").read_text())
    assert summary["unanswered"]["n"] == summary["estimated_token_counts"] == 1 and summary[
        "answered_as"
    ] == {"somebody-else": 1}
    assert summary["not_sent"] == summary["fingerprint"]["not_sent"] == ["temperature"]


def test_a_missing_adapter_is_an_error_before_anything_is_asked(run: Run) -> None:
    run.monkeypatch.setattr("sys.argv", ["evaluate", "--split", "val"])
    with pytest.raises(PawlError, match="no fine-tuned model"):
        stage.tuned_dir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:0], "there are no items"),
        (lambda rows: [*rows, rows[0]], "occurs twice"),
        (lambda rows: [{**rows[0], "question": "  "}], "question is empty"),
        (lambda rows: [{**rows[0], "answer": "another"}], "not the one that its id was made of"),
        (lambda rows: [{**rows[0], "answer": 4}], "no text in column answer"),
        (lambda rows: [{"item_id": "1"}], "no text in column benchmark, question, answer"),
    ],
)
def test_items_that_are_not_whole_are_refused_with_file_and_place(
    run: Run, change: Any, message: str
) -> None:
    path = run.root / "data/benchmark/val/loud.jsonl"
    write_jsonl(
        path, change(next(task.items for task in benchmark.read(["val"]) if task.name == "loud"))
    )
    with pytest.raises(PawlError, match=message) as caught:
        benchmark.read(["val"])
    assert str(path) in caught.value.where


def test_the_longest_prompts_are_asked_first(run: Run) -> None:
    with FakeServer() as server:
        run(server, "val", concurrency=1)
    lengths = [len(body["messages"][0]["content"]) for body in server.bodies]
    assert lengths == sorted(lengths, reverse=True)
    assert (
        server.bodies[0]["max_tokens"] == 32
        and server.bodies[0]["temperature"] == 0
        and server.bodies[0]["seed"] == 0
    )


def test_a_prompt_that_does_not_fit_the_model_is_named(run: Run) -> None:
    with FakeServer() as server, pytest.raises(PawlError, match=r"above engine\.max_model_len"):
        run(server, max_output_tokens=62)
    assert run.files() == {}


def test_a_generation_without_a_single_token_is_no_answer() -> None:
    endpoint: Any = SimpleNamespace(base_url="http://127.0.0.1:1/v1")
    local: Any = SimpleNamespace(kind="transformers", max_model_len=64)
    with pytest.raises(PawlError, match="generated nothing"):
        infer._check(
            llm.Reply("", 4, 0, "stop"),
            "abc",
            endpoint,
            local,
            SimpleNamespace(max_output_tokens=8),
        )  # type: ignore[arg-type]


def test_each_call_locks_the_stages_whose_files_it_writes() -> None:
    assert stage.stages(argparse.Namespace(base=True, split=["val", "test"])) == ["baseline"]
    assert stage.stages(argparse.Namespace(base=False, split=["val", "test"])) == [
        "eval_val",
        "eval_test",
    ]


def test_each_tenth_request_answered_500_loses_no_item(run: Run) -> None:
    with FakeServer(fault=lambda number, body: "500" if number % 10 == 0 else "") as server:
        run(server, retries=3)
    assert (
        sum(len(read_rows(run.root / f"reports/baseline/{split}.jsonl", Answer)) for split in ROWS)
        == 38
    )


def test_several_runs_differ_in_their_seed_and_give_pass_at_k(run: Run) -> None:
    with FakeServer(
        answer=lambda body: body["messages"][0]["content"].upper() if body["seed"] == 1 else "no"
    ) as server:
        run(server, "val", num_runs=2, temperature=0.5)
    rows = read_rows(run.root / "reports/baseline/val.jsonl", Answer)
    assert sorted({row.repeat for row in rows}) == [0, 1] and len(rows) == 48
    assert {body["seed"] for body in server.bodies} == {0, 1}
    overall = json.loads((run.root / "reports/baseline/val.json").read_text())["overall"]
    assert overall["n"] == 48 and overall["accuracy"] == 0.5
    assert overall["pass_at_k"] == {"1": 0.5, "2": 1.0}, "each item is right in one of its two runs"


def test_a_limit_asks_the_first_items_and_shows_in_the_settings(run: Run) -> None:
    with FakeServer() as server:
        run(server, "val", limit=3)
    summary = json.loads((run.root / "reports/baseline/val.json").read_text())
    assert (
        summary["overall"]["n"] == 6
        and summary["settings"]["limit"] == summary["fingerprint"]["limit"] == 3
    )


def test_every_row_names_what_it_depends_on(run: Run) -> None:
    seen = []
    with FakeServer() as server:
        for changes in ({}, {}, {"top_k": 5}):
            run(server, "val", **changes)
            rows = read_rows(run.root / "reports/baseline/val.jsonl", Answer)
            assert len({row.fingerprint for row in rows}) == 1
            seen.append(rows[0].fingerprint)
    assert seen[0] == seen[1] != seen[2] and len(seen[0]) == 16
    assert server.bodies[-1]["top_k"] == 5 and "top_k" not in server.bodies[0]


def test_a_splits_conditions_do_not_depend_on_the_other_split_being_asked_too(run: Run) -> None:
    """The base answers both splits in one call and the candidate one: the judge compares what both
    say of that one.
    """
    scoring = {"evaluator": {"type": "x.Y"}, "postprocessor": None}
    scoring |= {"metric": "accuracy", "executes_code": False}
    for split in ROWS:
        for name in ("loud", "long"):
            write_json(run.root / f"data/benchmark/{split}/{name}.scoring.json", scoring)
    seen = []
    with FakeServer() as server:
        for splits in (("val", "test"), ("val",), ("val",)):
            run(server, *splits)
            summary = json.loads((run.root / "reports/baseline/val.json").read_text())
            seen.append(summary["fingerprint"])
            assert {
                row.fingerprint
                for row in read_rows(run.root / "reports/baseline/val.jsonl", Answer)
            } == {sha256_text(json.dumps(summary["fingerprint"], sort_keys=True))[:16]}
            if len(seen) == 2:
                write_json(
                    run.root / "data/benchmark/val/loud.scoring.json", scoring | {"metric": ""}
                )
    assert seen[0] == seen[1] and "prompts_sha256" in seen[0]
    assert seen[2] != seen[1], "another way to score is another ruler"


def test_the_judge_sees_who_scored(run: Run) -> None:
    task = scoring.Task(
        "a", "val", [], {"evaluator": {"type": "opencompass.evaluator.GenericLLMEvaluator"}}
    )
    params: Any = SimpleNamespace(
        engine=SimpleNamespace(judge=LLM(base_url="http://127.0.0.1:1/v1", model="one"))
    )
    other: Any = SimpleNamespace(
        engine=SimpleNamespace(judge=LLM(base_url="http://127.0.0.1:2/v1", model="two"))
    )
    assert results.ruler([task], params)["judge"]["model"] == "one" and results.ruler(
        [task], params
    ) != results.ruler([task], other)


def test_progress_says_nothing_of_test_scores(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infer, "_EVERY_S", 0.0)
    with FakeServer() as server:
        run(server, "test")
        assert "right" not in capsys.readouterr().out
        run(server, "val")
        assert "right" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_server_that_dies_is_started_once_more_and_asked_what_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """The first server dies after ten answers, and with `deaths` of 2 so does the next one."""
    starts: list[int] = []

    @contextmanager
    def serve(engine: Engine, *args: Any, meanwhile: Any, **kwargs: Any) -> Iterator[Endpoint]:
        starts.append(server.requests)
        if meanwhile:
            meanwhile()

        def check() -> None:
            if len(starts) <= deaths and server.requests - starts[-1] >= 10:
                raise ServerDiedError("the server ended with code 9; its last lines:\nkilled")

        yield Endpoint(server.url, "fake", "", {"engine": "fake"}, check)

    monkeypatch.setattr(results.engine, "serve", serve)
    with FakeServer(answer=lambda body: time.sleep(0.15) or "4") as server:  # type: ignore[func-returns-value]
        if deaths == 1:
            run(server, "val", concurrency=2, request_timeout_s=5.0)
            assert len(starts) == 2 and 24 <= server.requests <= 26, (
                "at most what was in flight is asked twice"
            )
            assert len(read_rows(run.root / "reports/baseline/val.jsonl", Answer)) == 24
        else:
            with pytest.raises(PawlError, match="ended with code 9"):
                run(server, "val", concurrency=2, request_timeout_s=5.0)
            assert run.files() == {} and run.kept() >= 16, (
                "all but what was in flight at the two deaths"
            )


def test_model_written_code_is_not_run_unless_that_is_allowed(run: Run) -> None:
    scoring = {"evaluator": {"type": "opencompass.datasets.mbpp.MBPPEvaluator"}}
    scoring |= {"postprocessor": None, "metric": "score", "executes_code": True}
    write_json(run.root / "data/benchmark/val/loud.scoring.json", scoring)
    with (
        FakeServer() as server,
        pytest.raises(PawlError, match="scoring loud runs what the model wrote"),
    ):
        run(server, "val")
    assert server.requests == 0
