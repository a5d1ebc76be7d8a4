"""`make ui`, the second of the README's two commands, as a newcomer runs it. The first, `make run`,
is run in tests/e2e.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from tests.conftest import ROOT, copy_repository

pytestmark = pytest.mark.e2e


def workers(parent: int) -> int:
    """Python processes below one process."""
    import psutil

    return sum(
        "python" in child.name() or "uvicorn" in child.name()
        for child in psutil.Process(parent).children(recursive=True)
    )


def test_make_ui_serves_mlflow(tmp_path):
    folder = copy_repository(tmp_path / "clone")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(tmp_path / "ui.log", "wb") as log:
        ui = subprocess.Popen(
            ["make", "ui", f"PORT={port}"],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline, page = time.time() + 180, b""
        while b"MLflow" not in page and time.time() < deadline:
            assert ui.poll() is None, (tmp_path / "ui.log").read_text()
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read()
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        assert b"MLflow" in page, (tmp_path / "ui.log").read_text()
        assert (folder / "mlflow.db").exists()
        assert workers(ui.pid) <= 2, "one worker and what supervises it, no job runner"
        second = subprocess.run(
            ["make", "ui", f"PORT={port}"], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert (
            second.returncode
            and f"port {port} is taken" in second.stderr
            and f"PORT={port + 1} make ui" in second.stderr
        )
    finally:
        os.killpg(ui.pid, signal.SIGTERM)
        ui.wait(30)
