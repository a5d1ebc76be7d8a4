"""Two evaluations of the same weights: what differs is counted, kept for the configuration, and
shown where it may matter.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stages.common import noise
from stages.common.errors import PawlError
from stages.common.files import write_json
from stages.common.schema import Engine, Evaluate
from stages.evaluate import infer
from tests.evaluate.test_stage import Run
from tests.fake_server import FakeServer, echo
from tests.gpu_machines import H100
from tests.synthetic import make_summary

EXACT = {"engine": "transformers", "device": "cpu", "dtype": "float32"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


class Undecided:
    """Answers some questions otherwise when they come the second time."""

    def __init__(self, *questions: str) -> None:
        self.questions, self.asked = questions, Counter[str]()

    def __call__(self, body: dict[str, Any]) -> str:
        question = body["messages"][0]["content"]
        self.asked[question] += 1
        turned = question in self.questions and self.asked[question] > 1
        return "something else" if turned else echo(body)


def kept(root: Path) -> dict[str, Any]:
    [path] = (root / "reports/noise").glob("*.json")
    return dict(json.loads(path.read_text()))


def test_verdicts_and_texts_that_change_are_counted_apart(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Undecided(
        "val loud word 1", "val long word word word 3", "val loud 4", "val loud 8"
    )  # the last two are wrong twice
    with FakeServer(answer) as server:
        run.call(server, "--noise")
    assert server.requests == 48, "each validation item twice, and no test item"
    report = kept(run.root)
    assert (report["flips"], report["texts"], report["answers"]) == (2, 4, 24)
    assert report["benchmarks"]["loud"] == {"flips": 1, "texts": 3, "answers": 12}
    assert report["concurrency"] == [4, 2] and report["model"] == "Fake, base"
    assert "2 of 24 verdicts changed" in capsys.readouterr().out
    assert not list((run.root / ".pawl/eval").glob("*")), (
        "the replies of both runs have done their work"
    )


def test_an_evaluation_that_was_stopped_and_a_measurement_take_no_replies_from_each_other(
    run: Run,
) -> None:
    with FakeServer(fault=lambda number, body: "400" if number > 10 else "") as server:
        with pytest.raises(PawlError):
            run.call(server, "--split=val")
        before = {path.name: path.read_bytes() for path in (run.root / ".pawl/eval").glob("*")}
        assert before
        server.fault = lambda number, body: ""
        server.bodies.clear()
        run.call(server, "--noise")
        assert server.requests == 48
    assert before == {path.name: path.read_bytes() for path in (run.root / ".pawl/eval").glob("*")}


def test_a_measurement_that_was_stopped_writes_nothing_and_asks_only_the_rest(run: Run) -> None:
    with FakeServer(fault=lambda number, body: "400" if number > 30 else "") as server:
        with pytest.raises(PawlError):
            run.call(server, "--noise")
        assert not (run.root / "reports/noise").exists()
        server.fault = lambda number, body: ""
        server.bodies.clear()
        run.call(server, "--noise")
        assert server.requests < 24, "the first run was complete"
    assert kept(run.root)["answers"] == 24


def test_a_split_and_the_measurement_are_not_asked_for_together(run: Run) -> None:
    for arguments in ((), ("--noise", "--split=val")):
        with FakeServer() as server, pytest.raises(SystemExit):
            run.call(server, *arguments)


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({}, False),
        ({"dtype": "bfloat16"}, True),
        ({"device": "cuda"}, True),
        ({"engine": "vllm", "device": "cuda", "dtype": "bfloat16", "batch_invariant": True}, False),
        ({"engine": "vllm", "device": "cuda", "dtype": "bfloat16", "batch_invariant": False}, True),
        ({"engine": "vllm_cpu"}, False),
        ({"engine": "external", "device": None, "dtype": "auto"}, True),
    ],
)
def test_answers_may_differ_unless_the_engine_is_known_to_repeat_them(
    changes: dict[str, Any], differs: bool
) -> None:
    assert noise.may_differ(EXACT | changes) is differs


def test_the_default_is_shown_without_a_word_about_noise(tmp_path: Path) -> None:
    assert (
        noise.sentence(tmp_path, make_summary(fingerprint=EXACT))
        == ""
        == noise.sentence(tmp_path, make_summary(fingerprint={}))
    )


def test_the_figure_stands_for_every_adapter_and_for_one_configuration(tmp_path: Path) -> None:
    conditions = EXACT | {"dtype": "bfloat16", "adapter_sha256": "a"}
    noisy = make_summary(fingerprint=conditions, items_sha256="i")
    assert "not measured" in noise.sentence(tmp_path, noisy)
    write_json(tmp_path / noise.place(noisy), {"flips": 3, "answers": 400})
    other = make_summary(fingerprint=conditions | {"adapter_sha256": "b"}, items_sha256="i")
    assert (
        noise.sentence(tmp_path, other)
        == "Noise: two evaluations of the same weights disagree on 3 of 400 verdicts (0.8 %)."
    )
    for change in ({"gpu": "another"}, {"tensor_parallel": 2}, {"temperature": 1.0}):
        assert "not measured" in noise.sentence(
            tmp_path, make_summary(fingerprint=conditions | change, items_sha256="i")
        )
    assert "not measured" in noise.sentence(
        tmp_path, make_summary(fingerprint=conditions, items_sha256="j")
    )
    write_json(tmp_path / noise.place(noisy), {"flips": 0, "answers": 400})
    assert noise.sentence(tmp_path, noisy) == ""


BROKEN = ["", "{", "[]", "{}", '{"flips": 3}']
BROKEN += ['{"flips": 5, "answers": 4}', '{"flips": true, "answers": 4}']
BROKEN += ['{"flips": 0, "answers": 0}', '{"flips": "<b>", "answers": 4}']
BROKEN += ['{"flips": -1, "answers": 4}']


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_figure_counts_as_not_measured(tmp_path: Path, text: str) -> None:
    noisy = make_summary(fingerprint=EXACT | {"dtype": "bfloat16"})
    path = tmp_path / noise.place(noisy)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert "not measured" in noise.sentence(tmp_path, noisy)


@pytest.mark.parametrize(
    ("kind", "set_to", "gpus", "wanted"),
    [
        ("transformers", 0, 1, 64),
        ("external", 0, 0, 64),
        ("vllm", 0, 1, 256),
        ("vllm", 0, 2, 512),
        ("vllm", 0, 8, 1024),
        ("vllm", 7, 8, 7),
    ],
)
def test_as_many_requests_are_in_flight_as_the_engine_works_on(
    gpu_machine: Any, kind: str, set_to: int, gpus: int, wanted: int
) -> None:
    gpu_machine(*[H100] * gpus)
    evaluate = Evaluate(
        name="e",
        concurrency=set_to,
        max_output_tokens=1,
        temperature=0,
        top_p=1,
        seed=0,
        request_timeout_s=1,
        retries=0,
    )
    engine = Engine(name=kind, kind=kind, dtype="auto", max_model_len=64, startup_timeout_s=1.0)
    assert infer.in_flight(engine, evaluate) == wanted
