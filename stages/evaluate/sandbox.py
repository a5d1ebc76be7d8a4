"""Score model-written code by running it in a room (box.py).

The room has no network, no keys, nothing of this repository and little of the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.scoring import Scorer, Spec, Task
from stages.common.verdicts import Score
from stages.evaluate.box import Verdict

LIMITS = {
    "RLIMIT_AS": 4 * 2**30,
    "RLIMIT_FSIZE": 16 * 2**20,
    "RLIMIT_NOFILE": 128,
    "RLIMIT_NPROC": 64,
    "RLIMIT_CORE": 0,
}
_MEMORY = 64 * 2**20  # bytes of files in the room
_SECONDS = 30.0  # an item; the evaluators' own limits are lower
_START_S = 120.0


def score(scorer: Scorer) -> Score:
    """What `score.rows` takes in the evaluator's place: each item alone, in the room."""

    def scores(task: Task, predictions: list[Any]) -> list[float]:
        items = [
            {"prediction": prediction, "reference": gold, "row": item.get("row")}
            for prediction, gold, item in zip(predictions, task.golds, task.items, strict=True)
        ]
        return [float(verdict.get("score", 0.0)) for verdict in run(scorer.spec, items)]

    return scores


def run(
    spec: Spec, items: Sequence[Mapping[str, object]], seconds: float = _SECONDS
) -> list[Verdict]:
    """The verdict of each item.

    Raises:
        PawlError: this machine gives no such room, so that nothing was run.
    """
    job = {"evaluator": spec, "items": items, "seconds": seconds}
    job |= {"memory": _MEMORY, "limits": LIMITS}
    with tempfile.TemporaryDirectory(prefix="pawl-room-") as folder:
        room = Path(folder) / "room"
        room.mkdir()
        # without keys and without our packages: of the environment nothing is handed on
        env = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        box = str(ROOT / "stages/evaluate/box.py")
        argv = [sys.executable, "-I", box, str(room), *binds(Path(folder))]
        try:
            done = subprocess.run(
                argv,
                input=json.dumps(job),
                capture_output=True,
                text=True,
                env=env,
                cwd="/",
                timeout=_START_S + seconds * len(items),
            )
        except subprocess.TimeoutExpired:
            raise PawlError(
                "the sandbox did not end in time",
                where="benchmark.allow_code_execution",
                fix="run again",
            ) from None
    try:
        verdicts = json.loads(done.stdout)
    except ValueError:
        verdicts = None
    if done.returncode or not isinstance(verdicts, list) or len(verdicts) != len(items):
        last = "\n".join(done.stderr.strip().splitlines()[-4:])[-600:]
        raise PawlError(
            f"this machine gives no room to run model-written code in, so none was run:\n{last}",
            where="benchmark.allow_code_execution",
            fix=(
                "Linux with user namespaces is needed (sysctl user.max_user_namespaces, "
                "kernel.apparmor_restrict_unprivileged_userns)"
            ),
        )
    return verdicts


def binds(folder: Path) -> list[str]:
    """What the room shows of the machine, read-only.

    The system's libraries, Python, its packages, the lazy importer and what scores.
    """
    lazy = folder / "lazy"
    lazy.mkdir()
    for path in ("stages/common/lazy.py", "stages/evaluate/programs.py"):
        (lazy / Path(path).name).write_bytes((ROOT / path).read_bytes())
    packages = sysconfig.get_paths()["purelib"]
    system = ["/usr", "/bin", "/lib", "/lib64"]
    found: list[str] = []
    for path in [*system, *map(os.path.realpath, (sys.base_prefix, packages))]:
        shown = any(Path(path).is_relative_to(known) for known in found)
        if os.path.lexists(path) and not shown:
            found.append(path)
    return [*found, f"{lazy}=/lazy"]
