"""What Pawl adds to the trainer: when a checkpoint is worth its time, and which weights and tokens
are counted.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.train.arguments import arguments
from tests.train.test_arguments import train


def callback() -> Any:
    """Loaded when a test runs: with it come torch and transformers."""
    from stages.train import callback

    return callback


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(callback(), "time", found)
    monkeypatch.setattr(callback(), "seal", lambda folder: None)
    return found


def arguments_of(folder: Path, **changes: Any) -> Any:
    given = {
        "output_dir": str(folder),
        "world_size": 1,
        "should_save": True,
        "load_best_model_at_end": False,
    }
    return SimpleNamespace(
        **given | changes, distributed_state=SimpleNamespace(wait_for_everyone=lambda: None)
    )


def saved_steps(
    clock: Clock, folder: Path, *, save_s: float, evaluation_s: float = 0.0, **changes: Any
) -> list[int]:
    """The steps of 1 to 100, of a second each and each wished to be saved, that are."""
    watch, args, found = callback().Watch(folder), arguments_of(folder, **changes), []
    for step in range(1, 101):
        clock.now += 1.0
        state, control = (
            SimpleNamespace(global_step=step, max_steps=1000),
            SimpleNamespace(should_save=True),
        )
        watch.on_step_end(args, state, control)
        clock.now += evaluation_s
        if evaluation_s:
            watch.on_evaluate(args, state, control)
        if control.should_save:
            clock.now += save_s
            watch.on_save(args, state, control)
            found.append(step)
    return found


def test_checkpoints_take_no_more_than_a_twentieth_of_the_time(
    clock: Clock, tmp_path: Path
) -> None:
    assert saved_steps(clock, tmp_path, save_s=2.0) == [1, 41, 81]
    assert saved_steps(clock, tmp_path, save_s=0.0) == list(range(1, 101)), (
        "cheap ones are made as often as they are wished"
    )


def test_the_time_of_an_evaluation_is_not_taken_for_that_of_saving(
    clock: Clock, tmp_path: Path
) -> None:
    assert len(saved_steps(clock, tmp_path, save_s=0.01, evaluation_s=5.0)) == 100


def test_each_checkpoint_among_which_the_best_is_chosen_is_made(
    clock: Clock, tmp_path: Path
) -> None:
    assert len(saved_steps(clock, tmp_path, save_s=50.0, load_best_model_at_end=True)) == 100


def test_the_first_process_decides_for_all(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import accelerate.utils

    monkeypatch.setattr(
        accelerate.utils, "broadcast_object_list", lambda said: said.__setitem__(0, False)
    )
    assert saved_steps(clock, tmp_path, save_s=0.0, world_size=2) == []


class Params4bit:
    """Two weights in each byte of a storage of `itemsize` bytes, as bitsandbytes packs them."""

    def __init__(self, weights: int, itemsize: int) -> None:
        self.quant_storage = SimpleNamespace(itemsize=itemsize)
        self.stored = weights // 2 // itemsize

    def numel(self) -> int:
        return self.stored


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_weights_in_four_bits_are_counted_whatever_they_are_stored_in(itemsize: int) -> None:
    assert callback()._count(Params4bit(4096, itemsize)) == 4096
    assert callback()._count(SimpleNamespace(numel=lambda: 7)) == 7
    assert callback()._count(SimpleNamespace(numel=lambda: 0, ds_numel=9)) == 9


def test_tokens_of_packed_rows_that_do_not_see_each_other_are_not_counted() -> None:
    """Their mask holds minus infinity, and the trainer would add it up."""
    packed = arguments(
        train(extra={"neat_packing": True}), model="m", data="d", output="o", use_cpu=True
    )
    plain = arguments(train(), model="m", data="d", output="o", use_cpu=True)
    assert not callback()._counted(SimpleNamespace(**packed)) and callback()._counted(
        SimpleNamespace(**plain)
    )
