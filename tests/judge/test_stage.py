"""The judge as a stage: guards, words, and that it has no way to a test split."""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, write_json
from stages.common.schema import Experiment
from stages.judge.inputs import read_inputs, validation_rows
from tests.judge.conftest import EXPERIMENT, judge_run
from tests.synthetic import FINGERPRINT, changed, make_rows, write_losses, write_run, write_side

TUNED = {**FINGERPRINT, "adapter_sha256": "a" * 64}


def judge(root: Path, experiment: Experiment = EXPERIMENT, **changes):
    return judge_run(root, experiment, **changes)


def candidate_rows(**changes):
    return [changed(row, **changes) for row in make_rows(0.7, seed=2)]


def vetoes(verdict):
    return {guard["guard"] for guard in verdict["guards"] if not guard["passed"]}


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?=\s|$)", text))


def test_a_real_gain_is_accepted_in_three_to_five_sentences(run):
    verdict = judge(run)
    assert verdict["accepted"] and verdict["outcome"] == "accept" and not vetoes(verdict)
    words = verdict["words"]
    assert set(words) == {"Code Summary", "Reason", "Decision"} and words["Decision"] == "yes"
    assert (
        3 <= sentences(words["Reason"]) <= 5
        and "\n" not in words["Reason"]
        and "converged" in words["Reason"]
    )
    assert "Benchmark Performance Issue" not in words["Reason"]


def test_the_same_reports_give_the_same_bytes(run):
    judge(run)
    first = [(run / "reports" / name).read_bytes() for name in ("judge.json", "judge.md")]
    for path in ("eval_val/val.json", "baseline/val.json", "train.json"):
        write_json(
            run / "reports" / path, {**read_json(run / "reports" / path), "runtime_s": 999.0}
        )
    judge(run)
    assert [(run / "reports" / name).read_bytes() for name in ("judge.json", "judge.md")] == first


@pytest.mark.parametrize("folder", ["eval_val", "baseline"])
@pytest.mark.parametrize(
    ("told", "vetoed"),
    [
        ({"unanswered": {"n": 1, "finish_reasons": {"tool_calls": 1}}}, False),
        ({"unanswered": {"n": 999, "finish_reasons": {}}}, True),
        ({"answered_as": {"somebody-else": 3}}, True),
        ({"engine_judge": {"answered_as": {"somebody-else": 3}}}, True),
        ({"engine_judge": {"unanswered": {"n": 999}}}, True),
    ],
)
def test_a_model_that_gave_no_answers_or_was_not_the_one_asked_decides_nothing(
    run, folder, told, vetoed
):
    path = run / "reports" / folder / "val.json"
    write_json(path, read_json(path) | told)
    verdict = judge(run)
    assert verdict["accepted"] is not vetoed and vetoes(verdict) == (
        {"answered"} if vetoed else set()
    )


def test_no_gain_opens_with_the_label(tmp_path):
    verdict = judge(write_run(tmp_path, base=0.5, tuned=0.3))
    assert not verdict["accepted"] and verdict["words"]["Decision"] == "no"
    assert verdict["words"]["Reason"].startswith("[Benchmark Performance Issue] ")
    assert 3 <= sentences(verdict["words"]["Reason"]) <= 5


def test_inconclusive_is_no_acceptance(tmp_path):
    write_run(tmp_path, base=0.5, tuned=0.5, n=30)
    write_side(tmp_path / "reports" / "baseline", rows := make_rows(0.5, n=30, seed=2))
    better = [
        changed(row, correct=True, score=1.0) if k < 4 and not row.correct else row
        for k, row in enumerate(rows)
    ]
    write_side(tmp_path / "reports" / "eval_val", better, adapter="a" * 64)
    verdict = judge(tmp_path)
    assert (
        verdict["outcome"] == "inconclusive"
        and not verdict["accepted"]
        and verdict["words"]["Decision"] == "no"
    )
    assert (
        verdict["evidence"]["further_items"]["items"] > 0
        and "more items" in verdict["words"]["Reason"]
    )


def test_an_incomplete_evaluation_is_never_accepted(run):
    reports = run / "reports"
    write_json(
        reports / "build_benchmark.json",
        {"tasks": {"chain_sum": {"val": 150}, "word_sequence_reversal": {"val": 100}}},
    )
    verdict = judge(run)
    assert (
        vetoes(verdict) == {"complete"}
        and verdict["outcome"] == "reject"
        and "100 of 150 items of chain_sum" in verdict["words"]["Reason"]
    )
    assert not verdict["words"]["Reason"].startswith("[Benchmark")


def test_a_task_that_was_not_answered_at_all_is_a_veto(run):
    path = run / "reports" / "build_benchmark.json"
    tasks = {**read_json(path)["tasks"], "forgotten": {"val": 3, "test": 3}}
    write_json(path, {**read_json(path), "tasks": tasks})
    assert vetoes(judge(run)) == {
        "complete",
        "contamination",
    }, "nothing of it was planted in the training data either"


def test_an_item_that_one_side_lacks_stops_the_stage_and_leaves_no_verdict(run):
    write_side(run / "reports" / "eval_val", candidate_rows()[1:], adapter="a" * 64)
    with pytest.raises(PawlError, match="only in the incumbent"):
        judge(run)
    assert not (run / "reports" / "judge.json").exists()


@pytest.mark.parametrize(
    "key", ["engine", "engine_version", "dtype", "evaluator", "temperature", "new"]
)
def test_other_conditions_are_a_veto(run, key):
    write_side(run / "reports" / "eval_val", candidate_rows(), fingerprint={**TUNED, key: "other"})
    verdict = judge(run)
    assert vetoes(verdict) == {"same conditions"} and key in verdict["words"]["Reason"]


def test_another_base_model_is_named_and_is_no_veto(run):
    write_side(
        run / "reports" / "eval_val",
        candidate_rows(),
        fingerprint={**TUNED, "base_sha256": "other"},
    )
    verdict = judge(run)
    assert vetoes(verdict) == set()
    assert "the base model is another one" in next(
        guard["detail"] for guard in verdict["guards"] if guard["guard"] == "same base model"
    )
    verdict = judge(run, same_base_model=True)
    assert vetoes(verdict) == {"same base model"} and verdict["words"]["Reason"].startswith(
        "[Implementation Quality Issue] Vetoed"
    )


def test_a_missing_fingerprint_is_a_veto(run):
    write_side(run / "reports" / "eval_val", candidate_rows(), fingerprint={})
    assert vetoes(judge(run)) == {"same conditions"}


def test_other_items_behind_the_same_names_are_a_veto(run):
    write_side(run / "reports" / "eval_val", candidate_rows(), items_sha256="f" * 64)
    assert vetoes(judge(run)) == {"same items"}


def test_a_summary_that_its_rows_do_not_carry_is_a_veto(run):
    path = run / "reports/eval_val/val.json"
    write_json(
        path, read_json(path) | {"overall": {**read_json(path)["overall"], "accuracy": 0.99}}
    )
    assert vetoes(judge(run)) == {"summary"}


def test_too_many_truncated_answers_are_a_veto(run):
    write_side(run / "reports" / "eval_val", candidate_rows(truncated=True), adapter="a" * 64)
    verdict = judge(run)
    assert vetoes(verdict) == {"truncation"} and verdict["truncated"]["candidate"] == 1


def test_a_diverged_training_is_said_and_sent_back_to_the_optimiser(run):
    write_losses(run / "reports" / "loss.csv", [3.0, 2.0, float("nan"), 9.0])
    reason = judge(run)["words"]["Reason"]
    assert (
        "diverged" in reason
        and "the learning rate is too high" in reason
        and "a lower learning rate" in reason
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"contamination": {"fraction": 0.51}}, "51.0% of the training rows overlapped"),
        ({"contamination": None}, "does not say"),
        (
            {
                "positive_control": {
                    "chain_sum": {"exact": True, "wrapped": False, "embedded": None}
                }
            },
            r"missed rows .*chain_sum\.wrapped",
        ),
    ],
)
def test_contaminated_data_is_a_veto(run, change, says):
    path = run / "reports" / "generate_data.json"
    write_json(path, {**read_json(path), **change})
    verdict = judge(run)
    assert vetoes(verdict) == {"contamination"} and verdict["outcome"] == "reject"
    reason = verdict["words"]["Reason"]
    assert (
        re.search(says, reason)
        and reason.startswith("[Implementation Quality Issue]")
        and "mend the training data" in reason
    )


def test_the_words_say_which_errors_grew_and_what_the_curve_shows(tmp_path):
    write_run(tmp_path, base=0.6, tuned=0.4)
    rows = [
        changed(row, prediction=row.prediction if row.correct else "")
        for row in make_rows(0.4, seed=2)
    ]
    write_side(tmp_path / "reports" / "eval_val", rows, adapter="a" * 64)
    write_losses(
        tmp_path / "reports" / "loss.csv", [3 - k / 10 for k in range(16)], held_out=[2.0, 1.5, 1.9]
    )
    verdict = judge(tmp_path)
    reason = verdict["words"]["Reason"]
    assert verdict["errors"]["empty"]["grew"] and not verdict["errors"]["content"]["grew"]
    assert (
        "empty errors grew (0.0 % to" in reason
        and "over-fitting" in reason
        and "still falling" in reason
    )
    assert 3 <= sentences(reason) <= 5


def test_a_look_is_spent_once_and_later_candidates_pay_for_it(run):
    assert judge(run)["evidence"]["look"] == 1 and judge(run)["evidence"]["look"] == 1, (
        "judging again is no new look"
    )
    write_side(run / "reports" / "eval_val", make_rows(0.65, seed=9), adapter="a" * 64)
    second = judge(run)
    assert second["evidence"]["look"] == 2 and second["evidence"]["level"] == pytest.approx(
        0.05 * 6 / (3.14159265 * 2) ** 2
    )
    write_side(run / "reports" / "eval_val", make_rows(0.7, seed=2), adapter="a" * 64)
    assert judge(run)["evidence"]["look"] == 1, "the first candidate keeps its place"
    lines = map(json.loads, (run / "experiments/looks.jsonl").read_text().splitlines())
    assert [line["outcome"] for line in lines if "candidate" in line] == ["accept", "accept"]


def test_a_broken_history_of_looks_stops_the_judge(run):
    (run / "experiments").mkdir()
    (run / "experiments/looks.jsonl").write_text("{}\n")
    with pytest.raises(PawlError, match="a look cannot be read"):
        judge(run)
    assert not (run / "reports" / "judge.json").exists()


def test_a_benchmark_that_lost_too_much_is_a_rejection(run):
    rows = make_rows(0.9, seed=2, tasks=["chain_sum"]) + make_rows(
        0.0, tasks=["word_sequence_reversal"]
    )
    write_side(run / "reports" / "baseline", make_rows(0.5, seed=1))
    write_side(run / "reports" / "eval_val", rows, adapter="a" * 64)
    verdict = judge(run, primary="chain_sum")
    assert (
        verdict["outcome"] == "reject"
        and "lost more than 10 points on word_sequence_reversal" in verdict["words"]["Reason"]
    )
    assert verdict["words"]["Reason"].startswith("[Benchmark Performance Issue]")
    assert "**lost too much**" in (run / "reports" / "judge.md").read_text()


def test_hostile_names_stay_text_in_the_markdown_page(run):
    hypothesis = (
        "</script><img src=x> {{7*7}} {% raw %} **bold** [a](http://x) | cell \x1b[31m \x00 \u202e"
        " `code`\n# heading"
    )
    verdict = judge(
        run,
        Experiment(name="<b>x</b>", hypothesis=hypothesis, parent="", incumbent="reports/baseline"),
    )
    page = (run / "reports" / "judge.md").read_text()
    assert verdict["experiment"]["hypothesis"] == hypothesis
    assert (
        "<img" not in page
        and "<b>" not in page
        and "49" not in re.findall(r"Hypothesis.*", page)[0]
    )
    assert not set(page) & {"\x1b", "\x00", "\u202e"} and not re.search(r"^# heading", page, re.M)
    assert r"\[a\](http://x)" in page and r"\*\*bold\*\*" in page and r"\| cell" in page


def test_no_word_holds_item_content(run):
    rows = [changed(row, prediction="LEAKED ANSWER") for row in candidate_rows()]
    write_side(run / "reports" / "eval_val", rows, adapter="a" * 64)
    judge(run)
    for name in ("judge.json", "judge.md"):
        text = (run / "reports" / name).read_text()
        assert (
            "LEAKED" not in text
            and "SECRET" not in text
            and not any(row.item_id in text for row in rows)
        )


def test_no_test_file_is_opened(run, monkeypatch):
    opened = []
    real_open, real_io, real_os = builtins.open, io.open, os.open

    def spy(real):
        def opening(path, *args, **kwargs):
            opened.append(str(path))
            return real(path, *args, **kwargs)

        return opening

    monkeypatch.setattr(builtins, "open", spy(real_open))
    monkeypatch.setattr(io, "open", spy(real_io))
    monkeypatch.setattr(os, "open", spy(real_os))
    judge(run)
    read = [Path(path) for path in opened if path.startswith(str(run))]
    assert {path.name for path in read} >= {"val.jsonl", "val.json"}
    assert not [path for path in read if "test" in path.name or path.parent.name == "eval_test"]


@pytest.mark.parametrize("name", ["val.jsonl", "TEST.jsonl"])
def test_rows_and_summaries_of_the_test_split_are_refused_whatever_they_are_called(run, name):
    copy, link = run / name, run / "link.jsonl"
    copy.write_bytes((run / "reports/eval_test/test.jsonl").read_bytes())
    link.symlink_to(copy)
    for path in (copy, link):
        with pytest.raises(PawlError, match="split should be 'val'"):
            validation_rows(path)
    (run / "reports/eval_val/val.json").write_bytes(
        (run / "reports/eval_test/test.json").read_bytes()
    )
    with pytest.raises(PawlError, match="split should be 'val'"):
        judge(run)


@pytest.mark.parametrize(
    "incumbent",
    [
        "reports/eval_test",
        "../elsewhere",
        "experiments/../reports/eval_test",
        "/etc",
        "",
        "experiments/a/../../x",
    ],
)
def test_an_incumbent_elsewhere_is_refused(run, incumbent):
    with pytest.raises(PawlError, match=r"experiment\.incumbent"):
        read_inputs(run, incumbent)


def test_an_experiment_called_test_can_be_the_incumbent(run):
    write_side(run / "experiments" / "0007-test-rank", make_rows(0.3, seed=9))
    assert judge(run, Experiment(name="x", hypothesis="y", incumbent="experiments/0007-test-rank"))[
        "accepted"
    ]


def test_no_dependency_of_the_judge_is_a_test_result():
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["judge"]
    assert not [dep for dep in stage["deps"] if "test" in re.split(r"[^a-z]+", dep)]


def test_every_file_that_the_judge_reads_is_read_in_one_module():
    readers = {
        "open",
        "read_json",
        "read_jsonl",
        "read_object",
        "read_rows",
        "read_text",
        "read_bytes",
        "load",
        "read_losses",
        "read",
    }
    listing = {"glob", "rglob", "iterdir", "listdir", "scandir", "walk"}
    for path in (ROOT / "stages" / "judge").glob("*.py"):
        for call in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ):
            name = (
                call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            )
            if "Path(__file__)" in ast.unparse(call) or path.name == "ours.py":
                continue  # a list beside the code, or the code itself
            assert name not in readers | listing or path.name == "inputs.py", (
                f"{path.name}: {ast.unparse(call)}"
            )


def test_the_verdict_is_json_without_times(run):
    judge(run)
    text = (run / "reports" / "judge.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert '_s"' not in text.replace("candidate_", "")


def test_percentages_of_one_reason_do_not_contradict_each_other(run):
    rows = [
        changed(row, prediction="", truncated=True, correct=False, score=0.0)
        for row in make_rows(0.7, seed=2)
    ]
    write_side(run / "reports/eval_val", rows, adapter="a" * 64)
    verdict = judge(run)
    assert "100.0% of the candidate's answers were cut off" in verdict["words"]["Reason"]
    assert (
        "0.0 % say something and were cut off and 100.0 % are empty (100.0 % of all answers were"
        " cut off" in verdict["words"]["Reason"]
    )


def test_the_summary_names_method_and_change_and_counts_one_as_one(run):
    report = read_json(run / "reports/train.json")
    write_json(run / "reports/train.json", {**report, "steps": 1})
    settings = {
        "train": {
            "finetuning_type": "lora",
            "stage": "sft",
            "lora_rank": 16,
            "learning_rate": 0.001,
        }
    }
    summary = judge_run(run, settings=settings)["words"]["Code Summary"]
    assert "LoRA (rank 16) and supervised fine-tuning, learning rate 0.001" in summary
    assert "in 1 step and 1 epoch." in summary and "The change is the fine-tuning itself" in summary
    write_side(run / "experiments/0001-a", make_rows(0.3, seed=9))
    (run / "experiments/0001-a/params.yaml").write_text(
        "train: {finetuning_type: lora, stage: sft, lora_rank: 8, learning_rate: 0.001}\n"
    )
    summary = judge_run(
        run, Experiment(name="x", hypothesis="y", incumbent="experiments/0001-a"), settings=settings
    )["words"]["Code Summary"]
    assert "Against experiments/0001-a it changes train.lora_rank: 8 -> 16" in summary


def test_the_verdict_of_an_engine_that_does_not_repeat_itself_says_so(run):
    judge(run)
    text = (run / "reports/judge.md").read_text()
    assert "--noise" not in text
    for side in ("eval_val", "baseline"):
        path = run / "reports" / side / "val.json"
        summary = read_json(path)
        write_json(
            path, {**summary, "fingerprint": {**summary["fingerprint"], "dtype": "bfloat16"}}
        )
    judge(run)
    noisy = (run / "reports/judge.md").read_text()
    assert "two evaluations of the same weights may differ" in noisy and "--noise" in noisy
