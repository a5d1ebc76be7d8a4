"""The working tree, worked as a person would: git, dvc, and what one experiment may leave in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from agent.knowledge.history import (
    EXPERIMENTS,
    FILES,
    FOLDER_NAME,
    JOURNAL,
    LESSONS,
    LOOKS,
    Record,
    read_record,
)
from agent.run import orphans
from agent.run.progress import read_run
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.process import dvc_processes, forget_dead_dvc, locked, run, tail
from stages.common.text import plain

STATE = ("conf/experiment/current.yaml", "params.yaml", "dvc.lock", "reports")
"""What an experiment changes: committed when it is kept, put back to HEAD when it is not."""
_GENERATED = (str(JOURNAL.relative_to(ROOT)), str(LESSONS.relative_to(ROOT)))
_LOOKS = str(LOOKS.relative_to(ROOT))
PAGE = "reports/index.html"
"""Built from whatever is in the tree, so that a stale one is nobody's change."""
_PIPELINE = ("conf/", "stages/", "prompts/", "experiments/", "dvc.yaml")
_DVC = [sys.executable, "-m", "dvc"]


def environment() -> dict[str, str]:
    """This one's, with this Python's programs first, and without what would point git at another
    repository.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {
        **kept,
        "PATH": path,
        "DVC_NO_ANALYTICS": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C.UTF-8",
        orphans.MARK: str(ROOT),
    }


def call(
    argv: Sequence[str], *, stdin: str = "", check: bool = True, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository (124: longer than `timeout_s`), in a session of its own:
    Ctrl-C reaches us, not half a commit.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env=environment(),
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(argv, 124, "", f"took longer than {timeout_s:g} s")
    except FileNotFoundError:
        raise PawlError(f"program not found: {argv[0]}", fix="install it, then run again") from None
    if check and done.returncode:
        shown = " ".join(argv[:3]).replace(sys.executable, "python")
        raise PawlError(
            f"'{plain(shown, 80)}' failed: {plain(done.stderr or done.stdout, 600)}",
            where=str(ROOT),
            fix="mend that, then run again",
        )
    return done


def git(*arguments: str, stdin: str = "", check: bool = True) -> str:
    return call(["git", *arguments], stdin=stdin, check=check).stdout


def head() -> str:
    return git("rev-parse", "HEAD").strip()


def require_ready() -> str:
    """Refuse a tree in which an experiment cannot be told apart from other work; returns the commit
    to start from.

    Raises:
        PawlError: no repository or commit, detached HEAD, a merge under way, no identity, changes,
            another run under way.
    """
    _require_repository()
    if call(["git", "rev-parse", "--verify", "-q", "HEAD"], check=False).returncode:
        raise PawlError(
            "the repository has no commit yet", where=str(ROOT), fix="git add . && git commit"
        )
    if call(["git", "symbolic-ref", "-q", "HEAD"], check=False).returncode:
        fix = "git switch main, or git switch -c <new branch>"
        raise PawlError(
            "HEAD is detached: a kept experiment would be on no branch", where=str(ROOT), fix=fix
        )
    git_folder = Path(git("rev-parse", "--absolute-git-dir").strip())
    for name in ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"):
        if (git_folder / name).exists():
            fix = "finish or abort it: see 'git status'"
            raise PawlError(
                "a merge, rebase or cherry-pick is under way", where=str(git_folder / name), fix=fix
            )
    require_idle()
    if left := unfinished():
        where = f"experiments/{', '.join(path.name for path in left)}"
        run = read_run()
        fix = "python -m agent restore"
        if run and not run.ended:
            fix = f"python -m agent resume, to go on with the run {run.id}; or give it up: {fix}"
        raise PawlError(
            "an experiment was cut short, or could not be committed", where=where, fix=fix
        )
    # a look stays looked at: committed with the next record
    if dirty := [path for path in changed() if path not in (_LOOKS, PAGE)]:
        where = ", ".join(plain(path, 80) for path in dirty[:5]) + (
            f" and {len(dirty) - 5} more" if len(dirty) > 5 else ""
        )
        raise PawlError(
            "the working tree has changes that no commit holds",
            where=where,
            fix="commit them, or put them aside with 'git stash -u'",
        )
    if call(["git", "var", "GIT_COMMITTER_IDENT"], check=False).returncode:
        raise PawlError(
            "git does not know who commits",
            fix="git config user.name 'Your Name' && git config user.email you@example.org",
        )
    return head()


def _require_repository() -> None:
    top = call(["git", "rev-parse", "--show-toplevel"], check=False)
    if top.returncode and "not a git repository" not in top.stderr:
        raise PawlError(
            f"git does not work here: {plain(top.stderr, 300)}",
            where=str(ROOT),
            fix="mend that, then run again",
        )
    if top.returncode or Path(top.stdout.strip()).resolve() != ROOT:
        fix = "clone Pawl with git, or: git init && git add . && git commit"
        raise PawlError("not in a git repository of its own", where=str(ROOT), fix=fix)
    if not (ROOT / ".dvc").is_dir():
        raise PawlError("not a DVC repository", where=str(ROOT), fix="dvc init")


def require_idle() -> None:
    """Refuse while DVC or a stage works in this tree, be it the orphan of a killed run."""
    holders = {f"dvc (process {plain(pid, 20)})" for pid in dvc_processes()}
    for path in sorted((ROOT / ".pawl").glob("*.lock")):
        if path.name != "agent.lock" and locked(path):
            holders.add(
                f"{path.stem} (process"
                f" {plain(path.read_text(encoding='utf-8', errors='replace'), 20)})"
            )
    if holders:
        fix = "wait for it, or end it with kill and its number"
        raise PawlError(
            f"already at work in this tree: {', '.join(sorted(holders))}", where=str(ROOT), fix=fix
        )


def changed() -> list[str]:
    """Paths that differ from HEAD, or that git does not know; ignored files do not count."""
    entries = git(
        "-c", "status.renames=false", "status", "--porcelain", "-z", "--untracked-files=all"
    ).split("\0")
    return [entry[3:] for entry in entries if entry]


def unfinished() -> list[Path]:
    """Folders that no commit holds and that we left: nothing but our files, planned, or finished
    from this very commit.
    """
    return [path for path in unheld() if _left_by_us(path)]


def unheld() -> list[Path]:
    """Folders of experiments/ that HEAD does not hold."""
    held = set(git("ls-tree", "--name-only", "HEAD", "experiments/").splitlines())
    folders = (
        [
            path
            for path in EXPERIMENTS.iterdir()
            if path.is_dir() and FOLDER_NAME.fullmatch(path.name)
        ]
        if EXPERIMENTS.is_dir()
        else []
    )
    return sorted(path for path in folders if f"experiments/{path.name}" not in held)


def _left_by_us(folder: Path) -> bool:
    if any(path.name not in FILES and path.suffix != ".partial" for path in folder.iterdir()):
        return False
    try:
        record = read_record(folder)
    except ValueError:
        return not (folder / "record.json").exists()
    return not record.finished or record.commit == head()


def foreign_changes(folder: Path) -> list[str]:
    """What the pipeline reads and somebody else changed while the experiment ran."""
    own = (STATE[0], f"experiments/{folder.name}/", _LOOKS)
    return [path for path in changed() if path.startswith(_PIPELINE) and not path.startswith(own)]


def restore() -> bool:
    """Put conf, params, lock, reports and journal back to HEAD, and DVC's outputs to that lock;
    False where its cache lacks some.
    """
    paths = [*STATE, *_GENERATED]
    git("reset", "-q", "--", *paths, "experiments")
    held = [path for path in paths if git("ls-tree", "--name-only", "HEAD", path).strip()]
    if held:
        git("checkout", "-q", "HEAD", "--", *held)
    git("clean", "-fdq", "--", *paths)
    return call([*_DVC, "checkout", "--quiet", "--force"], check=False).returncode == 0


def take_up() -> list[int]:
    """After a kill: end what it left running, and mend what it left half-written; gives the
    processes that were ended.
    """
    _require_repository()
    ended = orphans.end()
    lock = Path(git("rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    if lock.exists() and not orphans.git_at_work():
        lock.unlink()
    require_idle()
    forget_dead_dvc()
    git("reset", "-q", "--", *STATE, *_GENERATED, _LOOKS, "experiments", check=False)
    try:
        YAML(typ="safe").load((ROOT / "dvc.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError):
        # DVC was killed while it wrote; its run-cache knows the stages that were done
        git("checkout", "-q", "HEAD", "--", "dvc.lock", check=False)
    return ended


def forget_edit() -> None:
    """conf/ and params.yaml as the commit has them; what stages have made stays, so that none of
    them runs again.
    """
    git("checkout", "-q", "HEAD", "--", *STATE[:2])


def planned() -> list[Record]:
    """Experiments that were begun and have no result yet."""
    return [
        read_record(folder)
        for folder in unfinished()
        if (folder / "record.json").exists() and not _finished(folder)
    ]


def uncommitted() -> list[Record]:
    """Experiments that are finished, and whose commit failed or was cut short.

    Raises:
        PawlError: no repository, or another run under way.
    """
    _require_repository()
    require_idle()
    return [read_record(folder) for folder in unfinished() if _finished(folder)]


def _finished(folder: Path) -> bool:
    try:
        return read_record(folder).finished
    except ValueError:
        return False


def put_back() -> list[str]:
    """Undo a planned experiment that was cut short; returns the folders removed, which go last,
    since they tell that there is work left.
    """
    _require_repository()
    require_idle()
    left = [folder for folder in unfinished() if not _finished(folder)]
    if left:
        forget_dead_dvc()
        restore()
    for folder in left:
        shutil.rmtree(folder)
    return [folder.name for folder in left]


def commit(paths: Sequence[str], message: str) -> str:
    """Commit exactly `paths`, whatever else is staged; returns the commit."""
    known = [
        path for path in paths if (ROOT / path).exists() or git("ls-files", "--", path).strip()
    ]
    git("add", "-A", "--", *known)
    if git("status", "--porcelain", "--", *known).strip():
        git("commit", "-q", "--cleanup=verbatim", "-F", "-", "--only", "--", *known, stdin=message)
    return head()


def commit_record(folder: Path, message: str, *, with_state: bool) -> str:
    return commit(
        [*(STATE if with_state else ()), PAGE, *_GENERATED, _LOOKS, f"experiments/{folder.name}"],
        message,
    )


def show_page() -> None:
    """Build the page again, with every experiment; one that cannot be built costs the page, not the
    record.
    """
    if (ROOT / "stages/report").is_dir():
        call([sys.executable, "-m", "stages.report"], check=False)


def compose_params() -> None:
    call([sys.executable, "-m", "stages.common.config"])


def repro(log: Path, timeout_s: float, hear: Callable[[str, Path], None]) -> int:
    """`dvc repro` in a process group of its own; its output goes to `log` and, as it comes, to
    `hear`. 124: it took too long.
    """
    log.unlink(missing_ok=True)
    seen = 0

    def follow() -> None:
        nonlocal seen
        data = b""
        with suppress(FileNotFoundError), open(log, "rb") as file:
            file.seek(seen)
            data = file.read()
            seen += len(data)
        hear(data.decode("utf-8", "replace"), log)

    previous = Path.cwd()
    os.chdir(ROOT)
    try:
        code = run(
            [*_DVC, "repro"],
            log=log,
            env=environment(),
            timeout_s=timeout_s,
            watch=follow,
            poll_s=0.3,
        )
    finally:
        os.chdir(previous)
    follow()
    return code


def out_of_date() -> dict[str, Any]:
    """What `dvc status` would rerun; empty where every report belongs to the present parameters,
    code and data.
    """
    try:
        status = json.loads(call([*_DVC, "status", "--json"]).stdout)
    except ValueError:
        raise PawlError("'dvc status --json' gave no JSON", fix="run 'dvc status'") from None
    return status if isinstance(status, dict) else {"": status}


def failed_stage(log: Path) -> str:
    """The stage at which dvc repro failed, from its log; "" where it does not say."""
    found = re.findall(r"^ERROR: failed to reproduce '([\w@.-]+)'", tail(log, 8000), re.MULTILINE)
    return found[-1] if found else ""
