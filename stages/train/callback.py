"""What Pawl adds to LLaMA-Factory's trainer: progress as lines of JSON, checkpoints that say that
they are whole, an end at a NaN.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from stages.common.files import write_json
from stages.train.checkpoints import seal

PROGRESS = "progress.jsonl"
FIGURES = "figures.json"
SAVING_SHARE = 0.05
"""Of the time of a training, that checkpoints may take: a large model is saved more seldom than
launcher.checkpoint_steps says.
"""


class NonFiniteLossError(RuntimeError):
    """The loss is NaN or infinite: the weights are worth nothing from here on."""


class Watch(TrainerCallback):
    """Never touches weights, data order or random numbers, so that a run with it and one without
    give the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun = time.monotonic()
        self.first_step, self.first_tokens, self.trainable, self.total = 0, 0, 0, 0
        self.save_begun, self.save_ended, self.save_took = self.begun, self.begun, 0.0

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        self.begun, self.first_step, self.first_tokens = (
            time.monotonic(),
            state.global_step,
            _tokens(state),
        )
        self.save_ended = self.begun
        for parameter in model.parameters():
            self.total += _count(parameter)
            self.trainable += _count(parameter) * parameter.requires_grad

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        logs = logs or {}
        if state.is_world_process_zero and ("loss" in logs or "eval_loss" in logs):
            seconds = time.monotonic() - self.begun
            done = max(1, state.global_step - self.first_step)
            entry = {
                "step": state.global_step,
                "steps": state.max_steps,
                "loss": logs.get("loss"),
                "eval_loss": logs.get("eval_loss"),
                "tokens_per_s": (
                    (_tokens(state) - self.first_tokens) / seconds if _counted(args) else None
                ),
                "left_s": (state.max_steps - state.global_step) * seconds / done,
            }
            with open(self.folder / PROGRESS, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        for name in ("loss", "eval_loss"):
            value = logs.get(name)
            if value is not None and not math.isfinite(value):
                raise NonFiniteLossError(f"the {name} became {value} at step {state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps and not args.load_best_model_at_end:
            control.should_save = False  # the result itself is saved next
        elif control.should_save and not args.load_best_model_at_end:
            control.should_save = self._is_worth_saving(args)
        self.save_begun = time.monotonic()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.save_begun = time.monotonic()  # an evaluation comes between a step and its checkpoint

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the other processes write their random state, and their shards, into it too
        args.distributed_state.wait_for_everyone()
        if args.should_save:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self.save_ended = time.monotonic()
        self.save_took = self.save_ended - self.save_begun

    def _is_worth_saving(self, args: Any) -> bool:
        """Whether the training has lasted long enough since the last checkpoint. The first process
        decides for all of them.
        """
        worth = [(time.monotonic() - self.save_ended) * SAVING_SHARE >= self.save_took]
        if args.world_size > 1:
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(worth)
        return worth[0]

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if not _finite(model):  # from a step after the last loss that was logged
            raise NonFiniteLossError(
                f"the weights became NaN or infinite by step {state.global_step}"
            )
        if state.is_world_process_zero:
            tokens = _tokens(state) - self.first_tokens if _counted(args) else None
            figures = {
                "seconds": time.monotonic() - self.begun,
                "resumed_from_step": self.first_step,
                "tokens": tokens,
                "trainable_parameters": self.trainable,
                "total_parameters": self.total,
                "processes": args.world_size,
            }
            write_json(self.folder / FIGURES, figures | _gpu())


def _finite(model: Any) -> bool:
    """Whether every trained weight is a number; where they are sharded, this process's share of
    them.
    """
    trained = (parameter.detach() for parameter in model.parameters() if parameter.requires_grad)
    return all(
        bool((part.to_local() if hasattr(part, "to_local") else part).isfinite().all())
        for part in trained
    )


def _count(parameter: Any) -> int:
    """Weights of a parameter. ZeRO-3 leaves an empty tensor in each process, and in 4 bits a byte
    of storage holds two.
    """
    count = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
    if type(parameter).__name__ == "Params4bit":
        count *= 2 * parameter.quant_storage.itemsize
    return count


def _counted(args: Any) -> bool:
    """Whether the trainer counts tokens (arguments.py says for which trainings it cannot)."""
    return str(args.include_num_input_tokens_seen) != "no"


def _tokens(state: Any) -> int:
    return int(state.num_input_tokens_seen or 0)


def _gpu() -> dict[str, Any]:
    """Name of this process's GPU and the most memory that its allocator held there; nothing without
    one.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    return {
        "gpu": torch.cuda.get_device_name(),
        "peak_gpu_memory_gib": torch.cuda.max_memory_reserved() / 2**30,
    }
