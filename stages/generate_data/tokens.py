"""The length of conversations in tokens, as training will see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stages.common.errors import PawlError
from stages.generate_data.rows import Messages


def counter(model: Path) -> Callable[[list[Messages]], list[int]]:
    """Count the tokens of conversations with the model's own tokenizer and chat template.

    Raises:
        PawlError: the model has no chat template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    if not tokenizer.chat_template:
        fix = "choose an instruct model, or put a chat_template.jinja beside it"
        raise PawlError("the base model has no chat template", where=str(model), fix=fix)

    def count(conversations: list[Messages]) -> list[int]:
        if not conversations:
            return []
        texts = [tokenizer.apply_chat_template(messages, tokenize=False) for messages in conversations]
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]

    return count
