"""Wrong answers: how many of which kind, and a seeded draw of them for a language model to
look at.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.common.reports.verdict import ErrorKind
from stages.judge.pairing import lenient_column

KINDS = ("content", "format", "truncated", "empty")
"""content: wrong in any form; format: right, in a form that does not count; truncated: cut off at
the output limit; empty: nothing said.
"""
QUESTION, OUTPUT = 1000, 500
"""Characters of a question and of an output that are shown; what is longer is cut, and marked as
cut.
"""
HEAD = 150
"""Of a longer output, so many are its beginning; the others are its end, where the answer is."""


def kinds(rows: pa.Table) -> Any:
    """The kind of each row, an index into `KINDS`, or -1 where it is correct. The most telling one
    wins: empty, truncated, format.
    """
    right = rows["correct"].to_numpy()
    empty = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(rows["prediction"])), 0).to_numpy()
    in_form = lenient_column(rows).to_numpy() > 0
    return np.select([right, empty, rows["truncated"].to_numpy(), in_form], [-1, 3, 2, 1], 0)


def tally(candidate: pa.Table, incumbent: pa.Table) -> dict[str, ErrorKind]:
    """For each kind the share of all answers that are wrong in this way, on both sides, and whether
    it grew by more than chance would.

    Grew: by more than twice the standard error of the difference of two shares, taken as
    independent.
    """
    found = {}
    both = [(kinds(rows), len(rows)) for rows in (candidate, incumbent)]
    for index, name in enumerate(KINDS):
        (a, n), (b, m) = ((float((kind == index).mean()), count) for kind, count in both)
        error = (a * (1 - a) / n + b * (1 - b) / m) ** 0.5
        found[name] = ErrorKind(candidate=a, incumbent=b, grew=a - b > 2 * error and a > b)
    return found


def draw(
    rows: pa.Table,
    items: dict[str, dict[str, str]],
    count: int,
    seed: int,
    think: tuple[str, str] = ("", ""),
) -> list[dict[str, Any]]:
    """At most `count` wrong answers with their questions, as evenly as can be from each benchmark
    and kind of error.

    Args:
        think: the tags around what the candidate thinks aloud, which is left out; empty where it
            does not.

    Returns:
        one {benchmark, kind, question, expected, output} each, and what was cut as {question_cut,
        output_cut}: "the first 1000 of 1234 characters", and {thinking}: how much was left out. An
        item of which no text is known is left out.
    """
    kind = kinds(rows)
    groups: dict[tuple[str, int], list[int]] = {}
    benchmark, item = rows["benchmark"].to_pylist(), rows["item_id"].to_pylist()
    order = sorted(
        np.flatnonzero(kind >= 0).tolist(),
        key=lambda index: (item[index], rows["repeat"][index].as_py()),
    )
    for index in order:
        if item[index] in items:
            groups.setdefault((benchmark[index], int(kind[index])), []).append(index)
    rng = random.Random(seed)
    queues = [rng.sample(groups[key], len(groups[key])) for key in sorted(groups)]
    chosen: list[int] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return [_sample(rows, index, KINDS[kind[index]], items[item[index]], think) for index in chosen]


def _sample(
    rows: pa.Table, index: int, kind: str, item: dict[str, str], think: tuple[str, str]
) -> dict[str, Any]:
    question, (thought, output) = (
        item["question"],
        without_thoughts(str(rows["prediction"][index].as_py()), think),
    )
    sample = {
        "benchmark": item["benchmark"],
        "kind": kind,
        "question": question[:QUESTION],
        "expected": item["answer"][:OUTPUT],
        "output": output,
    }
    for name, text, limit in (
        ("question", question, QUESTION),
        ("expected", item["answer"], OUTPUT),
    ):
        if len(text) > limit:
            sample[f"{name}_cut"] = f"the first {limit} of {len(text)} characters"
    if len(output) > OUTPUT:
        sample["output"] = f"{output[:HEAD]} [...] {output[HEAD - OUTPUT :]}"
        sample["output_cut"] = (
            f"the first {HEAD} and the last {OUTPUT - HEAD} of {len(output)} characters"
        )
    if thought:
        sample["thinking"] = thought
    return sample


def without_thoughts(reply: str, think: tuple[str, str]) -> tuple[str, str]:
    """How much of a reply is thinking, in words, and what follows it; of a thought that never ends
    its own end is shown.
    """
    begin, end = think
    if end and end in reply:
        before, _, answer = reply.rpartition(end)
        return f"{len(before)} characters before {end} are left out", answer.strip()
    if begin and reply.lstrip().startswith(begin):
        return f"it never ends: no {end} in {len(reply)} characters, so there is no answer", reply
    return "", reply
