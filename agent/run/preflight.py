"""What the training stage says about overrides before anything runs, so that what cannot work is a refusal and no crash."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agent.gates.permissions import EXTRA
from agent.run import workspace
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.redaction import redact
from stages.common.text import plain

_CHECK_S = 600.0


def check_training(overrides: Sequence[str]) -> str:
    """What the training stage refuses about overrides, before anything runs: memory, arguments that do not go together; "" where nothing.

    Without a model and rows it says what it refuses of the names below train.extra alone. Where it cannot be asked (an older stage, no
    answer), nothing is refused: the run itself will tell.
    """
    whole = all((ROOT / path).exists() for path in ("models/base.json", "models/base", "data/train"))
    if not (ROOT / "stages/train").is_dir() or not (whole or any(EXTRA in override for override in overrides)):
        return ""
    done = workspace.call([sys.executable, "-m", "stages.train", "--check", *overrides], check=False, timeout_s=_CHECK_S)
    reason = done.stderr[max(0, done.stderr.rfind("train: error: ")) :]  # after what libraries say
    if done.returncode != 3 or not (whole or f"where: {EXTRA}" in reason):
        return ""
    return plain(redact(reason), 400)


def require_trainable(overrides: Sequence[str]) -> None:
    """Refuse what the training stage would refuse at its beginning.

    Raises:
        PawlError: with the training stage's own reason.
    """
    free = [f"++{each}" if each.startswith(EXTRA) else each for each in overrides]
    touched = any(each.removeprefix("++").startswith(("train.", "launcher.")) for each in free)
    if touched and (reason := check_training(free)):
        raise PawlError(f"the training stage refuses this: {reason}", where=", ".join(overrides), fix="change the override, then try again")
