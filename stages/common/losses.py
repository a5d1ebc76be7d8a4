"""The loss curve of a training run, reports/loss.csv: columns step, epoch, split (train or eval),
loss.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from stages.common.errors import PawlError


class Loss(NamedTuple):
    """One logged loss; it may be nan or inf, since that is what a diverging run logs."""

    step: int
    split: str
    loss: float
    epoch: float | None = None


def read_losses(path: Path) -> list[Loss]:
    """Read a loss curve in the order in which it was logged.

    Raises:
        PawlError: missing file, or one that is no loss curve.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if missing := [
                name for name in ("step", "split", "loss") if name not in (rows.fieldnames or ())
            ]:
                raise ValueError(f"no column {', '.join(missing)}")
            found = [
                Loss(int(row["step"]), row["split"], float(row["loss"]), _epoch(row.get("epoch")))
                for row in rows
            ]
        if wrong := [loss.step for loss in found if not 0 <= loss.step < 2**53]:
            raise ValueError(f"step {wrong[0]}")
        return found
    except FileNotFoundError:
        raise PawlError(
            "a file that this step needs is missing",
            where=str(path),
            fix="run 'dvc repro' to make it",
        ) from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        fix = "columns are step,epoch,split,loss; run 'dvc repro -f train'"
        raise PawlError(f"not a loss curve: {error}", where=str(path), fix=fix) from None


def _epoch(text: str | None) -> float | None:
    return float(text) if text else None
