"""JSON documents broken in one place, for whoever reads reports: what a killed process, another
version or a hostile hand leaves.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**70,
    10**400,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "0.5",
    "\ud800\x00</script>",
    "x" * 10_000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": [1]}},
    [{"passed": True}],
]
DOCUMENTS = [
    "",
    "{",
    "[" * 100_000,
    "null",
    "[]",
    '"val"',
    "1e999",
    "\x00",
    "{}",
    '{"a": 1' + "0" * 5000 + "}",
]
"""Whole files that are no report."""


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value below the document itself."""
    keys = (
        document.keys()
        if isinstance(document, dict)
        else range(len(document))
        if isinstance(document, list)
        else ()
    )
    for key in keys:
        yield (*path, key)
        yield from places(document[key], (*path, key))


def variants(document: Any, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """`count` copies with one value replaced or removed, as (what was done, JSON text); every value
    of a small document in turn.
    """
    dice = random.Random(seed)
    spots = list(places(document))
    for number in range(count):
        path = spots[number % len(spots)] if number < len(spots) else dice.choice(spots)
        broken = copy.deepcopy(document)
        holder = broken
        for key in path[:-1]:
            holder = holder[key]
        if dice.random() < 0.1:
            del holder[path[-1]]
            done = "removed"
        else:
            holder[path[-1]] = dice.choice(VALUES)
            done = f"{holder[path[-1]]!r:.60}"
        yield f"{'.'.join(map(str, path))}: {done}", json.dumps(broken)
