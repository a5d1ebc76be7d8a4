"""Many trainings, one import of LLaMA-Factory: each is a fork, and may be killed at a step.

python -m tests.train.forked ATTEMPTS.json
    prints the exit status of each attempt as a JSON list (-9: killed)

An attempt: {"folder": where worker.py leaves its files, "runs": as in a job, "resume": true to go
on from the last whole checkpoint, "kill_at": a step, "kill_in": "step" or "save" (after the trainer
has written a checkpoint and before it is sealed)}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import llamafactory.train.tuner  # noqa: F401 - once, for all forks

    print(json.dumps([attempt(**entry) for entry in json.loads(Path(sys.argv[1]).read_text())]))


def attempt(
    folder: str,
    runs: list[dict[str, Any]],
    resume: bool = False,
    kill_at: int = 0,
    kill_in: str = "step",
    watched: bool = True,
) -> int:
    Path(folder).mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        code = _train(Path(folder), runs, resume, kill_at, kill_in, watched)
    finally:
        os._exit(code)


def _train(
    folder: Path,
    runs: list[dict[str, Any]],
    resume: bool,
    kill_at: int,
    kill_in: str,
    watched: bool,
) -> int:
    from llamafactory.train import tuner
    from transformers import TrainerCallback

    from stages.train import callback, checkpoints, worker

    callback.SAVING_SHARE = 1e9  # whatever it costs: the tests kill at fixed steps

    class Killer(TrainerCallback):
        """Comes before Watch, so that a kill in on_save finds a checkpoint that is written and not
        sealed.
        """

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if kill_in == "step" and state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if kill_in == "save" and state.global_step >= kill_at > 0:
                os.kill(os.getpid(), signal.SIGKILL)

    last = checkpoints.last_whole(folder) if resume else None
    if not watched:
        tuner.run_exp(dict(runs[-1]["config"]))
        return 0
    plain = tuner.run_exp
    tuner.run_exp = lambda config, callbacks: plain(config, callbacks=[Killer(), *callbacks])
    for run in runs:
        if last:
            run["config"]["resume_from_checkpoint"] = str(last)
        worker.train(run, folder)
    return 0


if __name__ == "__main__":
    main()
