"""The order of the checks before a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.common.schema import Launcher
from stages.train import combinations, preflight
from tests.train.rows import write_data
from tests.train.test_arguments import train


def test_the_model_is_counted_before_zero3_takes_part_in_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser switches ZeRO-3 on for the whole process, and its weights cannot be made on the
    meta device.
    """
    counted: list[Any] = []

    def parse(config: dict[str, Any], distributed: bool) -> None:
        assert counted
        raise PawlError("parsed", where="", fix="")

    monkeypatch.setattr(combinations.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(preflight, "argument_types", dict)
    monkeypatch.setattr(preflight, "meta_model", counted.append)
    monkeypatch.setattr(preflight, "parse", parse)
    launcher = Launcher(kind="torchrun", workers=2, nodes=1)
    section = train(parallel="zero3", stage="sft")
    with pytest.raises(PawlError, match="parsed"):
        preflight.check(
            section,
            launcher,
            config={"use_cpu": True},
            engine="vllm",
            data=str(write_data(tmp_path / "rows", "sft")),
            served={},
        )
