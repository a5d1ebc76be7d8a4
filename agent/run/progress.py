"""Where a run of the agent stands: a small file that `resume` reads, and the line that a person
watches.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agent.knowledge.cache import FOLDER
from stages.common.errors import PawlError
from stages.common.files import write_json
from stages.common.process import tail
from stages.common.text import plain

RUN = FOLDER / "run.json"
_SAVE_S = 2.0
_LINE_S = 60.0  # without a terminal, a line that often


@dataclass
class Run:
    """A run of the agent, from `run` to the limit that ended it, over any number of kills.

    Attributes:
        budget: as Budget of the schema; fixed when the run begins.
        seconds: that it worked, without the pauses between a kill and `resume`.
        state, folder: what it does at the moment, and the experiment that it does it for.
        leg: seconds of work on that experiment, and `training`: of these in the stage `train`.
        ended: why it is over; empty while it can be taken up.
        silent: plannings in a row in which the language model did not answer at all.
    """

    id: str
    policy: str
    budget: dict[str, Any]
    started_at: str = ""
    seconds: float = 0.0
    state: str = ""
    folder: str = ""
    leg: float = 0.0
    training: float = 0.0
    ended: str = ""
    silent: int = 0


def read_run() -> Run | None:
    """The newest run, or None where there never was one, or its file was removed.

    Raises:
        PawlError: the file is broken.
    """
    try:
        value = json.loads(RUN.read_text(encoding="utf-8"))
        return Run(**{spec.name: value[spec.name] for spec in fields(Run) if spec.name in value})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise PawlError(
            "cannot be read",
            where=str(RUN),
            fix="remove it; 'python -m agent restore' then puts the tree back",
        ) from None


def say(text: str, end: str = "\n") -> None:
    """Tell the terminal; an experiment does not end because nobody listens any more."""
    try:
        print(text, end=end, flush=True)
    except OSError:
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115 - stays until the process ends


class Progress:
    """Writes down which state begins before it begins. Without a run (`try`), it only shows what
    the pipeline says.
    """

    def __init__(self, run: Run | None = None, told: Callable[[], str] = lambda: "") -> None:
        self.run, self.told = run, told
        self._since = self._saved = self._shown = time.monotonic()
        self._stage, self._open = "", False

    def enter(self, state: str, folder: str = "") -> None:
        """A state begins: planning, editing, composing, running, recording, restoring,
        committing.
        """
        if self.run is None:
            return
        self._count()
        if folder != self.run.folder:
            self.run.leg = self.run.training = 0.0
        self.run.state, self.run.folder, self._stage = state, folder, ""
        self.save()

    def end(self, reason: str) -> None:
        if self.run is not None:
            self._count()
            self.run.ended, self.run.state = reason, ""
            self.save()

    def save(self) -> None:
        if self.run is not None:
            write_json(RUN, asdict(self.run))
            self._saved = time.monotonic()

    def _count(self) -> None:
        now = time.monotonic()
        if self.run is not None:
            self.run.seconds = round(self.run.seconds + now - self._since, 3)
            self.run.leg = round(self.run.leg + now - self._since, 3)
            if self._stage == "train":
                self.run.training = round(self.run.training + now - self._since, 3)
        self._since = now

    def hear(self, text: str, log: Path) -> None:
        """Called about three times a second while the pipeline runs, with what it has written
        since.
        """
        if self.run is None:
            say(text, end="") if text else None
            return
        self._count()
        now = time.monotonic()
        if now - self._saved > _SAVE_S:
            self.save()
        if text:
            found = re.findall(r"^Running stage '([\w@.-]+)'", tail(log, 8000), re.MULTILINE)
            stage = found[-1] if found else self._stage
        else:
            stage = self._stage
        changed, self._stage = stage != self._stage, stage
        if sys.stdout.isatty() or changed or now - self._shown > _LINE_S:
            self._shown = now
            self._line(
                f"agent: {self.run.folder}, {stage or 'starting'}, {clock(self.run.leg)};"
                f" {self.told()}"
            )

    def _line(self, text: str) -> None:
        if not sys.stdout.isatty():
            say(text)
            return
        width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 120
        say(f"\r\x1b[2K{plain(text, max(20, width - 1))}", end="")
        self._open = True

    def close(self) -> None:
        """End the line that is rewritten in place."""
        if self._open:
            say("")
            self._open = False


def clock(seconds: float) -> str:
    """Hours, minutes and seconds as 1:02:03."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
