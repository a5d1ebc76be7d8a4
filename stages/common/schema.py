"""Every declared parameter: its type, its range, its unit. conf/ is composed against these classes, and each stage checks again.

`help` says what a key does; a bound says what Pawl refuses. A section here is a section of params.yaml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from omegaconf import MISSING

from stages.common.errors import PawlError


def _number(
    default: Any = MISSING, *, low: float | None = None, above: float | None = None, high: float | None = None, unit: str = ""
) -> Any:
    return field(default=default, metadata={"low": low, "above": above, "high": high, "unit": unit})


def _choice(*options: str) -> Any:
    return field(default=MISSING, metadata={"options": options})


@dataclass
class Source:
    """Where questions with answers come from, for a benchmark's task or for training data.

    Attributes:
        kind: procedural (a reasoning_gym task), jsonl (a file in data/local/), wheel (a JSONL file inside a package).
        task, settings: the reasoning_gym task and its arguments.
        path: the JSONL file, or the file inside the wheel; rows with `question` and `answer`, instruction/input/output or messages.
        package, sha256: the wheel as name==version and its hash; for jsonl, the file's hash (checked where it is given).
        prompt: the question as the model sees it; {question} is replaced.
        answers: keep only questions with the first N different answers, in file order (0: all).
        count: rows wanted (training data only; 0: all).
        part: all, or the train, val or test part of a seeded split by answer (half, a quarter, a quarter).
        licence: named in the data card.
    """

    kind: str = _choice("procedural", "jsonl", "wheel")
    task: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    package: str = ""
    sha256: str = ""
    prompt: str = "{question}"
    answers: int = _number(0, low=0)
    count: int = _number(0, low=0)
    part: str = "all"
    licence: str = ""


@dataclass
class Model:
    """The base model. `source` says which of the keys below it are read."""

    name: str = MISSING
    source: str = _choice("package", "hub", "path", "random")
    dtype: str = _choice("bfloat16", "float16", "float32")
    package: str = ""
    sha256: str = ""
    file: str = ""
    repo: str = ""
    revision: str = ""
    path: str = ""
    licence: str = ""


@dataclass
class Data:
    """Training data."""

    name: str = MISSING
    seed: int = _number(low=0)
    sources: dict[str, Source] = MISSING
    max_rows: int = _number(low=0)
    ngram: int = _number(low=3, high=50, unit="words")
    max_contamination: float = _number(low=0, high=1)
    max_bad_fraction: float = _number(low=0, high=1)


@dataclass
class Benchmark:
    """Validation and test items. A task name is the `benchmark` column of the per-item rows."""

    name: str = MISSING
    seed: int = _number(low=0)
    tasks: dict[str, Source] = MISSING
    val_items: int = _number(low=1, unit="items a task")
    test_items: int = _number(low=1, unit="items a task")
    evaluator: str = MISSING
    postprocessor: str = ""


@dataclass
class Train:
    """Fine-tuning by LLaMA-Factory; names are its own where they are unambiguous."""

    name: str = MISSING
    stage: str = _choice("sft")
    finetuning_type: str = _choice("lora")
    learning_rate: float = _number(above=0, high=1, unit="per step")
    num_train_epochs: float = _number(above=0, high=1000, unit="epochs")
    max_steps: int = _number(low=-1, unit="steps")
    per_device_train_batch_size: int = _number(low=1, unit="rows")
    gradient_accumulation_steps: int = _number(low=1, unit="batches")
    cutoff_len: int = _number(low=8, unit="tokens")
    lora_rank: int = _number(low=1, high=1024)
    lora_alpha: int = _number(low=1)
    lora_dropout: float = _number(low=0, high=0.99)
    lora_target: str = MISSING
    lr_scheduler_type: str = MISSING
    warmup_ratio: float = _number(low=0, high=1)
    weight_decay: float = _number(low=0, high=1)
    seed: int = _number(low=0)
    precision: str = _choice("bf16", "fp16", "fp32")
    gradient_checkpointing: bool = MISSING
    device: str = _choice("auto", "cpu")
    logging_steps: int = _number(low=1, unit="steps")


@dataclass
class Engine:
    """What stands behind the OpenAI-compatible endpoint that evaluation talks to."""

    name: str = MISSING
    kind: str = _choice("transformers", "vllm", "vllm_cpu", "external")
    dtype: str = _choice("auto", "bfloat16", "float16", "float32")
    max_model_len: int = _number(low=16, unit="tokens")
    startup_timeout_s: float = _number(above=0, unit="seconds")
    extra_args: list[str] = field(default_factory=list)
    base_url: str = ""
    served_model: str = ""
    api_key_env: str = ""


@dataclass
class Evaluate:
    """How items are asked."""

    name: str = MISSING
    concurrency: int = _number(low=1, high=4096, unit="requests in flight")
    max_output_tokens: int = _number(low=1, unit="tokens")
    temperature: float = _number(low=0, high=2)
    top_p: float = _number(above=0, high=1)
    seed: int = _number(low=0)
    request_timeout_s: float = _number(above=0, unit="seconds")
    retries: int = _number(low=0, high=20)


@dataclass
class Judge:
    """When a candidate counts as better."""

    name: str = MISSING
    kind: str = _choice("rules")
    alpha: float = _number(above=0, high=0.5)
    min_effect: float = _number(low=0, high=1, unit="accuracy, 0.01 is one point")
    max_truncated: float = _number(low=0, high=1)


@dataclass
class Tracking:
    """Where runs are logged."""

    name: str = MISSING
    kind: str = _choice("mlflow", "none")
    experiment: str = MISSING


@dataclass
class Launcher:
    """How training is started."""

    name: str = MISSING
    kind: str = _choice("local")
    timeout_h: float = _number(above=0, unit="hours")


@dataclass
class Agent:
    """The research loop."""

    name: str = MISSING
    timeout_h: float = _number(above=0, unit="hours")


@dataclass
class Experiment:
    """What the present experiment is about."""

    name: str = MISSING
    hypothesis: str = MISSING
    parent: str = ""
    incumbent: str = "reports/baseline"


@dataclass
class Config:
    """The whole of params.yaml. Sections are MISSING here and filled by conf/ (a default would be built before it is merged)."""

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
    "experiment": Experiment, "model": Model, "data": Data, "benchmark": Benchmark, "train": Train, "launcher": Launcher,
    "engine": Engine, "evaluate": Evaluate, "judge": Judge, "tracking": Tracking, "agent": Agent,
}  # fmt: skip


def validate(value: Any, key: str) -> None:
    """Check the bounds and choices of a dataclass and of everything in it; types were checked when it was made.

    Raises:
        PawlError: the first value out of range; `where` is its dotted key.
    """
    if isinstance(value, dict):
        for name, part in value.items():
            validate(part, f"{key}.{name}")
    if not is_dataclass(value):
        return
    for spec in fields(value):
        name, given, rule = f"{key}.{spec.name}", getattr(value, spec.name), spec.metadata
        validate(given, name)
        if "options" in rule and given not in rule["options"]:
            raise PawlError(f"{name} is {given!r}", where=name, fix=f"choose one of: {', '.join(rule['options'])}")
        if "low" in rule and not _in_range(given, rule):
            raise PawlError(f"{name} is {given!r}, out of range", where=name, fix=f"choose {_range(rule)}")
    check = _CHECKS.get(type(value))
    if check:
        check(value, key)


def _in_range(given: float, rule: Any) -> bool:
    if given != given:  # NaN compares false with everything, so it must be refused first
        return False
    low, above, high = rule["low"], rule["above"], rule["high"]
    return (low is None or given >= low) and (above is None or given > above) and (high is None or given <= high)


def _range(rule: Any) -> str:
    parts = [
        f"{word} {rule[name]:g}" for name, word in (("low", "at least"), ("above", "above"), ("high", "at most")) if rule[name] is not None
    ]
    return " and ".join(parts) + (f" ({rule['unit']})" if rule["unit"] else "")


def _check_model(model: Model, key: str) -> None:
    needed = {"package": ("package", "sha256", "file"), "hub": ("repo", "revision"), "path": ("path",), "random": ()}[model.source]
    for name in needed:
        if not getattr(model, name):
            raise PawlError(f"{key}.{name} is empty, but {key}.source is {model.source!r}", where=f"{key}.{name}", fix=f"set {key}.{name}")


def _check_source(source: Source, key: str) -> None:
    needed = {"procedural": ("task",), "jsonl": ("path",), "wheel": ("package", "sha256", "path")}[source.kind]
    for name in needed:
        if not getattr(source, name):
            raise PawlError(f"{key}.{name} is empty, but {key}.kind is {source.kind!r}", where=f"{key}.{name}", fix=f"set {key}.{name}")
    if source.kind == "jsonl" and (not source.path.startswith("data/local/") or ".." in source.path.split("/")):
        raise PawlError(
            f"{key}.path is {source.path!r}, where DVC does not see its changes",
            where=f"{key}.path",
            fix="copy or link the file into data/local/ and name it there",
        )
    if source.part not in ("all", "train", "val", "test"):
        raise PawlError(f"{key}.part is {source.part!r}", where=f"{key}.part", fix="choose one of: all, train, val, test")
    if "{question}" not in source.prompt:
        raise PawlError(f"{key}.prompt has no place for the question", where=f"{key}.prompt", fix="write {question} where it belongs")


_NO_SECRET = "put the key into an environment variable or .env, and the variable's name into engine.api_key_env"


def _check_engine(engine: Engine, key: str) -> None:
    if engine.api_key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", engine.api_key_env):
        raise PawlError(f"{key}.api_key_env is not the name of an environment variable", where=f"{key}.api_key_env", fix=_NO_SECRET)
    if re.search(r"[@?]", engine.base_url):
        raise PawlError(f"{key}.base_url carries a user or a query, which may be a secret", where=f"{key}.base_url", fix=_NO_SECRET)
    if engine.kind == "external" and not engine.base_url:
        raise PawlError(f"{key}.base_url is empty, but {key}.kind is 'external'", where=f"{key}.base_url", fix=f"set {key}.base_url")


_CHECKS: dict[type, Any] = {Model: _check_model, Source: _check_source, Engine: _check_engine}
