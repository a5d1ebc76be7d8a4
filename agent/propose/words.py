"""Prompts and pages from the templates of prompts/agent/, and the history as it fits into a
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.gates import Known
from agent.gates.repeat import distance
from agent.knowledge import history
from agent.knowledge.history import Record
from agent.propose import situation
from stages.common.files import ROOT, sha256_text
from stages.common.text import markdown, plain

CHARACTERS = 3
"""A token is about four characters of English; three errs on the side of a shorter prompt."""


def render(template: str, **values: Any) -> str:
    """A template of prompts/agent/; what it is given is text, and no template is made of it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "prompts" / "agent"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    return environment.get_template(template).render(values)


def fence(texts: Sequence[str]) -> str:
    """A word that stands in none of the texts: nothing inside can end the fence. Equal texts get an
    equal word: a retry asks the same.
    """
    number = 0
    while True:
        word = f"material-{sha256_text(f'{number}' + chr(0).join(texts))[:12]}"
        if not any(word in text for text in texts):
            return word
        number += 1


def history_for(records: Sequence[Record], known: Known, characters: int) -> dict[str, str]:
    """The finished experiments, within `characters`: all of them in full; else a table of all with
    the nearest and the best in full; else the newest rows of that table, and the number that is
    left out.
    """
    finished = [record for record in records if record.finished]
    if not finished:
        return {"told": "nothing yet", "text": "No experiment is finished."}
    whole = "\n".join(
        f"[experiment: {record.folder}] {situation.in_words(record)}" for record in finished
    )
    if len(whole) <= characters:
        return {"told": f"all {len(finished)} experiments", "text": whole}
    detailed = {record.folder: record for record in (*_best(finished), *_nearest(finished, known))}
    detail = "\n".join(
        f"[experiment: {folder}] {situation.in_words(record)[:600]}"
        for folder, record in sorted(detailed.items())
    )[: characters // 2]
    rows = [_row(record) for record in finished]
    left, shown = characters - len(detail), []
    for row in reversed(rows):
        left -= len(row) + 1
        if left < 0:
            break
        shown.append(row)
    told = (
        f"all {len(finished)} experiments as a table"
        if len(shown) == len(rows)
        else f"the newest {len(shown)} of {len(finished)} experiments as a table"
    )
    return {
        "told": f"{told}; the best and the nearest in full",
        "text": "\n".join([*reversed(shown), "", detail]),
    }


def _row(record: Record) -> str:
    return plain(
        f"{record.number:04d} {record.status} {history.difference(record)}"
        f" {history.changes(record)}",
        160,
    )


def _best(records: Sequence[Record]) -> list[Record]:
    scored = [
        record for record in records if history.number(record.evidence.get("accuracy")) is not None
    ]
    return sorted(scored, key=lambda record: -float(record.evidence["accuracy"]))[:5]


def _nearest(records: Sequence[Record], known: Known) -> list[Record]:
    """The experiments whose parameters are closest to the present ones: what a small step from here
    may repeat.
    """
    far = {
        each.folder: sum(
            distance(known.params.get(key), value) for key, value in each.differing.items()
        )
        for each in known.tried
    }
    return sorted(
        (record for record in records if record.folder in far),
        key=lambda record: (far[record.folder], -record.number),
    )[:5]
