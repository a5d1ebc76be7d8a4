"""How often these validation items have been looked at, and what a look may still spend.

A series of candidates that are tried on the same items has a chance of `alpha` at most to contain a false acceptance: look k is tested at

    alpha_k = alpha * 6 / (pi^2 k^2),        which add up to alpha over all k.

That is alpha-spending, the online Bonferroni rule (Foster and Stine 2008, JRSS B 70:429; Tian and Ramdas 2021, Statistical Methods in
Medical Research 30:976): it needs no plan of how many looks there will be, and holds whatever the dependence between the tests. The series
1 / k^2 spends 61 % at the first look, which buys the power there, and the looks after it still have something left at any k.
Looks count against the items and not against the incumbent: an accepted candidate does not renew what was spent. A false acceptance is
one of a candidate that is no better, or that lost more on a guarded benchmark than it may: both are tested at the level of the look.

What it does not cover: candidates are chosen by what earlier looks told (adaptive reuse; Dwork et al. 2015, Science 349:636; Blum and Hardt
2015, ICML). Until the first acceptance, one who sees outcomes alone is on a fixed path, and the bound is exact; scores tell more than
outcomes do. New items, or the test split that nobody chooses by, are the remedy; the number of looks says when it is time.

The history is experiments/looks.jsonl: one line for each pair of a candidate's and an incumbent's answers, in the order in which they
were first judged. Judged again, they keep their number, so a verdict is reproducible; by another measure (judge.primary, judge.metric) they
are a look of their own, since the measure could be chosen by what the first one told. A copy in .pawl/ gives back what an older commit, a
`dvc exp apply` or a restored file has not. A number never falls: where lines were lost, moved or merged from another branch, the place in
the file or the number written down counts, whichever is later. A verdict holds its own line, so that where DVC's cache gives the verdict
back in another clone, the stage track writes the look down there too.

Not counted: scores of a candidate that was evaluated and never judged, and looks in a clone whose file was never merged (a sweep's are).
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from stages.common.errors import PawlError
from stages.common.files import sha256_text

FILE, COPY = Path("experiments/looks.jsonl"), Path(".pawl/looks.jsonl")
Key = tuple[str, ...]
KEY = ("items", "candidate", "incumbent", "measure")
NOTED = ("experiment", "n", "outcome")
"""What a line says beside the hashes and the number."""
SKETCH = 32
"""Item ids that stand for a set of items: the smallest ones. Ids are hashes, so two sets that overlap by a few per cent share some."""


def spend(alpha: float, look: int) -> float:
    """The level at which look number `look` (from 1) is tested."""
    return alpha * 6 / (math.pi * look) ** 2


def of_pair(candidate: pa.Table, incumbent: pa.Table, primary: str = "", metric: str = "correct") -> dict[str, str]:
    """What identifies a look: the items, a sketch of them, who was right about which on either side (the texts do not matter), and what of
    it decides, written where it is not the default."""
    ids = sorted(set(candidate["item_id"].to_pylist()))
    sides = {name: sha256_text(_outcomes(table)) for name, table in (("candidate", candidate), ("incumbent", incumbent))}
    measure = {} if (primary, metric) == ("", "correct") else {"measure": f"{metric} of {primary or 'all'}"}
    return {"items": sha256_text("\n".join(ids)), "sketch": " ".join(item[:8] for item in ids[:SKETCH]), **sides, **measure}


def _outcomes(table: pa.Table) -> str:
    names = ["benchmark", "item_id", "repeat", "correct", "score"]
    ordered = table.select(names).sort_by([(name, "ascending") for name in names[:3]])
    return json.dumps([ordered[name].to_pylist() for name in names])


def number(history: Iterable[dict[str, Any]], look: dict[str, str]) -> int:
    """The number of a look among those at the same or overlapping items, from 1; the next one where it is new."""
    ours = set(look["sketch"].split())
    overlapping = [earlier for earlier in history if ours & set(earlier["sketch"].split())]
    numbers = {_key(earlier): max(place, earlier.get("look", 1)) for place, earlier in enumerate(overlapping, 1)}
    return numbers.get(_key(look)) or max(numbers.values(), default=0) + 1


def enter(roots: Iterable[Path], look: dict[str, str], judge: Callable[[int], dict[str, Any]], least: int = 1) -> dict[str, Any]:
    """Give a look its number, judge at it, and write it down where it is new: in each root, as a sweep works in clones.

    Args:
        judge: what to note beside the hashes (the outcome), given the number.
        least: what the number is at least, known from elsewhere.

    Returns:
        what `judge` gave, and `look`, the number.

    Raises:
        PawlError: a file of looks is broken. Nothing is judged then: an unknown number of looks allows no level.
    """
    with ExitStack() as stack:
        known: list[tuple[TextIO, str, dict[Key, str]]] = []
        for path in (root / name for root in sorted({root.resolve() for root in roots}) for name in (FILE, COPY)):
            path.parent.mkdir(parents=True, exist_ok=True)
            file: TextIO = stack.enter_context(open(path, "a+", encoding="utf-8", errors="replace"))
            fcntl.flock(file, fcntl.LOCK_EX)  # workers of a sweep judge side by side
            file.seek(0)
            text = file.read()
            known.append((file, text, _parsed(text, path)))
        lines = {key: line for _, _, history in known for key, line in history.items()}
        place = max(least, number(map(json.loads, lines.values()), look))
        note = judge(place) | {"look": place}
        lines.setdefault(_key(look), json.dumps({**look, **note}, sort_keys=True))
        for file, text, history in known:
            if missing := [line for key, line in lines.items() if key not in history]:
                file.write(("\n" if text and not text.endswith("\n") else "") + "".join(f"{line}\n" for line in missing))
                file.flush()
                os.fsync(file.fileno())
    return note


def take_over(roots: Iterable[Path], verdict: dict[str, Any]) -> None:
    """Write down the look of a verdict that was not judged here: DVC's cache, shared with another clone, gave it back.

    It counts from its own number, since what was looked at before it is not known here.
    """
    for look in verdict.get("looks", []):
        enter(roots, look, lambda _, look=look: {name: look[name] for name in NOTED}, least=look["look"])  # type: ignore[misc]


def _key(look: dict[str, Any]) -> Key:
    return tuple(look.get(name, "") for name in KEY)


def _parsed(text: str, path: Path) -> dict[Key, str]:
    """The lines of a file by what they are about, each once, in their order."""
    history: dict[Key, str] = {}
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if any(not isinstance(entry[name], str) for name in (*KEY[:3], "sketch")) or not isinstance(entry.get("measure", ""), str):
                raise TypeError("a hash is missing")
            if type(entry.get("look", 1)) is not int or entry.get("look", 1) < 1:
                raise TypeError("its number is none")
        except (ValueError, KeyError, TypeError) as error:
            fix = f"it counts the looks, so it may not lose lines: restore it from Git ('git checkout {FILE}')"
            if path.parts[-2:] == COPY.parts:
                fix = f"it is a copy of {FILE}: delete it"
            raise PawlError(f"a look cannot be read: {error}", where=f"{path}:{at}", fix=fix) from None
        history.setdefault(_key(entry), line)
    return history
