"""The base model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any

from stages.common.errors import PawlError
from stages.common.schema.rules import aside, checks, choice, need_set, number


@dataclass
class Inference:
    """How the model's makers say that it is to be asked; `evaluate=recommended` asks it so.

    Attributes:
        context: tokens of prompt and answer that it was made for.
        think_open, think_close, think_begun, template: see Evaluate; they hold whatever the
            sampling.
    """

    temperature: float = number(0.0, low=0, high=2)
    top_p: float = number(1.0, above=0, high=1)
    top_k: int = number(0, low=0)
    max_output_tokens: int = number(1024, low=1, unit="tokens")
    context: int = number(2048, low=16, unit="tokens")
    think_open: str = ""
    think_close: str = ""
    think_begun: bool = False
    template: dict[str, Any] = field(default_factory=dict)


@dataclass
class Model:
    """The base model. `source` says which of the keys below it are read.

    Attributes:
        date: what a chat template writes that would write today's date, so that a question is the
            same prompt tomorrow, in training too.
    """

    name: str = aside()
    source: str = choice("package", "hub", "path", "random")
    dtype: str = choice("bfloat16", "float16", "float32")
    package: str = ""
    sha256: str = ""
    file: str = ""
    repo: str = ""
    revision: str = ""
    path: str = ""
    licence: str = aside("")
    date: str = "2024-07-26"
    inference: Inference = field(default_factory=Inference)


@checks(Model)
def check_model(model: Model, key: str) -> None:
    try:
        date.fromisoformat(model.date)
    except ValueError:
        raise PawlError(
            f"{key}.date is {model.date!r}", where=f"{key}.date", fix="write it as 2024-07-26"
        ) from None
    need_set(
        model,
        key,
        "source",
        {
            "package": ("package", "sha256", "file"),
            "hub": ("repo", "revision"),
            "path": ("path",),
            "random": (),
        }[model.source],
    )
