"""Every declared parameter: its type, its range, its unit. conf/ is composed against these classes,
and each stage checks again.

A section here is a section of params.yaml; a bound says what Pawl refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.benchmark import Benchmark, Suite
from stages.common.schema.data import Data
from stages.common.schema.engine import Engine, Evaluate
from stages.common.schema.judge import Judge
from stages.common.schema.llm import LLM
from stages.common.schema.loop import Agent, Experiment, Tracking
from stages.common.schema.model import Model
from stages.common.schema.rules import validate
from stages.common.schema.source import Source
from stages.common.schema.train import Launcher, Train

__all__ = [
    "LLM",
    "SECTIONS",
    "Agent",
    "Benchmark",
    "Config",
    "Data",
    "Engine",
    "Evaluate",
    "Experiment",
    "Judge",
    "Launcher",
    "Model",
    "Source",
    "Suite",
    "Tracking",
    "Train",
    "check_together",
    "validate",
]


@dataclass
class Config:
    """The whole of params.yaml. Sections are MISSING here and filled by conf/ (a default would be
    built before it is merged).
    """

    experiment: Experiment = MISSING
    model: Model = MISSING
    data: Data = MISSING
    benchmark: Benchmark = MISSING
    train: Train = MISSING
    launcher: Launcher = MISSING
    engine: Engine = MISSING
    evaluate: Evaluate = MISSING
    judge: Judge = MISSING
    tracking: Tracking = MISSING
    agent: Agent = MISSING


SECTIONS: dict[str, type] = {
    "experiment": Experiment,
    "model": Model,
    "data": Data,
    "benchmark": Benchmark,
    "train": Train,
    "launcher": Launcher,
    "engine": Engine,
    "evaluate": Evaluate,
    "judge": Judge,
    "tracking": Tracking,
    "agent": Agent,
}


def check_together(config: Config) -> None:
    """What one section alone cannot know.

    Raises:
        PawlError: training puts thoughts before the answers, and evaluation would score them as
            part of the answer.
    """
    asked = config.evaluate
    if config.data.think_tags and (asked.think_open, asked.think_close) != ("<think>", "</think>"):
        fix = (
            "add \"evaluate.think_open='<think>'\" \"evaluate.think_close='</think>'\", or set"
            " data.think_tags=false"
        )
        raise PawlError(
            "data.think_tags puts <think> before the answers, but evaluation does not take it off",
            where="data.think_tags",
            fix=fix,
        )
