"""The stages write the reports that they always wrote, to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden import HERE
from tests.golden.make import MADE, verdicts


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_a_stage_writes_the_reports_that_it_wrote(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    for name in MADE[make]:
        written, golden = (
            (folder / name).read_text(encoding="utf-8") for folder in (tmp_path, HERE)
        )
        # scipy's last digits differ between machines
        if make is verdicts and name.endswith(".json"):
            written, golden = (
                json.dumps(rounded(json.loads(text)), indent=1) for text in (written, golden)
            )
        assert written == golden, name


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
