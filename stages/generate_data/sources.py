"""The rows of every source of params.yaml on their way into the filters, a block at a time."""

from __future__ import annotations

import math
import pickle
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from stages.common import columns
from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_text
from stages.common.questions import (
    Bad,
    Question,
    divide,
    first_answers,
    rows_of,
    split_keys,
    stream,
)
from stages.common.schema import Data, Source
from stages.generate_data import documents, hub, recipes
from stages.generate_data.filters import Filters
from stages.generate_data.pilot import Pilot
from stages.generate_data.rows import Counts, Row
from stages.generate_data.teacher import Teacher

BLOCK = 1000
_BAD = "correct or remove those rows, or raise data.max_bad_fraction"
_SEEDS = 2000  # of a source's questions, as examples for new ones
Teachers = Callable[[str], Teacher]
"""The teacher of a tier."""


def gather(data: Data, filters: Filters, teachers: Teachers, scratch: Path, *, plain: bool) -> None:
    """Put the rows of all sources through the filters into the spool; the same for the same
    parameters, files and replies.

    Args:
        plain: training takes plain text: the `text` of a row, or the documents of a folder.

    Raises:
        PawlError: bad rows above data.max_bad_fraction, contamination above data.max_contamination,
            too few rows, sources of two kinds.
    """
    if not data.sources:
        raise PawlError(
            "the training data has no sources", where="data.sources", fix="name at least one"
        )
    for name, source in data.sources.items():
        source = _texts(source, name) if plain else _questions(source, name)
        one = _One(data, name, source, filters, filters.counts[name], teachers, scratch)
        (one.procedural if source.kind == "procedural" else one.finite)()
        one.refuse_bad()
        _refuse_contaminated(data, name, filters)
        if len(filters.kinds) > 1:
            what = (
                f"the rows are of {len(filters.kinds)} kinds ({', '.join(sorted(filters.kinds))}),"
                " and training takes one"
            )
            raise PawlError(
                what,
                where=f"data.sources.{name}",
                fix=(
                    "take sources of one kind (answers, pairs, labelled answers), or name their"
                    " format"
                ),
            )
    if not len(filters.spool):
        raise PawlError(
            "no training row is left after the filters",
            where="data.sources",
            fix=f"see why: {why(filters.counts)}",
        )


def _texts(source: Source, name: str) -> Source:
    if source.recipe or source.format or source.kind == "procedural":
        given = "a task"
        if source.recipe:
            given = f"the recipe {source.recipe!r}"
        elif source.format:
            given = f"the format {source.format!r}"
        fix = (
            "take a file whose rows have a `text`, or a folder of documents without a recipe; or"
            " learn from answers (train.stage=sft)"
        )
        raise PawlError(
            f"train.stage is pt, which learns from plain text, and {given} makes answers",
            where=f"data.sources.{name}",
            fix=fix,
        )
    return replace(source, format="text")


def _questions(source: Source, name: str) -> Source:
    if source.kind == "documents" and not source.recipe:
        fix = (
            "set recipe to documents, for a teacher's questions about them; or learn from the text"
            " itself (train=pt)"
        )
        raise PawlError(
            "a folder of documents holds no questions", where=f"data.sources.{name}.recipe", fix=fix
        )
    return source


def _refuse_contaminated(data: Data, name: str, filters: Filters) -> None:
    """Each source is held to the limit by itself, so that a leak cannot hide behind a large clean
    source.
    """
    found, searched = filters.counts[name].contaminated, filters.searched[name]
    if searched and found / searched > data.max_contamination:
        hits = ", ".join(
            f"{rows} {hit.match} with {hit.benchmark}" for hit, rows in filters.hits.most_common(3)
        )
        limit = f"data.max_contamination is {data.max_contamination:g}"
        what = (
            f"{found} of {searched} different rows of {name} hold a benchmark item ({hits});"
            f" {limit}"
        )
        raise PawlError(
            what,
            where=f"data.sources.{name}",
            fix="take other data; raise the limit only if you know why so many match",
        )


class _One:
    """One source."""

    def __init__(
        self,
        data: Data,
        name: str,
        source: Source,
        filters: Filters,
        counts: Counts,
        teachers: Teachers,
        scratch: Path,
    ) -> None:
        self.data, self.name, self.source, self.filters, self.counts = (
            data,
            name,
            source,
            filters,
            counts,
        )
        self.where = f"data.sources.{name}"
        self._teachers, self._scratch = teachers, scratch
        self._first_bad: list[Bad] = []

    def procedural(self) -> None:
        """Draw until enough rows are kept; a task that has given what it can is an error."""
        source, wanted = self.source, self.source.count
        if source.weight and not wanted:
            wanted = math.ceil(
                self.data.max_rows
                * source.weight
                / sum(other.weight for other in self.data.sources.values())
            )
        if not wanted:
            what = f"{self.where}.count is 0, but a procedural source has no end"
            raise PawlError(what, where=f"{self.where}.count", fix="say how many rows you want")
        # a seed of its own for each source: two sources of one task must not draw the same
        # questions
        questions = stream(
            source, int(sha256_text(f"{self.data.seed}\0{self.name}")[:7], 16), self.where
        )
        kept = barren = drawn = 0
        if source.recipe == "similar":
            self._similar([question for question in islice(questions, _SEEDS)])
            return
        while kept < wanted and barren < max(1000, 10 * wanted):
            # never more than are still wanted, so that the last one drawn is the last one needed
            block = [
                self._row(question, f"draw {drawn + at}")
                for at, question in enumerate(islice(questions, min(wanted - kept, BLOCK)))
            ]
            drawn += len(block)
            new = self._through(block)
            kept, barren = kept + new, 0 if new else barren + len(block)
        if kept < wanted:
            what = (
                f"{source.task} gave {kept} usable rows, {wanted} are wanted:"
                f" {why({self.name: self.counts})}"
            )
            fix = "lower count or widen settings; questions of the benchmark do not count"
            if source.recipe:
                fix = (
                    f"take a stronger teacher (data.teacher.{source.tier}) or more candidates where"
                    f" rows are unverified; else {fix}"
                )
            raise PawlError(what, where=f"{self.where}.count", fix=fix)

    def finite(self) -> None:
        """Every row of a file, a package, a data set or a folder."""
        if self.source.recipe == "documents":
            self._documents()
        elif self.source.recipe == "similar":
            self._similar([row.question for row in islice(self._rows(), _SEEDS)])
        else:
            self._through(self._rows(), 0 if self.data.stratify else self.source.count)

    def _through(self, rows: Iterable[Row], wanted: int = 0) -> int:
        """How many rows the filters keep, after the teacher where there is a recipe; he is asked
        for no more than are `wanted` (0: all).
        """
        if not self.source.recipe:
            return sum(self.filters.keep(block) for block in _blocks(self._counted(rows)))
        clean = (row for block in _blocks(self._counted(rows)) for row in self.filters.clean(block))
        if not wanted:
            return self._improved(clean)
        kept = 0
        while block := list(islice(clean, min(BLOCK, wanted - kept))):
            kept += self._improved(block)
        return kept

    def _improved(self, clean: Iterable[Row]) -> int:
        kept, rest = 0, iter(clean)
        # the first few alone, so that nothing is paid for ahead of them
        for part in (islice(rest, self._pilot.left()), rest):
            rows = self._sound(
                self._pilot.watch(
                    recipes.improve(part, self.source, self.data, self._pilot.teacher)
                )
            )
            kept += sum(self.filters.keep(block) for block in _blocks(rows))
        return kept

    @cached_property
    def _pilot(self) -> Pilot:
        return Pilot(self.where, self._teachers(self.source.tier))

    def _counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.counts.read += 1
            yield row

    def _sound(self, results: Iterable[Any]) -> Iterator[Row]:
        """What the teacher answered in a usable way; the rest is counted."""
        for result in results:
            if isinstance(result, Row):
                yield result
            elif isinstance(result, Bad):
                self._bad(result, "refused", counted=True)
            else:
                self.filters.bad(self.name, Bad(result[0].where, result[1]), "unverified")

    def _row(self, question: Question, where: str) -> Row:
        return Row(question, self.name, where)

    def _rows(self) -> Iterator[Row]:
        prompt = self.source.prompt
        for place, question in self._read() if self.source.part == "all" else self._parted():
            yield self._row(
                replace(question, question=prompt.replace("{question}", question.question)), place
            )

    def _read(self) -> Iterator[tuple[str, Question]]:
        known = first_answers(self.source)
        for found in {"hub": hub.rows_of, "documents": documents.rows_of}.get(
            self.source.kind, rows_of
        )(self.source, self.where):
            if isinstance(found, Bad):
                self._bad(found)
            elif known(found[1].answer):
                self.filters.unused[self.name].update(found[1].unused)
                yield found

    def _parted(self) -> Iterator[tuple[str, Question]]:
        """The rows of one part. The whole file decides which they are, so it waits on disk."""
        starts, keys, answers = array("Q"), array("Q"), array("Q")
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            for found in self._read():
                starts.append(file.tell())
                pickle.dump(found, file)
                key, answer = split_keys(found[1], self.data.seed)
                keys.append(key)
                answers.append(answer)
            for number in divide(keys, answers)[self.source.part]:
                file.seek(starts[number])
                yield pickle.load(file)  # noqa: S301 - written above

    def _bad(self, bad: Bad, key: str = "bad", *, counted: bool = False) -> None:
        self.counts.read += 0 if counted else bad.rows
        told = self.filters.bad(self.name, bad, key)
        if len(self._first_bad) < 5:
            self._first_bad.append(told)

    def refuse_bad(self) -> None:
        bad, total = self.counts.bad + self.counts.refused, self.counts.read
        if not total:
            raise PawlError(
                "the file has no rows",
                where=self.source.path or self.where,
                fix="write one JSON object a line",
            )
        if bad / total > self.data.max_bad_fraction:
            shown = "\n".join(f"    {row.where}: {row.reason:.160}" for row in self._first_bad)
            limit = f"more than data.max_bad_fraction ({self.data.max_bad_fraction:g}) allows"
            what = f"{bad} of {total} rows cannot be used, {limit}:\n{shown}"
            raise PawlError(
                what, where=self.where, fix=columns.fix(self._first_bad, self.where) or _BAD
            )

    def _similar(self, seeds: list[Question]) -> None:
        """New questions until `count` of them are kept, each answered by the same teacher."""
        teacher = self._teachers(self.source.tier)
        # the examples go into prompts, so they must hold nothing of the benchmark either
        clean = [
            row.question
            for row in self.filters.clean(
                [self._row(q, f"example {at}") for at, q in enumerate(seeds)]
            )
        ]
        self.counts.read += self.counts.contaminated
        asked = recipes.similar(
            clean, self.source, self.data.seed, teacher, self._scratch, self.where
        )
        answering = replace(
            self.source,
            kind="file",
            recipe="answer",
            verify="auto" if self.source.verify == "scorer" else self.source.verify,
        )
        kept = 0
        while kept < self.source.count:
            block = [
                self._row(Question(question, ""), place)
                for place, question in islice(asked, self.source.count - kept)
            ]
            if not block:
                what = (
                    f"the teacher made only {kept} usable questions, {self.source.count} are"
                    f" wanted: {why({self.name: self.counts})}"
                )
                raise PawlError(
                    what,
                    where=f"{self.where}.count",
                    fix="lower count, raise the temperature, or give it more examples",
                )
            improved = recipes.improve(
                self.filters.clean(list(self._counted(block))), answering, self.data, teacher
            )
            rows = self._sound(self._pilot.watch(improved))
            kept += sum(self.filters.keep(part) for part in _blocks(rows))

    def _documents(self) -> None:
        teacher, folder = self._teachers(self.source.tier), ROOT / self.source.path
        number, dirty = 0, set()
        for block in _blocks(
            self._row(Question(text, ""), place)
            for place, text in documents.passages(folder, self.data.seed, self.where)
        ):
            # a passage goes into a prompt too
            clean = {id(row) for row in self.filters.clean(block)}
            dirty |= {number + at for at, row in enumerate(block) if id(row) not in clean}
            number += len(block)
        self.counts.read += len(dirty)
        passages = enumerate(documents.passages(folder, self.data.seed, self.where))
        shown = (passage for number, passage in passages if number not in dirty)
        found = recipes.questions_from(
            shown, self.source.count, self.data.seed, teacher, self._scratch
        )

        def rows() -> Iterator[Row]:
            for one in self._pilot.watch(found):
                if isinstance(one, Bad):
                    self._bad(one, "refused")
                else:
                    place, question, answer = one
                    yield self._row(
                        Question(self.source.prompt.replace("{question}", question), answer), place
                    )

        made, wanted = self._counted(rows()), self.source.count
        while block := list(islice(made, min(BLOCK, wanted))):
            wanted -= self.filters.keep(block)


def _blocks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(rows)
    while block := list(islice(rest, BLOCK)):
        yield block


def why(counts: dict[str, Counts]) -> str:
    return "; ".join(
        f"{name}: "
        + ", ".join(
            f"{number} {key.replace('_', ' ')}"
            for key, number in vars(count).items()
            if number or key == "read"
        )
        for name, count in counts.items()
    )
