"""The experiment, where it is logged, and the agent that tries the next one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from stages.common.errors import PawlError
from stages.common.schema.llm import LLM, no_secret
from stages.common.schema.rules import aside, checks, choice, number


@dataclass
class Experiment:
    """What the present experiment is about."""

    name: str = aside()
    hypothesis: str = MISSING
    parent: str = ""
    incumbent: str = "reports/baseline"


@dataclass
class Tracking:
    """Where runs are logged. `register`: the name in MLflow's model registry, empty for no
    registration.
    """

    name: str = aside()
    kind: str = choice("mlflow", "none")
    experiment: str = MISSING
    register: str = ""


@dataclass
class Budget:
    """When a run of the agent ends; 0 means no such limit.

    Attributes:
        plateau: experiments in a row, of this run, of which none was kept.
    """

    trials: int = number(0, low=0, unit="experiments")
    hours: float = number(0.0, low=0, unit="hours")
    llm_cost: float = number(0.0, low=0, unit="money, as agent.llm.price_in")
    gpu_hours: float = number(0.0, low=0, unit="GPU hours")
    plateau: int = number(0, low=0, unit="experiments")


@dataclass
class Dimension:
    """The values that the policy without a language model may try for one parameter.

    Attributes:
        kind: float or int between `low` and `high`, or one of `choices`.
        log: on a logarithmic scale.
        digits: a float is rounded to so many significant digits, so that it can be read and met
            again.
        first: how far the first step from a value that means off or all (0, -1) may go; 0: no such
            step.
    """

    kind: str = choice("float", "int", "choice")
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    digits: int = number(2, low=1, high=6)
    first: float = number(0.0, low=0)
    choices: list[Any] = field(default_factory=list)


@checks(Dimension)
def check_dimension(dimension: Dimension, key: str) -> None:
    if dimension.kind == "choice":
        if len(dimension.choices) < 2 or not all(
            isinstance(each, str | int | float | bool) for each in dimension.choices
        ):
            raise PawlError(
                f"{key}.choices needs two values or more",
                where=f"{key}.choices",
                fix="list them: [linear, cosine]",
            )
    elif not dimension.low < dimension.high or (dimension.log and dimension.low <= 0):
        raise PawlError(
            f"{key} has no range",
            where=key,
            fix="set low below high, and above 0 where log is true",
        )


@dataclass
class KnowledgeBase:
    """The Leeroopedia MCP server, asked over stdio; without a key in the environment it is not
    asked.
    """

    url: str = ""
    api_key_env: str = "LEEROOPEDIA_API_KEY"
    timeout_s: float = number(120.0, above=0, unit="seconds")
    pages: int = number(6, low=0, high=50, unit="cited pages that are read whole")


@checks(KnowledgeBase)
def check_knowledge_base(base: KnowledgeBase, key: str) -> None:
    no_secret(base.api_key_env, base.url, key)


@dataclass
class Page:
    """A page that may be read; {model} is the model's repository, {problem} what people report,
    quoted for a URL.
    """

    url: str = MISSING
    about: str = choice("model", "framework", "problem")


@dataclass
class Web:
    """Pages of official sources, fetched once and kept on disk."""

    enabled: bool = False
    sources: dict[str, Page] = field(default_factory=dict)
    keep_days: float = number(30.0, low=0, unit="days")
    timeout_s: float = number(20.0, above=0, unit="seconds")
    max_mib: float = number(4.0, above=0, unit="MiB a page")


@checks(Web)
def check_web(web: Web, key: str) -> None:
    for name, page in web.sources.items():
        if not re.match(r"https?://[^/{}@]+/", page.url):
            raise PawlError(
                f"{key}.sources.{name}.url names no fixed host",
                where=f"{key}.sources.{name}.url",
                fix="write https://host/path; {model} only in the path",
            )


@dataclass
class Agent:
    """The research loop.

    Attributes:
        reported: what people say is wrong with the model's answers, in their words.
        near: distance below which a proposal must say how it differs from an experiment that was
            tried; 1 is one threefold step.
        max_ratio: a number may change by this factor and no more, unless a quoted source names the
            larger jump.
    """

    name: str = aside()
    policy: str = choice("optuna", "llm")
    timeout_h: float = number(above=0, unit="hours")
    seed: int = number(0, low=0)
    options: int = number(3, low=2, high=3)
    max_revisions: int = number(2, low=0, high=10)
    max_ratio: float = number(3.0, above=1)
    near: float = number(0.5, low=0)
    min_tags: int = number(6, low=1)
    prompt_tokens: int = number(24000, low=2000, unit="tokens")
    passages: int = number(12, low=1, high=100)
    reported: str = ""
    repository: str = ""
    budget: Budget = field(default_factory=Budget)
    space: dict[str, Dimension] = field(default_factory=dict)
    llm: LLM = field(default_factory=LLM)
    knowledge_base: KnowledgeBase = field(default_factory=KnowledgeBase)
    web: Web = field(default_factory=Web)
