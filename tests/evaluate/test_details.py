"""Each evaluator's verdicts are read from what that evaluator really gives, and add up to its
metric.
"""

from __future__ import annotations

import inspect
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.common import details, scoring
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.items import item_id
from stages.common.llm import Reply
from stages.common.schema import Benchmark
from stages.common.scoring import Scorer, Task
from stages.evaluate import benchmark, score

OC = "opencompass"
STRICT = "Prompt-level-strict-accuracy"
IFEVAL = {
    "key": 1,
    "prompt": "Say it without commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{"relation": None, "num_words": None}, {"relation": "at least", "num_words": 3}],
}
OPTIONS = {
    "A": "red",
    "B": "blue",
    "C": None,
    "options": "A. red\nB. blue",
    "question": "?",
    "answer": "A",
}
# evaluator, its arguments, what it is given: (prediction, reference, right)
REAL: list[tuple[str, dict[str, Any], list[tuple[str, Any, bool]], str]] = [
    (
        f"{OC}.openicl.icl_evaluator.icl_hf_evaluator.AccwithDetailsEvaluator",
        {},
        [("4", "4", True), ("5", "4", False)],
        "accuracy",
    ),
    (
        f"{OC}.openicl.icl_evaluator.icl_em_evaluator.EMEvaluator",
        {},
        [("The 4.", ["4", "four"], True), ("5", ["4"], False)],
        "score",
    ),
    (
        f"{OC}.datasets.gsm8k.Gsm8kEvaluator",
        {},
        [("18.0", "18", True), ("NULL", "18", False), ("17", "18", False)],
        "accuracy",
    ),
    (
        f"{OC}.datasets.math.MATHEvaluator",
        {"version": "v2"},
        [("\\frac{1}{2}", "\\frac12", True), ("2", "3", False)],
        "accuracy",
    ),
    (f"{OC}.datasets.gpqa.GPQAEvaluator", {}, [("A", "A", True), ("", "B", False)], "accuracy"),
    (f"{OC}.datasets.bbh.BBHEvaluator_mcq", {}, [("A", "A", True), ("B", "A", False)], "score"),
    (
        f"{OC}.datasets.bbh.BBHEvaluator",
        {},
        [("So the answer is **Yes**.", "yes", True), ("7", "8", False)],
        "score",
    ),
    (
        f"{OC}.datasets.custom.OptionSimAccEvaluator",
        {"options": ["A", "B", "C"]},
        [("A", "A", True), ("blue", "A", False)],
        "accuracy",
    ),
    (
        f"{OC}.datasets.IFEval.ifeval.IFEvaluator",
        {},
        [("one two three", IFEVAL, True), ("one, two", IFEVAL, False)],
        STRICT,
    ),
]
# evaluators that keep no verdicts: asked item by item
F1 = [("the red house", ["red house"], 1.0), ("red car", ["red house"], 0.5)]
SILENT = [(f"{OC}.datasets.longbench.evaluators.LongBenchF1Evaluator", {}, F1)]


def task(
    rows: list[tuple[str, Any, Any]], row: dict[str, Any] | None = None
) -> tuple[Task, list[Reply]]:
    items = [
        {
            "item_id": item_id("t", f"q{number}", str(gold)),
            "benchmark": "t",
            "question": f"q{number}",
            "answer": str(gold),
            "reference": gold,
        }
        | ({"row": row} if row else {})
        for number, (_, gold, _) in enumerate(rows)
    ]
    return Task("t", "val", items), [Reply(text, 5, 3, "stop") for text, _, _ in rows]


@pytest.mark.parametrize(
    ("dotted", "arguments", "rows", "metric"),
    [
        pytest.param(
            *case,
            id=case[0].rpartition(".")[2],
            marks=[pytest.mark.e2e] if ".custom." in case[0] else [],
        )  # its import takes long
        for case in REAL
    ],
)
def test_verdicts_are_those_of_the_evaluator(
    dotted: str, arguments: dict[str, Any], rows: Any, metric: str
) -> None:
    asked, replies = task(rows, OPTIONS)
    evaluator = scoring.evaluator({"type": dotted, **arguments})
    assert type(evaluator).__name__ in details.ADAPTERS
    found = score.rows(asked, replies, Scorer(evaluator, str, metric))
    assert [row.correct for row in found] == [right for _, _, right in rows]


def test_every_adapter_is_tested_against_its_evaluator() -> None:
    assert set(details.ADAPTERS) == {dotted.rpartition(".")[2] for dotted, *_ in REAL}


@pytest.mark.parametrize(("dotted", "arguments", "rows"), SILENT, ids=["LongBenchF1Evaluator"])
def test_an_evaluator_without_verdicts_is_asked_item_by_item(
    dotted: str, arguments: dict[str, Any], rows: Any
) -> None:
    asked, replies = task(rows)
    found = score.rows(
        asked, replies, Scorer(scoring.evaluator({"type": dotted, **arguments}), str, "score")
    )
    assert [row.score for row in found] == [value for *_, value in rows] and [
        row.correct for row in found
    ] == [True, False]


@pytest.mark.e2e
def test_the_plain_accuracy_evaluator_agrees_item_by_item() -> None:
    asked, replies = task([("A", "A", True), ("b", "B", False), ("C", "C", True)])
    evaluator = scoring.evaluator(
        {"type": f"{OC}.openicl.icl_evaluator.icl_hf_evaluator.AccEvaluator"}
    )
    assert [
        row.correct for row in score.rows(asked, replies, Scorer(evaluator, str, "accuracy"))
    ] == [True, False, True]


def test_a_metric_that_the_evaluator_does_not_give_is_named() -> None:
    asked, replies = task([("4", "4", True)])
    evaluator = scoring.evaluator({"type": REAL[2][0]})
    with pytest.raises(PawlError, match="none of them 'f1'"):
        score.rows(asked, replies, Scorer(evaluator, str, "f1"))


def test_what_scoring_needs_and_is_not_here_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "langdetect", None)
    names = [benchmark._SPLITTING[0], benchmark._DETECTING[0]]
    asked, _ = task([("One. Two.", IFEVAL | {"instruction_id_list": names}, True)])
    with pytest.raises(PawlError, match="needs what is not installed here") as raised:
        benchmark.check([asked], Benchmark())
    assert (
        raised.value.fix
        == "python -m pip install langdetect && python -m nltk.downloader punkt_tab"
    )
    benchmark.check(
        [task([("one", IFEVAL, True)])[0]], Benchmark()
    )  # no other instruction needs them


def test_a_language_is_guessed_alike_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """langdetect draws at random: "DAS IST GUT BUT NOT SO GOOD" was English in half of the runs."""
    factory = type("DetectorFactory", (), {"seed": None})
    monkeypatch.setitem(sys.modules, "langdetect", SimpleNamespace(DetectorFactory=factory))

    class Guessing:
        def score(self, predictions: list[str], references: list[str]) -> dict[str, float]:
            return {"accuracy": 100.0 if factory.seed == 0 else random.uniform(1, 99)}

    asked, replies = task([("ICH BIN", "en", True), ("I AM", "en", True)])
    assert [row.correct for row in score.rows(asked, replies, Scorer(Guessing(), str))] == [
        True,
        True,
    ]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("uses", "known"), [(r"nltk|count_sentences", "_SPLITTING"), (r"langdetect\.", "_DETECTING")]
)
def test_the_instructions_that_are_refused_are_those_whose_checkers_use_what_is_missing(
    uses: str, known: str
) -> None:
    """Else an evaluation would ask the model every item, and fail at the scores."""
    registry = scoring.named(f"{OC}.datasets.IFEval.instructions_registry.INSTRUCTION_DICT")
    assert {
        name for name, kind in registry.items() if re.search(uses, inspect.getsource(kind))
    } == set(getattr(benchmark, known))


@pytest.mark.e2e
def test_an_evaluation_of_strings_ends_without_having_loaded_torch() -> None:
    """The look at what was edited meanwhile asked every module for its file, which loaded the lazy
    ones: 6 s at the end of each run.
    """
    code = (
        "import sys; from stages.common.config import load_params; from stages.common.scoring"
        " import evaluator\nwith load_params('evaluate.seed'): evaluator({'type':"
        f" '{REAL[0][0]}'}})\nprint(*(name for name in sys.modules if name in ('torch._C',"
        " 'transformers', 'evaluate.loading')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout.split(), done.stderr


@pytest.mark.e2e
def test_evaluators_load_without_what_they_do_not_need() -> None:
    """13 s of imports for a comparison of strings were the reason for lazy.py: neither torch nor
    OpenCompass's other datasets load.
    """
    code = (
        "import sys; from stages.common.scoring import evaluator;evaluator({'type':"
        f" '{OC}.datasets.gsm8k.Gsm8kEvaluator'}});import importlib.util as u;lazy = {{name for"
        " name, module in sys.modules.items() if type(module) is u._LazyModule};print('torch' in"
        " set(sys.modules) - lazy, sum(name.startswith('opencompass.datasets.') for name in"
        " sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    torch, count = done.stdout.split()
    assert torch == "False" and int(count) < 6, done.stderr
