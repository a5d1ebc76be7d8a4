"""Throwaway repositories: this conf/, the ground floor and the agent, with a toy pipeline in real git and real DVC."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.agent.toy_repo import Repo

SOURCE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def _fresh(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    repo = Repo(tmp_path_factory.mktemp("fresh") / "repo")
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in ("conf", "agent", "stages/common", "prompts/agent"):
        shutil.copytree(SOURCE / name, repo.root / name, ignore=without_caches)
    for name in (".gitignore", ".dvc/config", ".dvc/.gitignore", "stages/__init__.py"):
        (repo.root / name).parent.mkdir(exist_ok=True)
        shutil.copy(SOURCE / name, repo.root / name)
    shutil.copy(SOURCE / "tests/agent/toy_pipeline.py", repo.root / "stages/toy.py")
    shutil.copy(SOURCE / "tests/agent/toy_dvc.yaml", repo.root / "dvc.yaml")
    assert repo.run(sys.executable, "-m", "stages.common.config").returncode == 0
    repo.git("init", "-q", "-b", "main")
    repo.git("add", ".")
    repo.git("commit", "-qm", "start")
    return repo


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
