"""The rows of every source of params.yaml, after the filters and the limits."""

from __future__ import annotations

import random

from stages.common.errors import PawlError
from stages.common.files import sha256_text
from stages.common.questions import Question, choose, read, stream, take
from stages.common.schema import Data, Source
from stages.generate_data.rows import Counts, Filters, Kept


def gather(data: Data, filters: Filters) -> tuple[list[Kept], dict[str, Counts]]:
    """Rows in training order, and what became of the rest; the same for the same parameters and files.

    Raises:
        PawlError: bad rows above data.max_bad_fraction, contamination above data.max_contamination, too few rows, none at all.
    """
    if not data.sources:
        raise PawlError("the training data has no sources", where="data.sources", fix="name at least one")
    counts = {name: Counts() for name in data.sources}
    rows: list[Kept] = []
    for name, source in data.sources.items():
        take_from = _procedural if source.kind == "procedural" else _file
        rows += take_from(data, name, source, filters, counts[name])
        _refuse_contaminated(data, name, counts[name], filters)
    random.Random(data.seed).shuffle(rows)
    if data.max_rows:
        rows = rows[: data.max_rows]
    if not rows:
        raise PawlError("no training row is left after the filters", where="data.sources", fix=f"see why: {_why(counts)}")
    for name, count in counts.items():
        count.kept = sum(row.source == name for row in rows)
        count.unused = count.read - count.bad - count.duplicates - count.contaminated - count.too_long - count.kept
    return rows, counts


def _refuse_contaminated(data: Data, name: str, counts: Counts, filters: Filters) -> None:
    """Each source is held to the limit by itself, so that a leak cannot hide behind a large clean source."""
    looked_at = counts.read - counts.bad - counts.duplicates
    if looked_at and counts.contaminated / looked_at > data.max_contamination:
        limit = f"data.max_contamination is {data.max_contamination:g}"
        what = f"{counts.contaminated} of {looked_at} different rows of {name} hold a benchmark item ({_hits(filters)}); {limit}"
        raise PawlError(what, where=f"data.sources.{name}", fix="take other data; raise the limit only if you know why so many match")


def _procedural(data: Data, name: str, source: Source, filters: Filters, counts: Counts) -> list[Kept]:
    where = f"data.sources.{name}"
    if not source.count:
        raise PawlError(f"{where}.count is 0, but a procedural source has no end", where=f"{where}.count", fix="say how many rows you want")
    rows: list[Kept] = []

    def accept(question: Question) -> bool:
        row = filters.keep(question, name, counts)
        if row:
            rows.append(row)
        return row is not None

    # a seed of its own for each source: two sources of one task must not draw the same questions
    take(stream(source, int(sha256_text(f"{data.seed}\0{name}")[:7], 16), where), source.count, accept)
    if len(rows) < source.count:
        what = f"{source.task} gave {len(rows)} usable rows, {source.count} are wanted: {_why({name: counts})}"
        raise PawlError(what, where=f"{where}.count", fix="lower count or widen settings; questions of the benchmark do not count")
    return rows


def _file(data: Data, name: str, source: Source, filters: Filters, counts: Counts) -> list[Kept]:
    where = f"data.sources.{name}"
    questions, bad = read(source, where)
    total = len(questions) + len(bad)
    if not total:
        raise PawlError("the file has no rows", where=source.path, fix="write one JSON object a line")
    if len(bad) / total > data.max_bad_fraction:
        shown = "\n".join(f"    {row.where}: {row.reason:.160}" for row in bad[:5])
        what = f"{len(bad)} of {total} rows cannot be used, more than data.max_bad_fraction ({data.max_bad_fraction:g}) allows:\n{shown}"
        raise PawlError(what, where=where, fix="mend or remove those lines, or raise data.max_bad_fraction")
    counts.read = counts.bad = len(bad)
    chosen = choose(questions, source, data.seed, source.part)
    rows = [row for row in (filters.keep(question, name, counts) for question in chosen) if row]
    if source.count and len(rows) > source.count:
        rows = random.Random(f"{data.seed}\0{name}").sample(rows, source.count)
    return rows


def _hits(filters: Filters) -> str:
    return ", ".join(
        f"{rows} share {'a question' if hit.match == 'exact' else 'words'} with {hit.benchmark}"
        for hit, rows in filters.hits.most_common(3)
    )


def _why(counts: dict[str, Counts]) -> str:
    names = ("read", "bad", "duplicates", "contaminated", "too_long")
    return "; ".join(
        f"{name}: " + ", ".join(f"{getattr(count, key)} {key.replace('_', ' ')}" for key in names) for name, count in counts.items()
    )
