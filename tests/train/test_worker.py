"""The process that tries and then trains: what it does once for the micro run it does again for the
training.
"""

from __future__ import annotations

import io

from stages.train.worker import accept_numbered_cpus, on_cpu


def test_the_places_of_cpu_states_are_accepted_by_the_micro_run_and_by_the_training_after_it() -> (
    None
):
    import torch

    for _ in ("micro", "train"):
        accept_numbered_cpus()
    saved = io.BytesIO()
    torch.save({"exp_avg": torch.ones(3)}, saved)
    saved.seek(0)
    loaded = torch.load(saved, map_location="cpu:0", weights_only=True)["exp_avg"]
    assert loaded.equal(torch.ones(3)) and loaded.device.type == "cpu"


def test_a_job_is_on_the_cpu_if_each_of_its_parts_is() -> None:
    cpu, gpu = {"config": {"use_cpu": True}}, {"config": {"use_cpu": False}}
    assert on_cpu({"preflight": cpu, "runs": [cpu, cpu]}) and on_cpu(
        {"preflight": None, "runs": [cpu]}
    )
    assert not on_cpu({"preflight": gpu, "runs": []}) and not on_cpu(
        {"preflight": None, "runs": [gpu]}
    )
