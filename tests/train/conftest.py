"""A repository with a base and rows, in which the stage trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conftest import copy_repository, run_in
from tests.train.rows import write_data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke-sized copy of the repository with base and rows."""
    folder = copy_repository(tmp_path_factory.mktemp("stage"), "smoke")
    run_in(folder, "dvc", "init", "-f", "-q")
    run_in(folder, "dvc", "repro", "-q", "fetch_model")
    write_data(folder / "data/train", "sft")
    lock = yaml.safe_load((folder / "dvc.lock").read_text())
    del lock["stages"]["generate_data"]  # which did not make these rows
    (folder / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))
    return folder
