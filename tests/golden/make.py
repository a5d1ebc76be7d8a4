"""Write the reports of tests/golden anew: python -m tests.golden.make

Each function runs a stage's own code on made-up inputs, and leaves what the stage would leave.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from agent.knowledge.history import Record
from agent.run import experiment
from stages.build_benchmark.__main__ import make as make_benchmark
from stages.common import failure
from stages.common.errors import PawlError
from stages.common.files import ROOT, write_jsonl, write_text
from stages.common.llm import Reply
from stages.common.reports.evaluation import Oddities
from stages.common.schema import LLM, Benchmark, Data, Engine, Experiment, Judge, Source
from stages.evaluate import __main__ as evaluate
from stages.evaluate import results
from stages.generate_data import __main__ as generate_data
from stages.judge.__main__ import judge_reports
from stages.train import result
from stages.train.launch import Run
from tests.evaluate.test_score import AccwithDetailsEvaluator, make_task, scorer
from tests.fake_server import FakeServer
from tests.golden import HERE
from tests.synthetic import make_rows, write_run, write_side

SUMS = Source(
    kind="procedural",
    task="chain_sum",
    settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    licence="L",
    count=20,
)


def evaluation(root: Path) -> None:
    """Repeats, thoughts, replies without text, of another model, without counted tokens; a sampling
    option that was refused.
    """
    params: Any = SimpleNamespace(
        evaluate=SimpleNamespace(think_open="<t>", think_close="</t>", think_begun=False),
        engine=Engine(name="x", kind="external"),
        benchmark=SimpleNamespace(evaluator="x.Exact", postprocessor="strip"),
    )
    odd = Reply(
        "",
        5,
        3,
        "tool_calls",
        missing=True,
        estimated=True,
        model="somebody-else",
        not_sent=("top_k",),
    )
    golds = {"sums": ["4", "7", "9"], "words": ["5", "8", "8"]}
    for split in ("val", "test"):
        tasks = [replace(make_task(each), name=name, split=split) for name, each in golds.items()]
        right = [
            Reply("<t>hm</t> 4", 5, 3, "stop"),
            Reply("7", 5, 3, "stop"),
            Reply("8", 5, 32, "length"),
        ]
        replies = [[right, [odd, *right[1:]]], [right[::-1], right]]
        found = results.Answered(
            replies,
            [scorer(AccwithDetailsEvaluator(), str.strip)] * 2,
            {"engine": "external", "device": None},
        )
        rows, summary = results.split(split, tasks, found, params)
        sums = summary.benchmarks["sums"].model_copy(
            update={"opencompass": 0.5, "overruled": 1, "folded": 2}
        )
        about = {
            "model": "Fake, fine-tuned",
            "settings": {"seed": 0},
            "opencompass": "0.5.4",
            "runtime_s": 1.5,
            "engine_judge": Oddities(answered_as={"another-judge": 3}),
            "benchmarks": summary.benchmarks | {"sums": sums},
        }
        evaluate.write(root, rows, summary.model_copy(update=about))


def benchmark(root: Path) -> None:
    """Questions that occur twice, and more of them than were asked for."""
    lines = [{"question": f"question {number % 9}", "answer": "a"} for number in range(12)]
    write_jsonl(root / "rows.jsonl", lines)
    mine = Source(kind="jsonl", path=str(root / "rows.jsonl"), licence="M")
    tasks = {"sums": replace(SUMS, count=0), "mine": mine}
    exact = "opencompass.openicl.icl_evaluator.icl_hf_evaluator.AccwithDetailsEvaluator"
    make_benchmark(
        Benchmark(name="b", seed=5, tasks=tasks, val_items=3, test_items=3, evaluator=exact), root
    )
    shutil.copyfile(root / "reports/build_benchmark.json", root / "build_benchmark.json")


def data(root: Path) -> None:
    """A teacher, bad rows, and remarks on them."""
    for split in ("val", "test"):
        items = [
            {
                "item_id": split,
                "benchmark": "secrets",
                "question": f"What is {split}?",
                "answer": "gold",
                "category": "",
            }
        ]
        write_jsonl(root / f"data/benchmark/{split}/secrets.jsonl", items)
    lines = [
        {"question": f"question {number}", "answer": f"answer {number}"} for number in range(10)
    ]
    lines += [{"question": "", "answer": "none"}, {"question": "What is val?", "answer": "gold"}]
    write_jsonl(root / "rows.jsonl", lines)
    write_jsonl(root / "asked.jsonl", [{"question": f"seed {number}"} for number in range(4)])
    sources = {
        "mine": Source(kind="jsonl", path=str(root / "rows.jsonl")),
        "taught": Source(kind="jsonl", path=str(root / "asked.jsonl"), recipe="answer"),
    }

    def count(seen: list[Any]) -> list[int]:
        return [sum(len(turn["content"].split()) for turn in one) for one in seen]

    with FakeServer(fault=lambda number, body: "other_model") as server:
        llm = LLM(base_url=server.url, model="fake", concurrency=1, price_in=1.0, price_out=2.0)
        given = Data(
            name="d",
            seed=3,
            sources=sources,
            max_rows=0,
            ngram=13,
            max_contamination=0.5,
            max_bad_fraction=0.3,
        )
        given.teacher.strong = given.teacher.cheap = llm
        generate_data.make(given, 50, count, root, root)
    text = (root / "reports/generate_data.json").read_text(encoding="utf-8")
    write_text(root / "generate_data.json", text.replace(str(root), "HERE"))


def training(root: Path) -> None:
    """A run on GPUs that was taken up from a checkpoint, with warnings, held-out losses and
    norms.
    """
    told = {
        "tokens": 900,
        "seconds": 3.0,
        "total_parameters": 1000,
        "trainable_parameters": 10,
        "processes": 2,
        "resumed_from_step": 4,
        "gpu": "NVIDIA H100 80GB HBM3",
        "peak_gpu_memory_gib": 1.234,
    }
    preflight = {"rows": 7, "warnings": ["long rows"], "memory": {"estimate_gib": {"total": 1.234}}}
    history = [
        {"step": 1, "loss": 2.0, "grad_norm": 1.0},
        {"step": 2, "loss": 1.0, "grad_norm": 0.5},
        {"step": 2, "eval_loss": 1.5},
    ]
    state = {"num_input_tokens_seen": 1000, "log_history": history, "global_step": 2, "epoch": 1.0}
    with mock.patch.object(result.log, "warnings", lambda log: []):
        result.report(Run(12.34, 2.5, told, preflight), state, "a" * 64).write(root / "train.json")


def verdicts(root: Path) -> None:
    """Inconclusive against an experiment; vetoed by a language model; one that failed; one with a
    primary benchmark, measured by score.
    """
    said = json.dumps({"Code Summary": "LoRA.", "Reason": "It is not sound.", "Decision": "no"})
    for name, side in (
        ("inconclusive", {"base": 0.5, "tuned": 0.55}),
        ("vetoed", {}),
        ("failed", {}),
        ("primary", {}),
    ):
        run = write_run(root / name, n=30, **side)
        incumbent, judge = "reports/baseline", Judge("rules", "rules", 0.05, 0.01, 0.2)
        if name == "inconclusive":
            incumbent = "experiments/0001-first"
            write_side(run / incumbent, make_rows(0.5, n=30, seed=2), adapter="b" * 64)
            write_text(run / incumbent / "params.yaml", "train: {learning_rate: 0.001}\n")
        if name == "primary":
            judge = replace(judge, primary="chain_sum", metric="score")
        about = Experiment(name, "It helps.", "", incumbent)
        fault = "401" if name == "failed" else ""
        with FakeServer(
            answer=lambda body: said, fault=lambda number, body, fault=fault: fault
        ) as server:  # type: ignore[misc]
            if name in ("vetoed", "failed"):
                llm = LLM(
                    base_url=server.url,
                    model="fake",
                    timeout_s=2.0,
                    retries=0,
                    price_in=1.0,
                    price_out=1.0,
                )
                judge = replace(judge, kind="llm", llm=llm)
            judge_reports(run, judge, about, settings={"train": {"learning_rate": 0.002}})
        text = (run / "reports/judge.json").read_text(encoding="utf-8").replace(server.url, "URL")
        write_text(root / f"judge_{name}.json", text)
        write_text(
            root / f"judge_{name}.md",
            (run / "reports/judge.md").read_text(encoding="utf-8").replace(server.url, "URL"),
        )
        shutil.copyfile(run / "experiments/looks.jsonl", root / f"looks_{name}.jsonl")


def failures(root: Path) -> None:
    details = {
        "exit_code": -9,
        "signal": 9,
        "tail": "the end",
        "traceback": "ValueError: y",
        "peak_memory_gib": 3.14159,
        "timed_out": True,
    }
    clock = mock.Mock(
        now=lambda zone: SimpleNamespace(isoformat=lambda timespec: "2026-11-29T16:29:24.000+00:00")
    )
    with mock.patch.object(failure, "ROOT", root), mock.patch.object(failure, "datetime", clock):
        for stage, more in (("train", details), ("judge", {})):
            failure.record(
                stage, **failure._fields(PawlError("no", where="here", fix="do this", details=more))
            )
            shutil.copyfile(root / f".pawl/failure/{stage}.json", root / f"failure_{stage}.json")


def records(root: Path) -> None:
    """An experiment that is planned, one that crashed, one that was kept."""
    reports, when = root / "kept", "2026-11-29T16:29:24Z"
    write_run(reports, n=30)
    judge_reports(
        reports,
        Judge("rules", "rules", 0.05, 0.01, 0.2),
        Experiment("one", "It helps.", "", "reports/baseline"),
    )
    (reports / "dvc.lock").write_text("")
    plan = Record(
        number=1,
        slug="one",
        status="PLANNED",
        hypothesis="h",
        changes=[{"key": "train.lora_rank", "before": 8, "after": 16}],
        overrides=["train.lora_rank=16"],
        gate={"metric": "accuracy", "at_least": 0.5},
        policy="optuna",
        run="r",
        trial=1,
        planned_at=when,
        incumbent="reports/baseline",
        commit="c" * 40,
        cost={"llm": 0.5, "gpu_hours": 0.0},
        model="m",
        fingerprint="f" * 64,
    )
    places = {name: reports / path.relative_to(ROOT) for name, path in experiment.COPIED.items()}
    with (
        mock.patch.object(experiment, "EXPERIMENTS", root / "experiments"),
        mock.patch.object(experiment, "ROOT", reports),
        mock.patch.object(experiment, "REPORTS", reports / "reports"),
        mock.patch.dict(experiment.COPIED, places),
        mock.patch.object(experiment, "now", lambda: when),
    ):
        experiment.write_record(plan)
        shutil.copyfile(root / "experiments/0001-one/record.json", root / "record_planned.json")
        experiment.finish(plan, experiment.read_verdict("one", "reports/baseline"), 12.34)
        shutil.copyfile(root / "experiments/0001-one/record.json", root / "record_kept.json")
        experiment.crash(replace(plan, number=2), "out of memory", 12.34, "It was too big.")
        shutil.copyfile(root / "experiments/0002-one/record.json", root / "record_crashed.json")


MADE = {
    evaluation: ("val.json", "test.json", "val.jsonl", "test.jsonl"),
    benchmark: ("build_benchmark.json",),
    data: ("generate_data.json",),
    training: ("train.json",),
    verdicts: tuple(
        name.format(each)
        for each in ("inconclusive", "vetoed", "failed", "primary")
        for name in ("judge_{}.json", "judge_{}.md", "looks_{}.jsonl")
    ),
    failures: ("failure_train.json", "failure_judge.json"),
    records: ("record_planned.json", "record_kept.json", "record_crashed.json"),
}
"""What each function writes."""


def main() -> None:
    for make, names in MADE.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            for name in names:
                shutil.copyfile(Path(folder) / name, HERE / name)


if __name__ == "__main__":
    main()
