"""What training shows the model against what serving shows it, token by token: a difference costs points and raises no error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stages.train.known import refuse

_STAY = {"user", "assistant"}
_PROBES: list[dict[str, Any]] = [
    {"_prompt": [{"role": "user", "content": "What is 12 + 7?"}], "_response": [{"role": "assistant", "content": "19"}], "_system": ""},
    {"_prompt": [{"role": "user", "content": " two\nlines "}], "_response": [{"role": "assistant", "content": "a, b"}], "_system": ""},
]


def check_template(template: Any, tokenizer: Any, served: Any, rows: Sequence[dict[str, Any]], named: str, ends: set[int]) -> None:
    """Compare prompts and answers of `rows` (LLaMA-Factory's aligned form) and of two probes.

    Args:
        template, tokenizer: as LLaMA-Factory trains with them.
        served: the tokenizer as the engine loads it.
        named: train.template.
        ends: ids that end a generation.

    Raises:
        PawlError: no chat template; the first token that differs; an answer without a token that ends it.
    """
    if not served.chat_template:
        fix = "choose an instruct model, or give the base a chat_template.jinja that renders what train.template does"
        raise refuse("the tokenizer has no chat template, so the fine-tuned model could not be asked", "train.template", fix)
    for row in [*_PROBES, *rows]:
        # of preferences both answers, of thumbs the one that is there: with another answer a template may render another prompt
        for response in row["_response"]:
            _check_answer(template, tokenizer, served, row, response, named, ends)


def _check_answer(
    template: Any, tokenizer: Any, served: Any, row: dict[str, Any], response: dict[str, str], named: str, ends: set[int]
) -> None:
    messages = [*row["_prompt"], response]
    if not {message["role"] for message in messages} <= _STAY or not response["content"]:
        return  # tools are rendered by each side's own rules
    system = [{"role": "system", "content": row["_system"]}] if row["_system"] else []
    prompt, answer = template.encode_oneturn(tokenizer, messages, row["_system"] or None, None)
    wanted = _ids(served, [*system, *messages[:-1]], ask=True)
    _compare(prompt, wanted, served, "prompt", named)
    whole = _ids(served, [*system, *messages], ask=False)
    if whole[: len(wanted)] == wanted:  # a template that drops earlier thoughts renders a past answer otherwise
        _compare(_until(answer, ends), _until(whole[len(wanted) :], ends), served, "answer", named)
    if not ends & set(answer):
        fix = "set eos_token in the base's tokenizer_config.json and generation_config.json to the token that closes a turn"
        raise refuse("no token at the end of a trained answer ends a generation", "model", fix)


def _ids(served: Any, messages: list[dict[str, str]], *, ask: bool) -> list[int]:
    text = served.apply_chat_template(messages, add_generation_prompt=ask, tokenize=False)
    return list(served(text, add_special_tokens=False)["input_ids"])  # as the engines do: the template writes its own special tokens


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """Up to and with the first token that ends a generation: what comes after it is never generated."""
    return ids[: next((number + 1 for number, token in enumerate(ids) if token in ends), len(ids))]


def _compare(trained: list[int], wanted: list[int], tokenizer: Any, what: str, named: str) -> None:
    if trained == wanted:
        return
    at = next(
        (number for number, pair in enumerate(zip(trained, wanted, strict=False)) if pair[0] != pair[1]), min(len(trained), len(wanted))
    )
    left, right = (_show(tokenizer, ids, at) for ids in (trained, wanted))
    fix = (
        "leave train.template empty: the model's own chat template is then trained with" if named else "name its template in train.template"
    )
    found = f"the {what} that is trained differs from the {what} that is served at token {at}: {left} against {right}"
    raise refuse(found, f"train.template ({named or 'empty'})", fix)


def _show(tokenizer: Any, ids: list[int], at: int) -> str:
    return f"{tokenizer.decode(ids[at : at + 1])!r} (id {ids[at]})" if at < len(ids) else "the end"
