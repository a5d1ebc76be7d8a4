"""The checks. Each returns its figures, or raises: AssertionError if the machine or Pawl fails,
NotRun if it cannot be made.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from stages.common import gpus
from stages.common.reports.evaluation import Row
from stages.train import memory
from tests.gpu_check.place import EVALUATE, PYTHON, TRAIN, NotRun, Place, kill, said, wait

Check = Callable[[Place], str]
BATCH = "train.per_device_train_batch_size"


def doctor(place: Place) -> str:
    found = place.run(PYTHON, "-m", "stages.common.doctor", all_gpus=True).stdout
    bad = [line for line in found.splitlines() if line.startswith("BAD ")]
    assert not bad, "; ".join(bad)
    if place.rehearsal:
        return "no GPU was looked for"
    assert "can  engine=vllm:" in found, next(
        line for line in found.splitlines() if "engine=vllm" in line
    )
    return f"{len(place.cards)} GPU(s), driver, capability, compiler and headers"


def one_repro(place: Place) -> str:
    """The server answers for the base, makes way for the training, and comes back with the
    adapter.
    """
    place.compose()
    with _holders(place) as held:
        place.run("dvc", "repro", "fetch_model", "build_benchmark", "generate_data", limit_s=200)
        # DVC runs what does not depend on one another in any order, unless it is told one
        ran = place.run(
            "dvc", "repro", "--single-item", "baseline", "train", "eval_val", limit_s=500
        ).stdout
    order = [ran.find(f"Running stage '{name}'") for name in ("baseline", "train", "eval_val")]
    assert -1 not in order and order == sorted(order), (
        "DVC did not serve, train and serve in this order"
    )
    train = place.report("train.json")
    assert train["final_loss"] < train["initial_loss"], (
        f"the loss went from {train['initial_loss']} to {train['final_loss']}"
    )
    if not place.rehearsal:
        assert held[:3] == [
            "vllm server",
            "train",
            "vllm server",
        ], f"the GPU was held by {', '.join(held)}"
    base, tuned = place.rows("baseline/val.jsonl"), place.rows("eval_val/val.jsonl")
    changed = different(base, tuned)
    assert changed > len(base) / 2, (
        f"base and adapter differ on {changed} of {len(base)} answers only: is the adapter served?"
    )
    return (
        f"loss {train['initial_loss']:.2f} to {train['final_loss']:.2f}, base and adapter differ on"
        f" {changed} of {len(base)}"
    )


@contextmanager
def _holders(place: Place) -> Iterator[list[str]]:
    """Who leases the GPU, one after the other, as noted in the locks while the block lasts."""
    held: list[str] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            for lock in (place.folder / ".pawl/gpu").glob("*.lock"):
                with suppress(OSError, ValueError, KeyError):
                    who = str(json.loads(lock.read_text(encoding="utf-8"))["who"])
                    if not held or held[-1] != who:
                        held.append(who)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield held
    finally:
        ended.set()
        watcher.join()


def noise(place: Place, invariant: bool) -> str:
    """With batch invariance the same weights repeat every answer. Without it, the share that
    changes is a figure.
    """
    if not (place.folder / "models/adapter").is_dir():
        raise NotRun("there is no adapter, since its training failed")
    if invariant and not place.rehearsal and place.cards[0].capability < gpus.BFLOAT16:
        raise NotRun("batch invariance needs compute capability 8.0")
    place.compose(f"engine.batch_invariant={str(invariant).lower()}")
    place.run(*EVALUATE, "--noise", limit_s=400)
    newest = max(
        (place.folder / "reports/noise").glob("*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    report = place.report(f"noise/{newest.name}")
    figures = (
        f"{report['flips']} verdicts and {report['texts']} texts of {report['answers']} changed"
    )
    assert not report["texts"] or not invariant, figures
    return figures


def peak(place: Place, method: list[str], needs: str = "") -> str:
    """The memory of a training is estimated to 15 %."""
    if needs and (place.rehearsal or importlib.util.find_spec(needs) is None):
        raise NotRun("needs a GPU" if place.rehearsal else f"{needs} is not installed")
    place.base_and_long_rows()
    place.compose(
        *method,
        "train.max_steps=3",
        "train.micro_steps=-1",
        f"{BATCH}=8",
        "train.gradient_accumulation_steps=1",
    )
    place.run(*TRAIN)
    report = place.report("train.json")
    if place.rehearsal:
        return (
            f"estimate {report['estimated_memory_gib']} GiB, peak {report['peak_memory_gib']} of"
            " the process"
        )
    estimate, measured = (
        report["estimated_memory_gib"] - memory.PROCESS_GPU,
        report["peak_gpu_memory_gib"],
    )
    error = estimate / measured - 1
    figures = f"estimate {estimate:.2f} GiB, peak {measured:.2f}: {100 * error:+.0f} %"
    assert abs(error) <= memory.ERROR, figures
    return f"{figures}, {report['tokens_per_s']:.0f} tokens/s"


def resume(place: Place) -> str:
    """A training that is killed leaves nothing behind and goes on from its last checkpoint."""
    place.base_and_long_rows()
    place.compose(
        "train.max_steps=120",
        "launcher.checkpoint_steps=10",
        "train.micro_steps=-1",
        f"{BATCH}=2",
        "train.gradient_accumulation_steps=1",
    )
    running = place.start(*TRAIN, output=subprocess.DEVNULL)
    try:
        wait(
            lambda: running.poll() is not None or _step(place) >= 25, 200, "step 25 was not reached"
        )
    finally:
        kill(running)
    place.run(*TRAIN)
    report = place.report("train.json")
    assert report["steps"] == 120 and report.get("resumed_from_step", 0) >= 10, (
        f"resumed from {report.get('resumed_from_step')}"
    )
    return f"went on from step {report['resumed_from_step']} to {report['steps']}"


def _step(place: Place) -> int:
    lines = [
        line
        for file in place.folder.glob(".pawl/train/*/progress.jsonl")
        for line in file.read_text().splitlines()
    ]
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def too_large(place: Place) -> str:
    """A batch that does not fit is refused with its key, and, if it is started all the same,
    explained with its key.
    """
    place.base_and_long_rows()
    refused = place.run(*TRAIN, "--check", *_settings(place, 65536), ok=False)
    assert refused.returncode == 3 and BATCH in refused.stderr, (
        f"--check: exit {refused.returncode}"
    )
    if place.rehearsal:
        return "refused; to run out of memory needs a GPU"
    place.compose(*_settings(place, 1024))
    failed = place.run(*TRAIN, ok=False, PAWL_MEMORY="warn")
    assert failed.returncode not in (
        0,
        3,
    ), f"exit {failed.returncode}: it did not run out of memory"
    assert BATCH in failed.stderr and "not enough memory" in failed.stderr, said(failed.stderr)
    return "refused, and explained by its key when it ran out of memory"


def _settings(place: Place, batch: int) -> list[str]:
    own = ["train.device=cpu", "experiment=smoke"] if place.rehearsal else []
    return [
        *own,
        f"{BATCH}={batch}",
        "train.gradient_accumulation_steps=1",
        "train.cutoff_len=512" if own else "train.cutoff_len=1024",
    ]


def first_loss(place: Place, name: str, *launcher: str) -> str:
    """Two processes begin with the loss that every other way to run two processes begins with."""
    if not place.rehearsal and len(place.cards) < 2:
        raise NotRun("needs 2 GPUs")
    place.base_and_long_rows()
    place.compose(
        *launcher,
        "launcher.workers=2",
        "train.max_steps=4",
        f"{BATCH}=2",
        "train.gradient_accumulation_steps=1",
    )
    place.run(*TRAIN, all_gpus=True)
    report = place.report("train.json")
    assert report["processes"] == 2 and report["steps"] == 4, (
        f"{report['processes']} processes, {report['steps']} steps"
    )
    place.losses[name] = report["initial_loss"]
    low, high = min(place.losses.values()), max(place.losses.values())
    assert high - low <= 0.02 * high, f"first losses {place.losses}"
    return f"first loss {report['initial_loss']:.4f}, {report['tokens_per_s']:.0f} tokens/s"


def copies_and_halves(place: Place) -> str:
    """A model on one GPU, split over two, and copied to two gives the same answers in float32."""
    if len(place.cards) < 2:
        raise NotRun("needs 2 GPUs")
    answers = {}
    for name, tensor, all_gpus in (
        ("one", "1", False),
        ("halves", "2", True),
        ("copies", "1", True),
    ):
        place.compose(
            "model=tiny_random",
            "engine.dtype=float32",
            f"engine.tensor_parallel={tensor}",
            "engine.max_model_len=1024",
        )
        place.run("dvc", "repro", "-q", "fetch_model", "build_benchmark")
        place.run(*EVALUATE, "--base", "--split", "val", all_gpus=all_gpus, limit_s=400)
        answers[name] = place.rows("baseline/val.jsonl")
    changed = {name: different(answers["one"], answers[name]) for name in ("halves", "copies")}
    figures = (
        f"of {len(answers['one'])} answers, {changed['halves']} changed in halves and"
        f" {changed['copies']} in copies"
    )
    assert max(changed.values()) <= len(answers["one"]) / 10, figures
    return figures


def every_gpu_visible(place: Place) -> str:
    """`--check` and the agent's gate see every GPU, and refuse nothing for it."""
    place.compose()
    place.run("dvc", "repro", "-q", "fetch_model", "generate_data")
    overrides = ["train.device=cpu", "experiment=smoke"] if place.rehearsal else []
    found = json.loads(place.run(*TRAIN, "--check", *overrides, all_gpus=True).stdout)
    asked = (
        "from agent.run.preflight import check_training as c; print('refused:',"
        f" repr(c({overrides!r})))"
    )
    gate = place.run(PYTHON, "-c", asked, all_gpus=True).stdout
    assert "refused: ''" in gate, gate[-300:]
    total = found["memory"]["estimate_gib"]["total"]
    return (
        f"estimate {total:.1f} of {found['memory']['available_gib']} GiB, the agent's gate refuses"
        " nothing"
    )


def different(one: list[Row], other: list[Row]) -> int:
    """Items that were answered with another text."""
    return sum(
        first.prediction != second.prediction for first, second in zip(one, other, strict=True)
    )


CHECKS: dict[str, Check] = {
    "1 doctor": doctor,
    "2 serve, train, serve in one run": one_repro,
    "4 noise, batch invariance on": partial(noise, invariant=True),
    "4 noise, batch invariance off": partial(noise, invariant=False),
    "8 --check and the agent's gate": every_gpu_visible,
    "3 memory: LoRA": partial(peak, method=["train=lora"]),
    "3 memory: LoRA, checkpointing": partial(
        peak, method=["train=lora", "train.gradient_checkpointing=true"]
    ),
    "3 memory: full": partial(peak, method=["train=full"]),
    "3 memory: QLoRA": partial(peak, method=["train=qlora"], needs="bitsandbytes"),
    "5 kill -9 and resume": resume,
    "6 a batch too large": too_large,
    "7 two processes: torchrun": lambda place: first_loss(place, "torchrun", "launcher=torchrun"),
    "7 two processes: FSDP": lambda place: first_loss(
        place, "fsdp", "launcher=torchrun", "train.parallel=fsdp"
    ),
    "7 two processes: Ray": lambda place: first_loss(place, "ray", "launcher=ray"),
    "7 TP=2 and DP=2": copies_and_halves,
}
