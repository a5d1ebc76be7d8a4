"""What happened in training, from the trainer's structured record (trainer_state.json), not from a
log.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import read_json


def trainer_state(output: Path) -> dict[str, Any]:
    """The trainer's record of a run that ended.

    Raises:
        PawlError: no record or no logged loss; a loss that is NaN or infinite (such weights are
            worth nothing).
    """
    state: dict[str, Any] = read_json(output / "trainer_state.json")
    history = state["log_history"]
    ended: dict[str, Any] = next(
        (entry for entry in reversed(history) if "train_runtime" in entry), {}
    )
    if not any("loss" in entry for entry in history) and "train_loss" in ended:
        # packed rows are fewer than they were counted to be, so that the training ended before its
        # first log: the mean of its losses
        history.append(
            {"step": state["global_step"], "epoch": state["epoch"], "loss": ended["train_loss"]}
        )
    losses = [entry for entry in history if "loss" in entry]
    if not losses:
        raise PawlError(
            "training logged no loss",
            where=str(output),
            fix="train more steps, or lower train.logging_steps",
        )
    for entry in losses:
        if not math.isfinite(entry["loss"]):
            raise PawlError(
                f"the loss became {entry['loss']} at step {entry['step']}",
                fix="lower train.learning_rate, or raise train.warmup_ratio",
            )
    state["train_runtime"] = ended["train_runtime"]
    return state


def losses_csv(state: dict[str, Any]) -> str:
    """The loss history as CSV: step, epoch, split (train or eval), loss (cross-entropy per token,
    nats).
    """
    lines = ["step,epoch,split,loss"]
    for entry in state["log_history"]:
        for key, split in (("loss", "train"), ("eval_loss", "eval")):
            if key in entry:
                lines.append(f"{entry['step']},{entry['epoch']:.4f},{split},{entry[key]:.6f}")
    return "\n".join(lines) + "\n"


def summarize(state: dict[str, Any]) -> dict[str, Any]:
    """First and last train loss, best eval loss (None without an eval split), steps and epochs
    done.
    """
    train = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    evals = [entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry]
    return {
        "initial_loss": round(train[0], 6),
        "final_loss": round(train[-1], 6),
        "best_eval_loss": round(min(evals), 6) if evals else None,
        "steps": state["global_step"],
        "epochs": round(state["epoch"], 4),
    }
