"""The length of conversations and texts in tokens, as training will see them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.generate_data.rows import Seen


class TemplateRefusedError(PawlError):
    """The model's chat template refuses conversations; `numbers`: which ones."""

    def __init__(self, numbers: list[int], said: str) -> None:
        self.numbers, self.said = numbers, " ".join(said.split())[:300]
        fix = (
            "take such turns out of the rows (a system turn, two turns of one role), or choose a"
            " base whose template takes them"
        )
        super().__init__(
            f"the base model's chat template refuses {len(numbers)} rows: {self.said}",
            where="model",
            fix=fix,
        )


def counter(model: Path, *, plain: bool = False) -> Callable[[list[Seen]], list[int]]:
    """Count the tokens of conversations with the model's own tokenizer and chat template, and those
    of plain texts without it.

    Args:
        plain: there are no conversations.

    Raises:
        PawlError: the model has no chat template, and one is needed. What is returned raises
            TemplateRefusedError.
    """
    # transformers knows how the tokenizer is really built, and brings PyTorch with it (0.8 GB): a
    # process of its own asks it and ends
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        backend, template, special = pool.submit(_described, str(model)).result()
    if not template and not plain:
        fix = "choose an instruct model, or put a chat_template.jinja beside it"
        raise PawlError("the base model has no chat template", where=str(model), fix=fix)
    if not backend:
        raise PawlError(
            "the base model's tokenizer has no fast form",
            where=str(model),
            fix="put a tokenizer.json beside the model",
        )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(backend)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(rows: list[Seen]) -> list[int]:
        conversations = [row for row in rows if not isinstance(row, str)]
        chats = iter(_rendered(conversations, template, special))
        texts = [row if isinstance(row, str) else next(chats) for row in rows]
        return [
            len(encoding.ids)
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]

    return count


def _rendered(conversations: list[Any], template: str, special: dict[str, Any]) -> list[str]:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(chosen: list[Any]) -> list[str]:
        texts: list[str] = render_jinja_template(
            chosen, chat_template=template, add_generation_prompt=False, **special
        )[0]
        return texts

    if not conversations:
        return []
    try:
        return render(conversations)
    except TemplateError as error:
        said, refused = str(error), list[int]()
        for number, conversation in enumerate(conversations):
            try:
                render([conversation])
            except TemplateError:
                refused.append(number)
        raise TemplateRefusedError(refused, said) from None


def _described(model: str) -> tuple[str, Any, dict[str, Any]]:
    """The tokenizer as JSON ("" where it has no fast form), its chat template, and the special
    tokens that a template may name.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    return backend.to_str() if backend else "", template, dict(tokenizer.special_tokens_map)
