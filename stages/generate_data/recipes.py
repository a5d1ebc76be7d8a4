"""What a teacher does with a source's rows; its words are in prompts/generate_data/.

answer     answers each question with reasoning, `candidates` times; the first answer that is shown
to be right is taken rewrite    the same, where the row's own solution is shown and is to be written
better similar    new questions in the style of the source's, none nearly the same as another, each
then answered as above documents  questions and answers from passages of the source's texts

A right answer is known by program where there is one (the task's scorer, or the number that the row
gives), else by the majority of the candidates. What a teacher writes is data: it is parsed by line,
and nothing in it is run.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.llm import Reply
from stages.common.questions import Bad, Question, normalize, scorer
from stages.common.schema import Data, Source
from stages.generate_data import grams, minhash
from stages.generate_data.rows import Row
from stages.generate_data.teacher import Refused, Teacher

EXAMPLES, NEW = 5, 5
"""Examples shown, and questions asked for, in one request for similar questions."""
PAIRS = 3
"""Questions asked for from one passage."""
ALIKE = 0.5
"""Similarity from which a new question is a copy (Jaccard of pairs of words; self-instruct takes
ROUGE-L 0.7, which is about as strict).
"""
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_FINAL = re.compile(
    r"^[\W_]*(?:the )?(?:final )?answer[\W_]*?(?:[:\uff1a]|\bis\b)[ *_]*(.+?)[ *_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ITEM = re.compile(r"^\s*\d+[.)]\s+(.+?)\s*$", re.MULTILINE)
_PAIR = re.compile(r"^\s*Q\s*[:\uff1a]\s*(.+?)\s*\n\s*A\s*[:\uff1a]\s*(.+?)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")

# no file of ours can hold it, and no tokenizer reads it
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

Unverified = tuple[Row, str, str]
"""A row without an answer that holds, why, and one of the replies."""


@cache
def _template(name: str) -> Any:
    import jinja2

    folder = jinja2.FileSystemLoader(ROOT / "prompts" / "generate_data")
    return jinja2.Environment(
        loader=folder, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).get_template(f"{name}.j2")


def prompt(name: str, **known: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": _template(name).render(**known).strip()}]


def improve(
    rows: Iterable[Row], source: Source, data: Data, teacher: Teacher
) -> Generator[Row | Unverified | Bad, None, None]:
    """Each row with the teacher's reasoning and answer, in the order of the rows."""
    judge = _judge(source)
    name = "rewrite" if source.recipe == "rewrite" else "answer"

    def requests() -> Iterator[tuple[tuple[Row, int], list[dict[str, str]], int]]:
        for row in rows:
            question = row.question
            solution = "\n".join(filter(None, (question.reasoning, question.answer)))
            messages = prompt(name, question=question.question, solution=solution)
            earlier = [{"role": role, "content": content} for role, content in question.context]
            for candidate in range(source.candidates):
                yield (row, candidate), [*earlier, *messages], data.seed + candidate

    replies: list[Reply | Refused] = []
    for (row, candidate), reply in teacher.answers(requests()):
        replies.append(reply)
        if candidate == source.candidates - 1:
            yield _chosen(row, replies, judge, source)
            replies = []


def _chosen(
    row: Row,
    replies: list[Reply | Refused],
    judge: Callable[[str, Question], bool] | None,
    source: Source,
) -> Row | Unverified | Bad:
    whole = [reply for reply in replies if _storable(reply) and reply.finish_reason != "length"]
    usable = [parts for reply in whole if (parts := divided(reply.text))]
    said = next((reply.text for reply in replies if isinstance(reply, Reply) and reply.text), "")
    if not usable:
        refused = next((reply.reason for reply in replies if isinstance(reply, Refused)), "")
        return (
            Bad(row.where, refused) if refused else (row, "no candidate ends with an answer", said)
        )
    mode = _mode(source, row.question)
    if mode == "majority":
        votes = Counter(normalize(answer) for _, answer in usable)
        most, count = votes.most_common(1)[0]
        right = (
            [parts for parts in usable if normalize(parts[1]) == most]
            if 2 * count > len(replies)
            else []
        )
        why = f"no answer has a majority of {len(replies)} candidates"
    else:
        right = [
            parts
            for parts in usable
            if mode == "none" or _right(mode, parts[1], row.question, judge)
        ]
        why = f"none of {len(usable)} candidates is right"
    if not right:
        return row, why, said
    reasoning, answer = right[0]
    known = row.question.answer.strip()
    return replace(
        row,
        question=replace(
            row.question,
            reasoning=reasoning,
            answer=known if known and mode in ("scorer", "number", "text") else answer,
        ),
    )


def _storable(reply: Reply | Refused) -> TypeGuard[Reply]:
    return isinstance(reply, Reply) and not _UNSTORABLE.search(reply.text)


def _mode(source: Source, question: Question) -> str:
    """How a right answer is known."""
    if source.verify != "auto":
        return source.verify if question.answer or source.verify in ("none", "majority") else "none"
    if source.kind == "procedural":
        return "scorer"
    if number_of(question.answer) is not None:
        return "number"
    return "majority" if source.candidates >= 3 else "none"


def _judge(source: Source) -> Callable[[str, Question], bool] | None:
    if source.kind != "procedural":
        return None
    score = scorer(source)
    # partial credit is given where a right answer is merely contained
    return lambda answer, question: score(answer, question) >= 1.0


def _right(
    mode: str, answer: str, question: Question, judge: Callable[[str, Question], bool] | None
) -> bool:
    if mode == "scorer":
        assert judge
        return judge(answer, question)
    if mode == "number":
        given, known = number_of(answer), number_of(question.answer)
        return given is not None and given == known
    return normalize(answer) == normalize(question.answer)


def number_of(text: str) -> float | None:
    """The number that a text is, a unit or a currency sign beside it aside; None where it holds
    none, or several.
    """
    found = _NUMBER.findall(text)
    return float(found[0].replace(",", "")) if len(found) == 1 else None


def divided(text: str) -> tuple[str, str] | None:
    """Reasoning and answer of a reply that ends with "Answer: ..."; a model's own <think> tags are
    taken off. None without an answer.
    """
    thought = " ".join(part.strip() for part in _THOUGHT.findall(text))
    told = _THOUGHT.sub("", text).replace("<think>", "").replace("</think>", "").strip()
    finals = list(_FINAL.finditer(told))
    if not finals:
        return None
    answer = finals[-1][1].strip()
    reasoning = told[: finals[-1].start()].strip()
    return ("\n\n".join(filter(None, (thought, reasoning))), answer) if answer else None


# --- questions that a teacher makes up


class Diversity:
    """Which new questions are unlike all before: those of the source, and those that were taken."""

    def __init__(self, scratch: Path) -> None:
        self._near = minhash.NearDuplicates(ALIKE, scratch / "questions")

    def new(self, questions: list[str]) -> list[bool]:
        given = grams.block([grams.words(question) for question in questions])
        starts, hashes = grams.runs_of(given.hashes, given.text, 2)
        counts = given.text[starts]
        sizes = [int((counts == number).sum()) for number in range(len(questions))]
        flags = iter(
            self._near.add(minhash.signatures(hashes, [size for size in sizes if size]))
            if any(sizes)
            else []
        )
        return [size > 0 and not next(flags) for size in sizes]


def similar(
    seeds: list[Question], source: Source, seed: int, teacher: Teacher, scratch: Path, where: str
) -> Iterator[tuple[str, str]]:
    """New questions without end, as (where it comes from, question), each unlike all before. Ends
    after 50 requests without a new one.
    """
    if not seeds:
        raise PawlError(
            "there are no questions to imitate", where=where, fix="give the source a few"
        )
    diversity = Diversity(scratch)
    for start in range(0, len(seeds), 1000):
        diversity.new([question.question for question in seeds[start : start + 1000]])

    def requests() -> Iterator[tuple[int, list[dict[str, str]], int]]:
        number = 0
        while True:
            rng = random.Random(f"{seed}\0similar\0{number}")
            shown = [question.question for question in rng.sample(seeds, min(EXAMPLES, len(seeds)))]
            yield number, prompt("similar", examples=shown, wanted=NEW), seed + number
            number += 1

    barren = 0
    # not more at once than are wanted: what a reader does not take is paid for all the same
    for number, reply in teacher.answers(requests(), ahead=-(-source.count // NEW)):
        found = _ITEM.findall(reply.text) if _storable(reply) else []
        fresh = (
            [
                question
                for question, is_new in zip(found, diversity.new(found), strict=True)
                if is_new
            ]
            if found
            else []
        )
        barren = 0 if fresh else barren + 1
        for place, question in enumerate(fresh):
            yield f"similar {number}.{place}", question
        if barren == 50:
            return


def questions_from(
    found: Iterable[tuple[str, str]], wanted: int, seed: int, teacher: Teacher, scratch: Path
) -> Generator[tuple[str, str, str] | Bad, None, None]:
    """Questions with answers from every passage that was found, as (file#number, question, answer);
    none nearly the same as one before.
    """
    diversity = Diversity(scratch)
    requests = (
        (place, prompt("documents", passage=passage, wanted=PAIRS), seed)
        for place, passage in found
    )
    for place, reply in teacher.answers(requests, ahead=-(-wanted // PAIRS)):
        if isinstance(reply, Refused):
            yield Bad(place, reply.reason)
            continue
        pairs = _PAIR.findall(reply.text) if _storable(reply) else []
        if not pairs:
            yield Bad(place, "the teacher's reply holds no questions", reply.text[:2000])
            continue
        for (question, answer), is_new in zip(
            pairs, diversity.new([question for question, _ in pairs]), strict=True
        ):
            if is_new:
                yield place, question, answer
