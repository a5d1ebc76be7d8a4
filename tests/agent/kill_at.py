"""`python -m agent` that kills itself, SIGKILL and no warning, as it enters a state: python -m
tests.agent.kill_at STATE COUNT ARGUMENTS...

Run inside a toy repository, with this file's repository on PYTHONPATH behind it.
"""

from __future__ import annotations

import os
import signal
import sys

from agent import __main__
from agent.run import experiment, progress, workspace


def main() -> None:
    state, count, sys.argv[1:] = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    seen = 0

    def die_at(name: str) -> None:
        nonlocal seen
        seen += name == state
        if name == state and seen == count:
            os.kill(os.getpid(), signal.SIGKILL)

    enter, write_record, write_settings, commit = (
        progress.Progress.enter,
        experiment.write_record,
        experiment.write_settings,
        workspace.commit,
    )

    def entering(self: progress.Progress, name: str, folder: str = "") -> None:
        enter(self, name, folder)
        die_at(name)

    def writing(record: object) -> None:
        die_at("before the record")
        write_record(record)  # type: ignore[arg-type]
        die_at("after the record")

    def settings(*given: object) -> None:
        write_settings(*given)  # type: ignore[arg-type]
        die_at("after composing")

    def committing(*given: object) -> str:
        die_at("before the commit")
        done = commit(*given)  # type: ignore[arg-type]
        die_at("after the commit")
        return done

    progress.Progress.enter = entering  # type: ignore[method-assign]
    experiment.write_record, experiment.write_settings, workspace.commit = (
        writing,
        settings,
        committing,
    )  # type: ignore[assignment]
    __main__.main()


if __name__ == "__main__":
    main()
