"""The base model."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.schema.rules import checks, choice, need_set


@dataclass
class Model:
    """The base model. `source` says which of the keys below it are read."""

    name: str = MISSING
    source: str = choice("package", "hub", "path", "random")
    dtype: str = choice("bfloat16", "float16", "float32")
    package: str = ""
    sha256: str = ""
    file: str = ""
    repo: str = ""
    revision: str = ""
    path: str = ""
    licence: str = ""


@checks(Model)
def check_model(model: Model, key: str) -> None:
    need_set(
        model, key, "source",
        {"package": ("package", "sha256", "file"), "hub": ("repo", "revision"), "path": ("path",), "random": ()}[model.source],
    )  # fmt: skip
