"""A throwaway repository, and what a test asks of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Repo:
    root: Path

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        author = {
            f"GIT_{who}_{what}": "tester@example.org"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return {
            **kept,
            **author,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
        }

    def run(
        self, *argv: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.root,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def agent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "agent", *arguments)

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "agent", *arguments],
            cwd=self.root,
            env={**self.env, **(env or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def state(self) -> dict[str, bytes]:
        """What a discarded experiment may not change, the pipeline's output included."""
        paths = [
            self.root / name for name in ("conf", "params.yaml", "dvc.lock", "reports", "models")
        ]
        files = [
            file
            for path in paths
            for file in ([path] if path.is_file() else path.rglob("*"))
            if file.is_file()
        ]
        return {
            str(file.relative_to(self.root)): file.read_bytes()
            for file in files
            if "__pycache__" not in file.parts
        }

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.root / "experiments").iterdir() if path.is_dir())

    def clean(self) -> bool:
        return self.git("status", "--porcelain") == ""


SOURCE = Path(__file__).resolve().parents[2]


def fresh_repository(root: Path) -> Repo:
    """This conf/, the ground floor, the agent and its prompts, with the toy pipeline, as one
    commit.
    """
    repo = Repo(root)
    for name in ("conf", "agent", "stages/common", "prompts/agent"):
        shutil.copytree(
            SOURCE / name, repo.root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
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
