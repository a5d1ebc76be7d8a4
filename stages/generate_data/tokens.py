"""The length of conversations in tokens, as training will see them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.generate_data.rows import Messages


def counter(model: Path) -> Callable[[list[Messages]], list[int]]:
    """Count the tokens of conversations with the model's own tokenizer and chat template.

    Raises:
        PawlError: the model has no chat template.
    """
    # transformers knows how the tokenizer is really built, and brings PyTorch with it (0.8 GB): a process of its own asks it and ends
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        backend, template, special = pool.submit(_described, str(model)).result()
    if not template:
        fix = "choose an instruct model, or put a chat_template.jinja beside it"
        raise PawlError("the base model has no chat template", where=str(model), fix=fix)
    if not backend:
        raise PawlError("the base model's tokenizer has no fast form", where=str(model), fix="put a tokenizer.json beside the model")
    from tokenizers import Tokenizer
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer = Tokenizer.from_str(backend)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(conversations: list[Messages]) -> list[int]:
        if not conversations:
            return []
        texts, _ = render_jinja_template(conversations, chat_template=template, add_generation_prompt=False, **special)
        return [len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return count


def _described(model: str) -> tuple[str, Any, dict[str, Any]]:
    """The tokenizer as JSON ("" where it has no fast form), its chat template, and the special tokens that a template may name."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    return backend.to_str() if backend else "", template, dict(tokenizer.special_tokens_map)
