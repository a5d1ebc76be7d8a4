"""Every report that the judge reads, broken in every place: a verdict or one clear error, never an
acceptance of what is not so.
"""

from __future__ import annotations

import json

import pytest

from stages.common.errors import PawlError
from stages.common.files import read_json
from stages.judge.inputs import read_former
from tests.broken import DOCUMENTS, variants
from tests.judge.conftest import judge_run
from tests.synthetic import write_run

REPORTS = (
    "eval_val/val.json",
    "baseline/val.json",
    "build_benchmark.json",
    "generate_data.json",
    "train.json",
)
DECIDING = (
    "fingerprint",
    "items_sha256",
    "rows_sha256",
    "split",
    "overall.n",
    "overall.accuracy",
    "contamination",
    "tasks",
)


def judged(root, what):
    """The verdict, or None where it is refused."""
    try:
        verdict = judge_run(root)
    except PawlError as error:
        told = str(error)
        assert told.count("\n") <= 2 and len(told) < 2500 and (error.where or error.fix), what
        return None
    json.loads(
        (root / "reports/judge.json").read_text(),
        parse_constant=lambda name: pytest.fail(f"{what}: {name}"),
    )
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_one_broken_value_is_a_verdict_or_one_clear_error(tmp_path, name):
    run = write_run(tmp_path, base=0.1, tuned=0.9, n=6)
    assert judged(run, "whole")["accepted"], "the control: nothing is broken yet"
    path, seen = run / "reports" / name, {"refused": 0, "rejected": 0}
    whole = read_json(path)
    for what, text in variants(whole, 30, seed=len(name)):
        path.write_text(text)
        verdict = judged(run, what)
        place, _, value = what.partition(": ")
        if verdict is None or not verdict["accepted"]:
            seen["rejected" if verdict else "refused"] += 1
        elif place.startswith(DECIDING) and name != "train.json":
            held = whole
            for key in place.split("."):
                held = held[key] if isinstance(held, dict) else None
            harmless = (
                place.partition(".")[2] in ("adapter_sha256", "base_sha256", "chat_template_sha256")
                or "hits" in place
            )
            harmless |= (
                place.endswith((".test", "_low", "_high"))
                or value == repr(held)
                or "contamination.fraction: 0" in what
            )
            assert harmless, f"{name}, {what}: accepted"
    assert seen["refused"] + seen["rejected"] > 5, seen


@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_file_that_is_no_report_is_one_clear_error(tmp_path, text):
    run = write_run(tmp_path, base=0.1, tuned=0.9, n=6)
    for name in (*REPORTS, "eval_val/val.jsonl", "baseline/val.jsonl", "loss.csv"):
        path = run / "reports" / name
        kept = path.read_bytes()
        path.write_text(text)
        verdict = judged(run, name)
        assert verdict is None or not verdict["accepted"], f"{name}: {text:.20}"
        path.write_bytes(kept)


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens", "repeat"])
@pytest.mark.parametrize("value", [2**70, 10**400, -1, 2**63, True, 1.5])
def test_a_count_that_is_none_is_one_clear_error(tmp_path, name, value):
    run = write_run(tmp_path, n=3)
    path = run / "reports/eval_val/val.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), name: value}), *rest]))
    with pytest.raises(PawlError, match=f"{name} should be "):
        judge_run(run)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "- 1",
        "null",
        "1",
        "",
        "a: [",
        "\x00",
        "\ufffe",
        "a: !!python/object:os.system x",
        "? [a]\n: 1",
        "a: ${b}",
        "&a [*a]",
        "a: 1\na: 2",
    ],
)
def test_broken_parameters_of_an_incumbent_are_one_clear_error_or_nothing(tmp_path, text):
    path = tmp_path / "experiments/0001-x/params.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    try:
        found = read_former(tmp_path, "experiments/0001-x")
    except PawlError as error:
        assert (
            error.where.endswith("params.yaml")
            and "Git" in error.fix
            and str(error).count("\n") <= 2
        )
    else:
        assert all(isinstance(name, str) for name in found)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PawlError, match="cannot be read"):
        read_former(tmp_path, "experiments/0001-x")
