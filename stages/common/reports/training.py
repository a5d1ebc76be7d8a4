"""reports/train.json: what a training took and came to."""

from __future__ import annotations

from stages.common.reports.base import Count, Figure, Report


class TrainReport(Report):
    """A training that ended well.

    Attributes:
        initial_loss, final_loss: first and last logged training loss; `best_eval_loss`: the lowest
            of held-out rows, None without any.
        steps, epochs, rows, tokens: done, of padding-free tokens; None if the trainer did not count
            them.
        adapter_sha256: of the weights that it left, an adapter or a whole model.
        tokens_per_s, tflop_per_s, utilisation: of all processes; the last one as a share of the
            GPUs' data sheets.
        peak_memory_gib: of the largest process; `peak_gpu_memory_gib`: None on a CPU.
        highest_grad_norm, last_grad_norm: absent if one was not finite.
        resumed_from_step: absent if it ran in one piece.
    """

    remedy = "run 'dvc repro -f train' to make the report again"

    initial_loss: Figure
    final_loss: Figure
    best_eval_loss: Figure | None = None
    steps: Count
    epochs: Figure
    rows: Count
    tokens: Count | None = None
    trainable_parameters: Count
    total_parameters: Count
    adapter_sha256: str = ""
    processes: Count = 1
    runtime_s: Figure
    tokens_per_s: Figure | None = None
    tflop_per_s: Figure | None = None
    utilisation: Figure | None = None
    peak_memory_gib: Figure | None = None
    peak_gpu_memory_gib: Figure | None = None
    estimated_memory_gib: Figure | None = None
    highest_grad_norm: Figure | None = None
    last_grad_norm: Figure | None = None
    warnings: list[str] = []
    resumed_from_step: Count = 0

    @property
    def gpu_hours(self) -> float:
        """What it took of GPUs; 0 on a CPU."""
        return 0.0 if self.peak_gpu_memory_gib is None else self.processes * self.runtime_s / 3600
