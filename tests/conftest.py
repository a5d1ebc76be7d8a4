"""Fixtures for every test: no hub, no telemetry, and a scratch copy of the repository to run real
stages in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages.common.doctor import missing
from tests import fake_hub, gpu_machines

ROOT = Path(__file__).resolve().parents[1]

os.environ.update(
    HF_HUB_OFFLINE="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    DVC_NO_ANALYTICS="1",
    DO_NOT_TRACK="1",
    TOKENIZERS_PARALLELISM="false",
)
# the last one: a stage that compiles its modules must not change its own dependencies
for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT", "PAWL_DEBUG", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)
# pytest then keeps the modules that it has rewritten: 6 s for each worker
sys.dont_write_bytecode = False
os.fsync = lambda file: None  # what a test writes need not outlive a loss of power

HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "scipy.stats",
    "pandas",
    "mlflow",
    "ray",
    "opencompass",
    "llamafactory",
    "optuna",
)
LOADED = pytest.StashKey[list[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Which heavy libraries collecting has loaded: every worker collects every module."""
    session.config.stash[LOADED] = [name for name in HEAVY if name in sys.modules]


@pytest.fixture
def need() -> Callable[[str], None]:
    """`need("gpu")` skips where `make doctor` says that this machine lacks it, with the doctor's
    own reason.
    """

    def check(what: str) -> None:
        if reason := missing().get(what):
            pytest.skip(reason)

    return check


def copy_repository(target: Path, experiment: str = "") -> Path:
    """A clone of the working tree (tracked and new files, not ignored ones) with one commit, and no
    experiments yet.
    """
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    for name in filter(None, names):
        source, copy = ROOT / os.fsdecode(name), target / os.fsdecode(name)
        if source.is_file() and not name.startswith(b"experiments/"):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    if experiment:
        shutil.copy(
            target / f"conf/experiment/{experiment}.yaml", target / "conf/experiment/current.yaml"
        )
    run_in(target, sys.executable, "-m", "stages.common.config")
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    run_in(target, "git", "init", "-q", "-b", "main")
    run_in(target, "git", "config", "user.name", "test")
    run_in(target, "git", "config", "user.email", "test@example.invalid")
    run_in(target, *git, "add", "-A")
    run_in(target, *git, "commit", "-qm", "start")
    return target


def run_in(
    folder: Path,
    *argv: str,
    ok: bool = True,
    timeout: float = 1200,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder` with this environment's programs first; with `ok`, a failure shows
    its output.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        argv,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": path, **(env or {})},
    )
    if ok and done.returncode:
        raise AssertionError(
            f"{' '.join(argv)}: exit"
            f" {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    return done


@pytest.fixture
def gpu_machine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> gpu_machines.Make:
    """Makes this machine one with the GPUs that it is called with."""
    return gpu_machines.install(tmp_path_factory.mktemp("gpus"), monkeypatch)


@pytest.fixture
def start_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_hub.StartHub]:
    """Starts a hub of these repositories: `start_hub({"org/name": {"config.json": b"{}"}})`."""
    yield from fake_hub.install(tmp_path, monkeypatch)
