"""A run to judge, and the parameters to judge it by."""

from __future__ import annotations

import functools
from dataclasses import asdict
from pathlib import Path

import pytest

from stages.common.config import read_params
from stages.common.schema import Experiment, Judge
from stages.judge.__main__ import judge_reports
from tests.synthetic import write_run

EXPERIMENT = Experiment(
    name="synthetic", hypothesis="It helps.", parent="", incumbent="reports/baseline"
)


@functools.cache
def _settings():
    known = read_params("train", "benchmark")
    return {"train": asdict(known.train), "benchmark": asdict(known.benchmark)}


def judge_run(root: Path, experiment: Experiment = EXPERIMENT, **changes):
    """Judge the reports under `root`, by the default's thresholds but for `changes` of the section
    judge.
    """
    thresholds = {
        "name": "rules",
        "kind": "rules",
        "alpha": 0.05,
        "min_effect": 0.01,
        "max_truncated": 0.2,
        "max_error_samples": 6,
    }
    settings = {**_settings(), "data": {"think_tags": False}}
    more = {name: changes.pop(name) for name in ("settings", "more_roots") if name in changes}
    return judge_reports(
        root,
        Judge(**{**thresholds, **changes}),
        experiment,
        max_contamination=0.5,
        **{"settings": settings, **more},
    ).plain()


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path)
