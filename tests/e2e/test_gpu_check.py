"""gpu-check's own commands, rehearsed on the CPU with a tiny random model: a check that is itself
wrong would fail on a good GPU.
"""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT, run_in

pytestmark = pytest.mark.e2e

PARTS = ("1 ", "2 serve", "batch invariance on", "memory: LoRA, checkpointing", "5 ", "6 ")
"""Those that no other test runs with real processes: those of several processes and of --check have
tests of their own.
"""


def test_the_checks_of_a_gpu_pass_where_there_is_none() -> None:
    only = [word for part in PARTS for word in ("--only", part)]
    done = run_in(
        ROOT,
        sys.executable,
        "-m",
        "tests.gpu_check",
        "--rehearse",
        *only,
        env={"OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == len(PARTS) and all("| ok |" in line for line in lines), done.stdout
    assert "REHEARSAL" in done.stdout and not (ROOT / ".pawl/gpu-check/pawl").exists()
