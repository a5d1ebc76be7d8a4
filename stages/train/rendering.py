"""What training shows the model against what serving shows it, token by token: a difference costs
points and raises no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.common.errors import PawlError
from stages.train.known import refuse

_STAY = {"user", "assistant"}
_PROBES: list[dict[str, Any]] = [
    {
        "_prompt": [{"role": "user", "content": "What is 12 + 7?"}],
        "_response": [{"role": "assistant", "content": "19"}],
        "_system": "",
    },
    {
        "_prompt": [{"role": "user", "content": " two\nlines "}],
        "_response": [{"role": "assistant", "content": "a, b"}],
        "_system": "",
    },
]
Turn = tuple[int, list[int], list[int]]
"""How many messages the prompt holds, its tokens, and those of the answer."""


@dataclass(frozen=True)
class Trained:
    """How LLaMA-Factory renders rows. `several`: every answer of a row is learnt (stage sft);
    `mask_history`: but the last one is not.
    """

    template: Any
    tokenizer: Any
    several: bool = True
    mask_history: bool = False

    def turns(self, messages: list[dict[str, str]], system: str) -> Iterator[Turn]:
        """The answers that are learnt, each behind the prompt that it is learnt behind: the calls
        that the data processors make.
        """
        if not self.several:
            prompt, answer = self.template.encode_oneturn(
                self.tokenizer, messages, system or None, None
            )
            yield len(messages) - 1, prompt, answer
            return
        discard = self.mask_history and not self.template.preserve_thinking
        before: list[int] = []
        for number, (asked, answer) in enumerate(
            self.template.encode_multiturn(self.tokenizer, messages, system or None, None, discard)
        ):
            if not self.mask_history or 2 * number + 2 == len(messages):
                yield 2 * number + 1, before + asked, answer
            before = before + asked + answer


@dataclass(frozen=True)
class Served:
    """How an engine renders a conversation. `arguments`: of the chat template, as evaluate.template
    gives them to each request.
    """

    tokenizer: Any
    arguments: dict[str, Any] = field(default_factory=dict)

    def ids(self, messages: list[dict[str, str]], *, ask: bool) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=ask, tokenize=False, **self.arguments
        )
        # as the engines do: the template writes its own
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def check_template(
    trained: Trained,
    served: Served,
    rows: Sequence[tuple[str, dict[str, Any]]],
    named: str,
    ends: set[int],
) -> None:
    """Compare prompts and answers of `rows` and of two probes.

    Args:
        rows: where each stands, and the row in LLaMA-Factory's aligned form.
        named: train.template.
        ends: ids that end a generation.

    Raises:
        PawlError: no chat template, or one that refuses a row; the first token that differs; an
            answer without a token that ends it.
    """
    if not served.tokenizer.chat_template:
        fix = (
            "choose an instruct model, or give the base a chat_template.jinja that renders what"
            " train.template does"
        )
        raise refuse(
            "the tokenizer has no chat template, so the fine-tuned model could not be asked",
            "train.template",
            fix,
        )
    for where, row in [*(("a plain question", probe) for probe in _PROBES), *rows]:
        # of preferences both answers, of thumbs the one that is there: with another answer a
        # template may render another prompt
        for response in row["_response"]:
            _check_answer(trained, served, where, row, response, named, ends)


def _check_answer(
    trained: Trained,
    served: Served,
    where: str,
    row: dict[str, Any],
    response: dict[str, str],
    named: str,
    ends: set[int],
) -> None:
    from jinja2 import TemplateError

    messages = [*row["_prompt"], response]
    if not {message["role"] for message in messages} <= _STAY or not response["content"]:
        return  # tools are rendered by each side's own rules
    system = [{"role": "system", "content": row["_system"]}] if row["_system"] else []
    for count, prompt, answer in trained.turns(messages, row["_system"]):
        try:
            wanted = served.ids([*system, *messages[:count]], ask=True)
            whole = served.ids([*system, *messages[: count + 1]], ask=False)
        except TemplateError as error:
            raise refused_by_template(error, where) from None
        _compare(trained, served, where, (prompt, answer), wanted, named)
        if whole[: len(wanted)] == wanted:
            learnt = (prompt + answer)[len(wanted) :]
            _differ(
                _until(learnt, ends),
                _until(whole[len(wanted) :], ends),
                served,
                f"answer ({where})",
                named,
                trained,
            )
        elif messages[count]["content"].strip() not in served.tokenizer.decode(answer):
            # a template that drops thoughts of past answers
            raise refuse(
                f"the answer that is trained is not that of {where}",
                f"train.template ({named or 'empty'})",
                _fix(named, served),
            )
        if not ends & set(answer):
            fix = (
                "set eos_token in the base's tokenizer_config.json and generation_config.json to"
                " the token that closes a turn"
            )
            raise refuse("no token at the end of a trained answer ends a generation", "model", fix)


def refused_by_template(error: Exception, where: str) -> PawlError:
    """The template's own error, about a row or about what LLaMA-Factory asks of it."""
    fix = (
        "take such turns out of the rows, or choose a base whose template takes them; if only the"
        " trainer asks for them, name LLaMA-Factory's template of this model in train.template"
    )
    said = " ".join(str(error).split())[:300]
    return refuse(f"the model's chat template refuses {where}: {said}", "train.template", fix)


def _compare(
    trained: Trained,
    served: Served,
    where: str,
    learnt: tuple[list[int], list[int]],
    wanted: list[int],
    named: str,
) -> None:
    """The prompts must be equal; what a served prompt ends with may also be learnt as the beginning
    of the answer.
    """
    prompt, answer = learnt
    begun = prompt == wanted[: len(prompt)] and (prompt + answer)[: len(wanted)] == wanted
    if not begun:
        _differ(prompt, wanted, served, f"prompt ({where})", named, trained)


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """Up to and with the first token that ends a generation: what comes after it is never
    generated.
    """
    return ids[: next((number + 1 for number, token in enumerate(ids) if token in ends), len(ids))]


def _differ(
    learnt: list[int], wanted: list[int], served: Served, what: str, named: str, trained: Trained
) -> None:
    if learnt == wanted:
        return
    at = next(
        (
            number
            for number, pair in enumerate(zip(learnt, wanted, strict=False))
            if pair[0] != pair[1]
        ),
        min(len(learnt), len(wanted)),
    )
    left, right = (_show(served.tokenizer, ids, at) for ids in (learnt, wanted))
    kind = what.partition(" ")[0]
    found = (
        f"the {kind} that is trained differs from the {what} that is served at token {at}: {left}"
        f" against {right}"
    )
    raise refuse(found, f"train.template ({named or 'empty'})", _fix(named, served, trained))


def _fix(named: str, served: Served, trained: Trained | None = None) -> str:
    fix = "leave train.template empty: the model's own chat template is then trained with"
    if not named:
        fix = "name its template in train.template"
    if served.arguments:
        fix += (
            f"; it is served with evaluate.template {served.arguments}, which training must"
            " render too"
        )
    if trained and trained.several and not trained.mask_history:
        fix += (
            "; if only rows of several turns differ: train.extra.mask_history=true learns the last"
            " answer alone"
        )
    return fix


def _show(tokenizer: Any, ids: list[int], at: int) -> str:
    return f"{tokenizer.decode(ids[at : at + 1])!r} (id {ids[at]})" if at < len(ids) else "the end"
