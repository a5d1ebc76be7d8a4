"""Where questions with answers come from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from stages.common.errors import PawlError
from stages.common.schema.rules import aside, checks, choice, need_set, number
from stages.common.shapes import FORMATS

KINDS = {
    "procedural": ("task",),
    "jsonl": ("path",),
    "wheel": ("package", "sha256", "path"),
    "file": ("path",),
    "hub": ("repo", "revision"),
    "documents": ("path",),
}
"""What each kind of source needs."""
COLUMNS = (
    "question",
    "answer",
    "context",
    "choices",
    "reasoning",
    "system",
    "history",
    "instruction",
    "input",
    "output",
    "messages",
    "conversations",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "label",
    "kto_tag",
    "text",
    "category",
    "difficulty",
)
"""Our names of what a row's keys hold (see stages/common/shapes.py)."""
RECIPES = ("", "answer", "rewrite", "similar", "documents")
VERIFY = ("auto", "none", "scorer", "number", "text", "majority")
_DEFAULTED = {
    "part": ("all", "train", "val", "test"),
    "format": FORMATS,
    "recipe": RECIPES,
    "tier": ("strong", "weak"),
    "verify": VERIFY,
}


@dataclass
class Source:
    """Where questions with answers come from, for a benchmark's task or for training data.

    Attributes:
        kind: procedural (a reasoning_gym task), file (JSON Lines, JSON, CSV or Parquet in
            data/local/; jsonl is the same), wheel (such a file inside a package), hub (a data set
            of the Hugging Face hub), documents (a folder of texts in data/local/).
        task, settings: the reasoning_gym task and its arguments.
        path: the file or folder, the file inside the wheel, or a pattern of files of the hub's data
            set ("": those that name its split).
        format, columns: how a row states question and answer where its keys do not say it
            (stages/common/shapes.py); our key to its own.
        ignore: keys of its rows that change nothing of what a row means (id, source and the like
            are known to be so).
        repo, subset, revision, split: the hub's data set, pinned by its commit.
        package, sha256: the wheel as name==version and its hash; for a file, its hash (checked
            where it is given).
        prompt: the question as the model sees it; {question} is replaced.
        answers: keep only questions with the first N different answers, in file order (0: all).
        count: rows wanted (training data only; 0: all). A teacher is asked until so many are kept,
            unless the sample is stratified.
        weight: this source's share of the rows among all sources that have one (training data only;
            0: no share, see count).
        part: all, or the train, val or test part of a seeded split by answer (half, a quarter, a
            quarter).
        recipe, tier, candidates, verify: what the teacher does with the rows (see
            stages/generate_data/recipes.py), which teacher, how many answers it gives to each
            question, and how a right one is known. auto: the task's scorer, else a number, else the
                majority.
        licence: named in the data card.
    """

    kind: str = choice(*KINDS)
    task: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    format: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    ignore: list[str] = field(default_factory=list)
    repo: str = ""
    subset: str = ""
    revision: str = ""
    split: str = "train"
    package: str = ""
    sha256: str = ""
    prompt: str = "{question}"
    answers: int = number(0, low=0)
    count: int = number(0, low=0)
    weight: float = number(0.0, low=0)
    part: str = "all"
    recipe: str = ""
    tier: str = "strong"
    candidates: int = number(1, low=1, high=64, unit="answers a question")
    verify: str = "auto"
    licence: str = aside("")


@checks(Source)
def check_source(source: Source, key: str) -> None:
    need_set(source, key, "kind", KINDS[source.kind])
    if source.kind in ("jsonl", "file", "documents") and (
        not source.path.startswith("data/local/") or ".." in source.path.split("/")
    ):
        raise PawlError(
            f"{key}.path is {source.path!r}, where DVC does not see its changes",
            where=f"{key}.path",
            fix="copy or link the file into data/local/ and name it there",
        )
    for name, options in _DEFAULTED.items():
        if (given := getattr(source, name)) not in options:
            raise PawlError(
                f"{key}.{name} is {given!r}",
                where=f"{key}.{name}",
                fix=f"choose one of: {', '.join(filter(None, options))}",
            )
    for name in source.columns:
        if name not in COLUMNS:
            fix = f"choose one of: {', '.join(COLUMNS)}; the file's own name comes after the ="
            raise PawlError(
                f"{key}.columns.{name} is none of our names", where=f"{key}.columns.{name}", fix=fix
            )
    if source.kind == "hub" and not re.fullmatch(r"[0-9a-f]{40}", source.revision):
        fix = "write the commit that the hub shows, 40 hex digits: a branch or a tag may move"
        raise PawlError(
            f"{key}.revision is {source.revision!r}, no commit", where=f"{key}.revision", fix=fix
        )
    if "{question}" not in source.prompt:
        raise PawlError(
            f"{key}.prompt has no place for the question",
            where=f"{key}.prompt",
            fix="write {question} where it belongs",
        )
    if source.recipe and (source.kind == "documents") != (source.recipe == "documents"):
        fix = (
            "a folder of documents gives questions only through the recipe 'documents', and that"
            " recipe reads nothing else"
        )
        raise PawlError(
            f"{key}.recipe is {source.recipe!r}, but {key}.kind is {source.kind!r}",
            where=f"{key}.recipe",
            fix=fix,
        )
    if source.recipe in ("similar", "documents") and not source.count:
        raise PawlError(
            f"{key}.count is 0, but a teacher's questions have no end",
            where=f"{key}.count",
            fix="say how many rows you want",
        )
    if source.verify == "majority" and source.candidates < 3:
        raise PawlError(
            f"{key}.candidates is {source.candidates}, too few for a majority",
            where=f"{key}.candidates",
            fix="set it to 3 or more",
        )
    if source.verify == "scorer" and source.kind != "procedural":
        raise PawlError(
            f"{key}.verify is 'scorer', which only procedural sources have",
            where=f"{key}.verify",
            fix="set it to auto",
        )
