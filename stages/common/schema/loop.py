"""The experiment, where it is logged, and the agent that tries the next one."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.schema.rules import choice, number


@dataclass
class Experiment:
    """What the present experiment is about."""

    name: str = MISSING
    hypothesis: str = MISSING
    parent: str = ""
    incumbent: str = "reports/baseline"


@dataclass
class Tracking:
    """Where runs are logged. `register`: the name in MLflow's model registry, empty for no registration."""

    name: str = MISSING
    kind: str = choice("mlflow", "none")
    experiment: str = MISSING
    register: str = ""


@dataclass
class Agent:
    """The research loop."""

    name: str = MISSING
    timeout_h: float = number(above=0, unit="hours")
