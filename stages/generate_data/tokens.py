"""The length of a conversation in tokens, as training will see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.generate_data.rows import Messages


def counter(model: Path, template: str) -> Callable[[Messages], int]:
    """Count with the model's own tokenizer and its chat template, or with LLaMA-Factory's template of that name.

    Raises:
        PawlError: the model has no chat template and none is named, or LLaMA-Factory has no such template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    if template:
        return _with_llamafactory(tokenizer, template)
    if not tokenizer.chat_template:
        fix = "set train.template to one of LLaMA-Factory's templates"
        raise PawlError("the base model has no chat template", where=str(model), fix=fix)

    def count(messages: Messages) -> int:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count


def _with_llamafactory(tokenizer: Any, template: str) -> Callable[[Messages], int]:
    from llamafactory.data.template import TEMPLATES, get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments

    if template not in TEMPLATES:
        raise PawlError(
            f"LLaMA-Factory has no template {template!r}", where="train.template", fix="leave it empty for the model's own chat template"
        )
    rendered = get_template_and_fix_tokenizer(tokenizer, DataArguments(template=template))

    def count(messages: Messages) -> int:
        system = messages[0]["content"] if messages[0]["role"] == "system" else None
        turns = messages[1:] if system is not None else messages
        return sum(len(asked) + len(answered) for asked, answered in rendered.encode_multiturn(tokenizer, turns, system))

    return count
