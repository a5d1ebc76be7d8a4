"""Benchmarks whose evaluator asks a language model.

OpenCompass writes the question and reads the reply; the requests are ours. The model is
engine.judge. What it is shown of a prediction is data; its reply is read for one of two letters
and nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stages.common import llm
from stages.common.errors import PawlError
from stages.common.replies import key_of
from stages.common.schema import LLM
from stages.common.scoring import Item, Scorer, Spec, Task, evaluator, is_judged, named
from stages.common.verdicts import Score, by_rule
from stages.evaluate.infer import counted, kept, store

_ROLES = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}
_OPTIONS = {"top_p": 1.0, "seed": 0}


def check(tasks: list[Task], judge: LLM) -> None:
    """Refuse, before anything is asked, what needs a judge where none is declared.

    Raises:
        PawlError: names the benchmark.
    """
    for task in tasks:
        if is_judged(task) and not judge.base_url:
            raise PawlError(
                f"{task.name} is scored by a language model, and none is declared",
                where="engine.judge",
                fix="set engine.judge.base_url, engine.judge.model and engine.judge.api_key_env",
            )


def identity(judge: LLM) -> dict[str, object]:
    """What its verdicts depend on, apart from the question."""
    return {
        "model": judge.model,
        "temperature": judge.temperature,
        "max_output_tokens": judge.max_output_tokens,
    }


def scores(judge: LLM, folder: Path, scorer: Scorer, notes: list[llm.Reply] | None = None) -> Score:
    """What `score.rows` takes in the evaluator's place.

    Replies are kept in `folder`, so that a judge is paid once.

    Args:
        notes: gets the judge's replies, for what is odd about them.
    """
    notes = [] if notes is None else notes

    def judged(task: Task, predictions: list[Any]) -> list[float]:
        spec = scorer.spec
        if "llm_evaluator" not in spec:
            return _ask(judge, folder, spec, task, predictions, range(len(predictions)), notes)
        # a cascade: the judge sees what the rule did not find right
        rule = Scorer(evaluator(spec["rule_evaluator"]), str, scorer.metric)
        found = by_rule(task, rule, predictions)
        asked = [index for index, value in enumerate(found) if value < 1]
        said = _ask(judge, folder, spec["llm_evaluator"], task, predictions, asked, notes)
        for index, value in zip(asked, said, strict=True):
            found[index] = max(found[index], value)
        return found

    return judged


def question(spec: Spec, item: Item, prediction: Any) -> list[dict[str, str]]:
    """What the judge is asked about one prediction.

    The template is filled in column by column, the prediction last: braces in it stay as they are.
    """
    row = item.get("row") or {}
    gold = item.get("reference", item["answer"])
    entry = {"obj_gold": gold, "reference": gold, **row, "prediction": prediction}
    kind = named("opencompass.openicl.icl_prompt_template.PromptTemplate")
    template = copy.deepcopy(spec["prompt_template"]["template"])
    parts = kind(template=template).generate_item(entry)
    if isinstance(parts, str):
        return [{"role": "user", "content": parts}]
    return [
        {"role": _ROLES[part["role"]], "content": part["prompt"]}
        for part in parts
        if isinstance(part, dict) and "prompt" in part
    ]


def _ask(
    judge: LLM,
    folder: Path,
    spec: Spec,
    task: Task,
    predictions: list[Any],
    indices: Sequence[int],
    notes: list[llm.Reply],
) -> list[float]:
    conversations = [question(spec, task.items[index], predictions[index]) for index in indices]
    keys = [key_of(turns, 0) for turns in conversations]
    with store(folder, {"judge": identity(judge), "base_url": judge.base_url}) as replies:
        found = kept(replies, keys)
        missing = [number for number, key in enumerate(keys) if key not in found]

        def on_reply(number: int, reply: llm.Reply) -> None:
            key = keys[missing[number]]
            replies.put(key, reply)
            found[key] = reply

        if missing:
            print(f"asking the judge {judge.model} about {len(missing)} answers to {task.name}")
            asked = [conversations[number] for number in missing]
            with counted(replies, set(keys)):
                llm.ask(judge, asked, _OPTIONS, on_reply=on_reply)
    notes.extend(found[key] for key in keys)
    read = _reader(spec)
    said: list[dict[str, object]] = [
        {"prediction": found[key].text, "gold": task.golds[index]}
        for key, index in zip(keys, indices, strict=True)
    ]
    scored = [read([one]) for one in said]
    if said and abs(math.fsum(scored) / len(scored) - read(said)) > 1e-6:
        raise PawlError(
            f"the judged items of {task.name} do not add up to the metric",
            where="benchmark.suites",
            fix="choose another evaluator",
        )
    return scored


def _reader(spec: Spec) -> Callable[[list[dict[str, object]]], float]:
    """OpenCompass's reading of the judge's replies: the share of them that say right."""
    usual = {"type": "opencompass.datasets.generic.generic_llmjudge_postprocess"}
    post = spec.get("dict_postprocessor") or usual
    function = named(post["type"])
    arguments = {key: value for key, value in post.items() if key != "type"}

    def read(said: list[dict[str, object]]) -> float:
        numbered = {str(number): dict(one) for number, one in enumerate(said)}
        result = function(numbered, "", **arguments)
        return float(result["accuracy"]) / 100

    return read
