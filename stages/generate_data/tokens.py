"""The length of a conversation in tokens, as training will see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stages.common.errors import PawlError
from stages.generate_data.rows import Messages


def counter(model: Path) -> Callable[[Messages], int]:
    """Count the tokens of a conversation with the model's own tokenizer and chat template.

    Raises:
        PawlError: the model has no chat template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    if not tokenizer.chat_template:
        fix = "choose an instruct model, or put a chat_template.jinja beside it"
        raise PawlError("the base model has no chat template", where=str(model), fix=fix)

    def count(messages: Messages) -> int:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count
