"""Where questions with answers come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stages.common.errors import PawlError
from stages.common.schema.rules import checks, choice, need_set, number


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

    kind: str = choice("procedural", "jsonl", "wheel")
    task: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    package: str = ""
    sha256: str = ""
    prompt: str = "{question}"
    answers: int = number(0, low=0)
    count: int = number(0, low=0)
    part: str = "all"
    licence: str = ""


@checks(Source)
def check_source(source: Source, key: str) -> None:
    need_set(source, key, "kind", {"procedural": ("task",), "jsonl": ("path",), "wheel": ("package", "sha256", "path")}[source.kind])
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
