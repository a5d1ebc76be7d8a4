"""Whether training and the benchmark take their parts of one file, and so how a benchmark divides
its items.
"""

from __future__ import annotations

import os
from typing import Any

from stages.common.errors import PawlError


def same_file(one: Any, other: Any) -> bool:
    """Whether two sources read the same rows."""
    return _place(one) is not None and _place(one) == _place(other)


def _place(source: Any) -> tuple[str, ...] | None:
    if source.kind in ("file", "jsonl"):
        return (os.path.normpath(source.path),)
    return (source.package, source.path) if source.kind == "wheel" else None


def takes_train_part(task: Any, sources: dict[str, Any]) -> bool:
    """Whether a training source learns from the part of the task's file that is neither validation
    nor test.
    """
    return any(source.part == "train" and same_file(task, source) for source in sources.values())


def settle(whole: Any) -> None:
    """Turn benchmark.splits=auto of a composition into what is meant: a train part is left where
    training takes it, and nowhere else.

    Raises:
        PawlError: items in halves while training takes a part of their file, which would be the
            same rows.
    """
    benchmark, sources = whole.benchmark, whole.data.sources
    if (
        "tasks" not in benchmark
        or benchmark.splits not in ("auto", "halves")
        or not benchmark.tasks
    ):
        benchmark.splits = "seeded" if benchmark.splits == "auto" else benchmark.splits
        return
    shared = [name for name, task in benchmark.tasks.items() if takes_train_part(task, sources)]
    if benchmark.splits == "auto":
        benchmark.splits = "seeded" if shared else "halves"
    elif shared:
        what = (
            f"training takes the train part of the file of {shared[0]}, and with"
            " benchmark.splits=halves all of it is asked"
        )
        raise PawlError(what, where="benchmark.splits", fix="set benchmark.splits=seeded, or auto")
