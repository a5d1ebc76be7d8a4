"""What to do where the keys of a file's rows are none of ours: the columns found, and a guess at
which is which, to paste.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stages.common.records import Bad

_HINTS = {
    "question": (
        "question query prompt problem instruction input request message utterance sentence text"
        " ticket body content review title"
    ),
    "answer": (
        "answer solution output response reply completion target label intent class category"
        " sentiment summary translation gold"
    ),
}
"""Words of a column's name that say what it holds, the surest first."""
_LONGEST = 40  # characters of a name; a longer one is a cell of a table without a header


def fix(bad: Sequence[Bad], where: str) -> str:
    """What helps, if bad rows are bad because of their keys; "" where something else is wrong with
    them.

    Args:
        where: the source's dotted key in params.yaml.
    """
    if bad and all(row.columns for row in bad):
        return _named(bad[0].columns, where)
    if bad and all(row.unused for row in bad):
        keys = sorted({row.unused for row in bad if not re.search(r"[^\w-]", row.unused)})
        ignored = f"'{where}.ignore=[{', '.join(keys)}]'" if keys else f"{where}.ignore"
        return f"remove those rows; or, if these keys change nothing of what a row means: {ignored}"
    return ""


def _named(found: Sequence[str], where: str) -> str:
    if any(len(name) > _LONGEST or name.endswith((".", "?")) for name in found):
        return "write the names of the columns into the first line: question,answer"
    taken = guess(found)
    if len(taken) < 2:
        return (
            f"say which columns are which: {where}.columns.question=NAME"
            f" {where}.columns.answer=NAME"
        )
    return "perhaps " + " ".join(
        _pasted(f"{where}.columns.{ours}", name) for ours, name in taken.items()
    )


def _pasted(key: str, name: str) -> str:
    """An override that a shell and Hydra both read as it stands."""
    return f"{key}={name}" if re.fullmatch(r"[A-Za-z_][\w-]*", name) else f"'{key}=\"{name}\"'"


def guess(found: Sequence[str]) -> dict[str, str]:
    """Which column is the question and which the answer, by their names; of two columns the second
    is the answer.
    """
    taken: dict[str, str] = {}
    for ours, hints in _HINTS.items():
        for hint in hints.split():
            near = [
                name
                for name in found
                if hint in re.split(r"[^a-z]+", name.lower()) and name not in taken.values()
            ]
            if near and ours not in taken:
                taken[ours] = near[0]
    rest = [name for name in found if name not in taken.values()]
    if len(found) == 2 and len(taken) == 1:
        taken["question" if "answer" in taken else "answer"] = rest[0]
    elif len(found) == 2 and not taken:
        taken = dict(zip(("question", "answer"), found, strict=True))
    return {ours: taken[ours] for ours in ("question", "answer") if ours in taken}
