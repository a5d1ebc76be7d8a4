"""What is scored in the room (box.py): a program by its tests, with OpenCompass's evaluators.
Nothing of Pawl is there to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

Item = dict[str, Any]
"""An item as the room gets it: prediction, reference and row, which evaluators read."""


def scorer(spec: dict[str, Any]) -> Callable[[Item], float]:
    """A function that gives an item's score in [0, 1]; imports what it needs before any
    model-written code runs.
    """
    kind = spec["type"].rpartition(".")[2]
    if kind == "HumanEvalEvaluator":
        return human_eval
    importlib.import_module("lazy").quick_opencompass()
    module = importlib.import_module(spec["type"].rpartition(".")[0])
    if kind == "LCBCodeGenerationEvaluator":
        extract = importlib.import_module(
            "opencompass.datasets.livecodebench.extract_utils"
        ).extract_code_generation
        return lambda item: lcb(module, extract, item, spec.get("timeout", 6))
    evaluator = getattr(module, kind)(
        **{key: value for key, value in spec.items() if key != "type"}
    )

    def score(item: Item) -> float:
        result = evaluator.score(predictions=[item["prediction"]], references=[item["reference"]])
        return float(result["details"]["0"]["is_correct"])

    return score


def human_eval(item: Item) -> float:
    """1.0 where the function passes the problem's tests (Chen et al. 2021, section 2.1): prompt,
    completion and test as one program.
    """
    row = item["row"]
    program = f"{row['prompt']}{item['prediction']}\n{row['test']}\ncheck({row['entry_point']})"
    exec(compile(program, "program", "exec"), {"__name__": "program"})  # noqa: S102 - what this room is for
    return 1.0


def lcb(module: Any, extract: Callable[[str], str], item: Item, timeout: float) -> float:
    sample = [{"input_output": item["row"]["evaluation_sample"]}]
    metrics = module.codegen_metrics(
        sample, [[extract(item["prediction"])]], k_list=[1], num_process_evaluate=1, timeout=timeout
    )
    return float(metrics[0]["pass@1"]) / 100
