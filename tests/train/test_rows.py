"""The rows are looked at before a GPU is: there are some, of the kind that the stage learns from,
and the longest is known.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import TemplateError
from omegaconf import OmegaConf

from stages.common.errors import PawlError
from stages.common.schema import Data
from stages.train import rows as rows_module
from stages.train.known import refuse
from stages.train.preflight import check_thoughts, short_training, steps
from stages.train.rendering import Served, Trained, check_template
from stages.train.rows import check_stage, count_rows, has_eval, read_rows, write_longest
from tests.train.rows import write_data
from tests.train.test_arguments import config, train

DATA = Data(
    name="d", seed=3, sources={}, max_rows=0, ngram=13, max_contamination=0.5, max_bad_fraction=0.0
)


@pytest.mark.parametrize("rows", [None, "", "\n\n"])
def test_no_training_rows_is_refused_before_the_trainer_starts(
    tmp_path: Path, rows: str | None
) -> None:
    (tmp_path / "dataset_info.json").write_text('{"train": {"file_name": "train.jsonl"}}')
    if rows is not None:
        (tmp_path / "train.jsonl").write_text(rows)
    with pytest.raises(PawlError, match="no training rows") as refused:
        read_rows(tmp_path)
    assert refused.value.code == 3


def test_a_data_folder_without_our_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text('{"mine": {"file_name": "train.jsonl"}}')
    with pytest.raises(PawlError, match="names no dataset 'train'"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("sft", "dpo"),
        ("sft", "kto"),
        ("dpo", "sft"),
        ("dpo", "kto"),
        ("kto", "sft"),
        ("kto", "rm"),
        ("sft", "pt"),
        ("dpo", "pt"),
        ("pt", "sft"),
    ],
)
def test_rows_of_another_kind_are_refused(tmp_path: Path, kind: str, stage: str) -> None:
    rows = read_rows(write_data(tmp_path, kind))
    check_stage(rows, train(stage=kind))
    with pytest.raises(PawlError, match=f"train.stage is {stage}") as refused:
        check_stage(rows, train(stage=stage))
    assert "data/train holds" in refused.value.what


def test_the_longest_rows_are_found_wherever_they_are(tmp_path: Path) -> None:
    write_data(tmp_path, "sft", rows=500, held_out=3)
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    lines[321] = lines[321].replace("Count", "Count" + " very" * 50 + " slowly")
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    rows = read_rows(tmp_path)
    assert (
        (rows.train, rows.held_out) == (500, 3)
        and "very very" in rows.longest[0]
        and len(rows.longest) == 64
    )
    write_longest(tmp_path / "longest", rows, [3, 0], count=5)
    written = (tmp_path / "longest/rows.jsonl").read_text().splitlines()
    assert (
        len(written) == 5
        and written[0] == rows.longest[3].strip()
        and written[1] == written[3] == rows.longest[0].strip()
    )
    assert (
        json.loads((tmp_path / "longest/dataset_info.json").read_text())["train"]["file_name"]
        == "rows.jsonl"
    )


def test_held_out_rows_are_evaluated_only_where_there_are_some(tmp_path: Path) -> None:
    assert not has_eval(tmp_path)
    assert not has_eval(write_data(tmp_path / "a", "sft"))
    assert has_eval(write_data(tmp_path / "b", "sft", held_out=2))


class Words:
    """A tokenizer of words: enough for what the comparison looks at."""

    chat_template: str | None = "x"

    def __init__(self, user: str = "<u> {} </u> <a>", end: str = "</a>") -> None:
        self.user, self.end, self.words = user, end, [""]

    def ids(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": self.ids(text)}

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        add_generation_prompt: bool,
        tokenize: bool,
        mode: str = "",
    ) -> str:
        text = [f"<m> {mode}"] if mode else []
        text += [f"<s> {m['content']} </s>" for m in messages if m["role"] == "system"]
        turns = [m for m in messages if m["role"] != "system"]
        text += [
            self.user.format(m["content"]) if m["role"] == "user" else f"{m['content']} {self.end}"
            for m in turns
        ]
        return " ".join(text)

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[number] for number in ids)


def trained(
    served: Words, user: str = "<u> {} </u> <a>", end: str = "</a>", system: str = ""
) -> Any:
    def encode_oneturn(
        tokenizer: Any, messages: list[dict[str, str]], given: str | None, tools: None
    ) -> tuple[list[int], list[int]]:
        asked = [{"role": "system", "content": given or system}] if given or system else []
        prompt = Words(user, end).apply_chat_template([*asked, *messages[:-1]], True, False)
        return served.ids(prompt), served.ids(f"{messages[-1]['content']} {end}")

    return SimpleNamespace(encode_oneturn=encode_oneturn)


def check(
    template: Any,
    served: Words,
    rows: list[dict[str, Any]],
    named: str,
    ends: set[int],
    **arguments: str,
) -> None:
    """As for the stages that learn the last answer alone."""
    check_template(
        Trained(template, None, several=False),
        Served(served, arguments),
        [("a row", row) for row in rows],
        named,
        ends,
    )


ROW = {
    "_prompt": [{"role": "user", "content": "hello you"}],
    "_response": [{"role": "assistant", "content": "hi"}],
    "_system": "be short",
}


def test_a_template_that_renders_what_is_served_passes() -> None:
    served = Words()
    check(trained(served), served, [ROW], "", {served.ids("</a>")[0]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user": "<u> {} </u> <b>"}, ["the prompt", "'<b>'", "'<a>'"]),
        ({"system": "You are helpful."}, ["the prompt", "at token 0", "'<s>'"]),
        ({"end": "</b>"}, ["the answer", "'</b>'"]),
        ({"user": "<u> {} </u>"}, ["the prompt", "the end against"]),
    ],
)
def test_the_first_token_that_differs_is_shown(changes: dict[str, str], words: list[str]) -> None:
    served = Words()
    with pytest.raises(PawlError) as refused:
        check(trained(served, **changes), served, [ROW], "mine", {served.ids("</a>")[0]})
    assert (
        refused.value.where == "train.template (mine)"
        and "leave train.template empty" in refused.value.fix
    )
    for word in words:
        assert word in refused.value.what


def answers(*contents: str) -> dict[str, Any]:
    return ROW | {"_response": [{"role": "assistant", "content": content} for content in contents]}


@pytest.mark.parametrize(
    "row", [answers("hi", "odd"), answers("odd", "hi"), answers("", "odd"), answers("odd", "")]
)
@pytest.mark.parametrize("part", ["prompt", "answer"])
def test_chosen_and_rejected_answers_and_the_prompt_of_each_are_compared(
    row: dict[str, Any], part: str
) -> None:
    """`odd` is an answer that the trainer's template renders in its own way: of a pair either one,
    of thumbs the only one there is.
    """
    served = Words()
    plain = trained(served).encode_oneturn

    def encode_oneturn(
        tokenizer: Any, messages: list[dict[str, str]], system: str | None, tools: None
    ) -> tuple[list[int], list[int]]:
        prompt, answer = plain(tokenizer, messages, system, tools)
        more = served.ids("<think>") if messages[-1]["content"] == "odd" else []
        return (prompt + more, answer) if part == "prompt" else (prompt, more + answer)

    ends = {served.ids("</a>")[0]}
    check(SimpleNamespace(encode_oneturn=encode_oneturn), served, [answers("hi", "")], "", ends)
    with pytest.raises(PawlError, match=f"the {part} that is trained differs") as refused:
        check(SimpleNamespace(encode_oneturn=encode_oneturn), served, [row], "", ends)
    assert "'<think>'" in refused.value.what


def test_an_answer_that_never_ends_is_refused() -> None:
    served = Words()
    with pytest.raises(PawlError, match="no token at the end"):
        check(trained(served), served, [ROW], "", {10**6})


def test_a_tokenizer_without_a_chat_template_is_refused() -> None:
    served = Words()
    served.chat_template = None
    with pytest.raises(PawlError, match="no chat template"):
        check(trained(served), served, [ROW], "", {1})


def test_a_refusal_ends_with_exit_code_3() -> None:
    assert refuse("what", "key", "fix").code == 3


@pytest.mark.parametrize(
    ("changes", "rows", "processes", "expected"),
    [
        ({"max_steps": 7}, 100, 1, 7),
        ({}, 100, 1, 13),
        ({"num_train_epochs": 2.0}, 100, 2, 14),
        ({"gradient_accumulation_steps": 4}, 100, 1, 4),
    ],
)
def test_a_micro_run_is_left_out_where_the_training_is_no_longer(
    changes: dict[str, Any], rows: int, processes: int, expected: int
) -> None:
    assert steps(train(**changes), rows, processes) == expected


@pytest.mark.parametrize(
    ("made", "asked", "anew"),
    [("sft", "pt", True), ("pt", "sft", True), ("sft", "dpo", False), ("pt", "pt", False)],
)
def test_rows_are_known_to_be_made_anew_where_plain_text_takes_turns_with_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, asked: str, anew: bool
) -> None:
    """Else --check would refuse what the next repro would mend."""
    monkeypatch.setattr(rows_module, "ROOT", tmp_path)
    data = OmegaConf.to_container(OmegaConf.structured(DATA))
    params = {"data": data, "train.cutoff_len": train().cutoff_len, "train.stage": made}
    lock = {"stages": {"generate_data": {"params": {"params.yaml": params}}}}
    (tmp_path / "dvc.lock").write_text(json.dumps(lock))
    assert rows_module.rebuilt(DATA, train(stage=asked)) is anew
    assert rows_module.rebuilt(DATA, train(stage=asked, cutoff_len=train().cutoff_len + 1))


@pytest.mark.parametrize(
    ("rows", "logged"), [(1, 1), (3, 1), (7, 1), (32, 4), (41, 5), (10_000, 5)]
)
def test_a_short_training_logs_its_loss(rows: int, logged: int) -> None:
    assert config(rows=rows)["logging_steps"] == logged
    assert config(train(max_steps=4), rows=10_000)["logging_steps"] == 4


def test_warm_up_steps_are_not_overruled_by_the_ratio() -> None:
    """The trainer takes warmup_ratio where both are given."""
    told = config(train(extra={"warmup_steps": 20}))
    assert told["warmup_steps"] == 20 and "warmup_ratio" not in told


@pytest.mark.parametrize(
    ("changes", "rows", "words"),
    [
        ({}, 400, []),
        (
            {},
            1,
            [
                "1 rows are fewer than the 8",
                "takes 1 steps and the training has 1",
                "learning rate of 0",
            ],
        ),
        ({"warmup_ratio": 0.0}, 8, []),
        ({"warmup_ratio": 1.0}, 400, ["takes for one step"]),
        (
            {"extra": {"warmup_steps": 500}},
            16,
            ["(train.extra.warmup_steps) takes 500 steps and the training has 2"],
        ),
        (
            {"gradient_accumulation_steps": 64, "warmup_ratio": 0.0},
            32,
            ["32 rows are fewer than the 512"],
        ),
        ({"eval_steps": 100.0}, 400, ["train.eval_steps is 100 and the training has 50 steps"]),
    ],
)
def test_settings_that_a_short_training_never_reaches_are_told(
    tmp_path: Path, changes: dict[str, Any], rows: int, words: list[str]
) -> None:
    found = read_rows(write_data(tmp_path, "sft", rows=rows, held_out=2))
    warnings = short_training(
        train(**changes), found, steps(train(**changes), count_rows(tmp_path), 1)
    )
    assert len(warnings) == len(words), warnings
    for warning, word in zip(warnings, words, strict=True):
        assert word in warning


def test_rows_with_thoughts_are_refused_where_evaluation_would_score_the_thoughts(
    tmp_path: Path,
) -> None:
    rows = read_rows(write_data(tmp_path, "sft", answer="<think>\none and one\n</think>\n\ntwo"))
    check_thoughts(rows, "</think>")
    check_thoughts(read_rows(write_data(tmp_path / "plain", "sft")), "")
    with pytest.raises(PawlError, match="score as part of the answer") as refused:
        check_thoughts(rows, "")
    assert "evaluate.think_open" in refused.value.fix and refused.value.code == 3


class Thinks(Words):
    """Serves an empty thought in the last answer alone, and refuses system turns."""

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        add_generation_prompt: bool,
        tokenize: bool,
        mode: str = "",
    ) -> str:
        if messages[0]["role"] == "system":
            raise TemplateError("System role not supported")
        last = (
            []
            if add_generation_prompt
            else [{"role": "assistant", "content": f"<think> </think> {messages[-1]['content']}"}]
        )
        kept = messages if add_generation_prompt else messages[:-1]
        return super().apply_chat_template([*kept, *last], add_generation_prompt, tokenize, mode)


def learnt(served: Words) -> Any:
    """As LLaMA-Factory's template of a thinking model: every answer has a thought, unless only the
    last one is learnt.
    """

    def encode_multiturn(
        tokenizer: Any,
        messages: list[dict[str, str]],
        system: str | None,
        tools: None,
        discard: bool,
    ) -> Any:
        pairs = []
        for number in range(0, len(messages), 2):
            thought = "" if discard and number + 2 < len(messages) else "<think> </think>"
            asked = served.ids(f"<u> {messages[number]['content']} </u> <a>")
            pairs.append((asked, served.ids(f"{thought} {messages[number + 1]['content']} </a>")))
        return pairs

    return SimpleNamespace(encode_multiturn=encode_multiturn, preserve_thinking=False)


TWO_TURNS = {
    "_prompt": [
        {"role": role, "content": f"{role} says"} for role in ("user", "assistant", "user")
    ],
    "_response": [{"role": "assistant", "content": "end"}],
    "_system": "",
}


def test_each_turn_is_compared_behind_the_prompt_that_the_trainer_gives_it() -> None:
    served = Thinks()
    ends = {served.ids("</a>")[0]}
    check_template(Trained(learnt(served), None), Served(served), [], "", ends)
    with pytest.raises(PawlError, match="prompt") as refused:
        check_template(
            Trained(learnt(served), None), Served(served), [("row 3", TWO_TURNS)], "", ends
        )
    assert (
        "'<think>'" in refused.value.what
        and "row 3" in refused.value.what
        and "mask_history" in refused.value.fix
    )
    check_template(
        Trained(learnt(served), None, mask_history=True),
        Served(served),
        [("row 3", TWO_TURNS)],
        "",
        ends,
    )


def test_the_arguments_that_the_template_is_served_with_are_compared() -> None:
    served = Words()
    ends = {served.ids("</a>")[0]}
    with pytest.raises(PawlError, match="at token 0") as refused:
        check(trained(served), served, [], "", ends, mode="no_think")
    assert "evaluate.template {'mode': 'no_think'}" in refused.value.fix


def test_a_row_that_the_chat_template_refuses_is_named() -> None:
    served = Thinks()
    with pytest.raises(PawlError, match="System role not supported") as refused:
        check_template(
            Trained(learnt(served), None),
            Served(served),
            [("row 7 of data/train", ROW)],
            "",
            {served.ids("</a>")[0]},
        )
    assert (
        "row 7 of data/train" in refused.value.what
        and refused.value.where == "train.template"
        and refused.value.code == 3
    )
