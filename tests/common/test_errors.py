"""Every command starts the same way, also in a clone that a queue worker made."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.common.errors import from_os_error
from stages.common.files import ROOT, write_text


def test_a_key_in_env_is_found_from_a_clone_and_what_is_nearer_comes_first(tmp_path: Path) -> None:
    main, clone = tmp_path / "main", tmp_path / "clone"
    main.mkdir(), clone.mkdir()
    (main / ".env").write_text("A_KEY=main\nB_KEY=main\nC_KEY=main\n")
    (clone / ".env").write_text("B_KEY=clone\n")
    code = (
        "import os\nfrom stages.common.errors import run_main\nrun_main('x', lambda:"
        " print(*map(os.getenv, ('A_KEY', 'B_KEY', 'C_KEY'))))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DVC_ROOT": str(main), "C_KEY": "environment"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=clone, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["main", "clone", "environment"]


def test_a_disk_without_inodes_is_told_from_a_full_one(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=4", "tmpfs", str(disk)], check=True
    )
    try:
        for name in "abc":
            (disk / name).touch()
        with pytest.raises(OSError) as refused:
            write_text(disk / "report.json", "{}")
        told = str(from_os_error(refused.value))
        assert (
            "no inodes left" in told
            and "df -i" in told
            and "disk is full" not in told
            and "report.json" in told
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_quota_that_is_used_up_is_told_from_a_full_disk(tmp_path: Path) -> None:
    told = str(
        from_os_error(
            OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path / "not/yet/there"))
        )
    )
    assert "disk quota is used up" in told and "not/yet/there" in told


FAILS = (
    "from stages.common.errors import PawlError, run_main\ndef main(): raise PawlError('it"
    " failed')\nrun_main('x', main)"
)


def test_a_stage_that_fails_in_the_users_own_tree_under_dvc_exp_run_says_how_to_come_back(
    tmp_path: Path,
) -> None:
    # a queue worker's clone is thrown away
    for root, expected in ((tmp_path, True), (tmp_path.parent, False)):
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DVC_EXP_NAME": "fit-lynx",
            "DVC_ROOT": str(root),
        }
        done = subprocess.run(
            [sys.executable, "-c", FAILS], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert (
            done.returncode == 1
            and ("git restore params.yaml dvc.lock reports && dvc checkout" in done.stderr)
            == expected
        )
