"""A quick stage that leaves what all stages before judge leave, made up, so that real judge,
report, track, DVC and MLflow run after it.

python -m tests.track.toy            the learning rate decides how good the candidate is
"""

from pathlib import Path

from omegaconf import OmegaConf

from stages.common.files import write_text
from tests.synthetic import write_run

if __name__ == "__main__":
    rate = OmegaConf.load("params.yaml").train.learning_rate
    write_run(Path(), base=0.3, tuned={3e-4: 0.9, 5e-4: 0.55}.get(rate, 0.6), seed=1)
    write_text("models/adapter/adapter_model.safetensors", f"weights of {rate}")
    write_text("data/train/rows.jsonl", "{}\n")
    write_text("reports/data_card.md", "# Training data: synthetic\n")
