"""On each of eight machines Pawl starts and says what tests/golden/gpu shows. If a change is meant:
python -m tests.golden_gpu.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.common.files import read_json
from tests import golden_gpu
from tests.gpu_machines import MACHINES


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_what_trains_and_serves_on_a_machine_is_what_its_file_shows(
    name: str, tmp_path: Path
) -> None:
    shown = read_json(golden_gpu.file(name))
    for part, found in golden_gpu.commands(name, tmp_path / "folder").items():
        assert found == shown[part], f"{name}: {part}; if that is meant: python -m tests.golden_gpu"


@pytest.mark.e2e
def test_what_the_preflight_says_on_a_machine_is_what_its_file_shows() -> None:
    """With eight GPUs in sight LLaMA-Factory refuses a single process, so the default is checked
    with the one that it will get.
    """
    found = golden_gpu.all_checks()
    assert found == {name: read_json(golden_gpu.file(name))["check"] for name in MACHINES}
    assert (
        found["8 x 80 GB"]["local"]["processes"] == 1
        and found["8 x 80 GB"]["torchrun"]["processes"] == 8
    )


def test_every_machine_has_a_file_and_every_file_a_machine() -> None:
    assert {golden_gpu.file(name) for name in MACHINES} == set(golden_gpu.FOLDER.glob("*.json"))
