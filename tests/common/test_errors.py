"""Every command starts the same way, also in a clone that a queue worker made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stages.common.files import ROOT


def test_a_key_in_env_is_found_from_a_clone_and_what_is_nearer_comes_first(tmp_path: Path) -> None:
    main, clone = tmp_path / "main", tmp_path / "clone"
    main.mkdir(), clone.mkdir()
    (main / ".env").write_text("A_KEY=main\nB_KEY=main\nC_KEY=main\n")
    (clone / ".env").write_text("B_KEY=clone\n")
    code = (
        "import os\nfrom stages.common.errors import run_main\nrun_main('x', lambda: print(*map(os.getenv, ('A_KEY', 'B_KEY', 'C_KEY'))))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DVC_ROOT": str(main), "C_KEY": "environment"}
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["main", "clone", "environment"]
