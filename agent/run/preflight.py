"""What the training stage says about overrides before anything runs, so that what cannot work is a
refusal and no crash.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from agent.gates.permissions import EXTRA
from agent.run import workspace
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.text import plain

_CHECK_S = 600.0


def check_training(overrides: Sequence[str]) -> str:
    """What the training stage refuses about overrides: memory, arguments that do not go together;
    "" if nothing.

    Without a model and rows it only says what it refuses of the names below train.extra. If it
    cannot be asked (an older stage, no answer), nothing is refused: the run itself will tell.
    """
    free = [f"++{each}" if each.startswith(EXTRA) else each for each in overrides]
    whole = all(
        (ROOT / path).exists() for path in ("models/base.json", "models/base", "data/train")
    )
    named = any(each.startswith("++") for each in free)
    if not (ROOT / "stages/train").is_dir() or not (whole or named):
        return ""
    argv = [sys.executable, "-m", "stages.train", "--check", *free]
    refused = _refused(workspace.call(argv, check=False, timeout_s=_CHECK_S).stdout)
    if refused is None or not (whole or refused.where.startswith(EXTRA)):
        return ""
    return plain(str(refused), 400)


def _refused(answer: str) -> PawlError | None:
    """The refusal in what the check answers, a JSON object; None if it says anything else."""
    try:
        told = json.loads(answer)["refused"]
        return PawlError(str(told["what"]), where=str(told["where"]), fix=str(told["fix"]))
    except (ValueError, KeyError, TypeError):
        return None


def require_trainable(overrides: Sequence[str]) -> None:
    """Refuse what the training stage would refuse at its beginning.

    Raises:
        PawlError: with the training stage's own reason.
    """
    touched = any(each.startswith(("train.", "launcher.")) for each in overrides)
    if touched and (reason := check_training(overrides)):
        raise PawlError(
            f"the training stage refuses this: {reason}",
            where=", ".join(overrides),
            fix="change the override, then try again",
        )
