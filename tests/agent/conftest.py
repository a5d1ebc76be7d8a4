"""Throwaway repositories: this conf/, the ground floor and the agent, with a toy pipeline in real
git and real DVC.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from agent.run import settings
from tests.agent.toy_repo import Repo, fresh_repository


@pytest.fixture(autouse=True, scope="session")
def composed_once() -> Iterator[None]:
    """Each composition of this conf/ takes a third of a second, and most tests here begin with the
    same one.
    """
    real = settings.compose
    held = cache(lambda *overrides: real(overrides))

    def compose(overrides: Sequence[str] = ()) -> str:
        return held(*overrides)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "compose", compose)
        yield


@pytest.fixture(scope="session")
def _fresh(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return fresh_repository(tmp_path_factory.mktemp("fresh") / "repo")


@pytest.fixture(scope="session")
def _started(_fresh: Repo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Repo, str]:
    repo = Repo(tmp_path_factory.mktemp("started") / "repo")
    shutil.copytree(_fresh.root, repo.root)
    done = repo.agent("try", "train.learning_rate=5e-4", "--why", "a smaller step learns more")
    assert done.returncode == 0, done.stdout + done.stderr
    return repo, done.stdout


@pytest.fixture
def fresh(_fresh: Repo, tmp_path: Path) -> Repo:
    """A repository without experiments, nothing run yet."""
    shutil.copytree(_fresh.root, tmp_path / "repo")
    return Repo(tmp_path / "repo")


@pytest.fixture
def started(_started: tuple[Repo, str], tmp_path: Path) -> Repo:
    """A repository with the starting point, 0001, and 0002, kept: learning rate 5e-4."""
    shutil.copytree(_started[0].root, tmp_path / "repo")
    return Repo(tmp_path / "repo")
