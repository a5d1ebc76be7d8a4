"""Who uses the base model gets the files that fetch_model described, or an error."""

import json
from pathlib import Path

import pytest

from stages.common.errors import PawlError
from stages.common.files import sha256_file
from stages.common.models import base_model


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    files = {"config.json": {"bytes": 2, "sha256": sha256_file(folder / "config.json")}}
    (tmp_path / "models" / "base.json").write_text(json.dumps({"path": "models/base", "files": files}))
    return tmp_path


def test_an_untouched_model_is_given(root: Path) -> None:
    described, folder = base_model(root)
    assert folder == root / "models" / "base"
    assert list(described["files"]) == ["config.json"]


@pytest.mark.parametrize("content", ["{ }", "[]", None])
def test_a_file_changed_in_place_is_refused(root: Path, content: str | None) -> None:
    path = root / "models" / "base" / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(PawlError, match="missing" if content is None else "has changed"):
        base_model(root)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"path": "models/base"}'])
def test_a_broken_description_is_refused(root: Path, content: str) -> None:
    (root / "models" / "base.json").write_text(content)
    with pytest.raises(PawlError):
        base_model(root)


def test_a_missing_description_says_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="missing") as error:
        base_model(tmp_path)
    assert "dvc repro" in error.value.fix
