"""How often these validation items have been looked at, and what a look may still spend.

A series of candidates that are tried on the same items has a chance of `alpha` at most to contain a
false acceptance: look k is tested at

    alpha_k = alpha * 6 / (pi^2 k^2),        which add up to alpha over all k.

That is alpha-spending, the online Bonferroni rule (Foster and Stine 2008, JRSS B 70:429; Tian and
Ramdas 2021, Statistical Methods in Medical Research 30:976): it needs no plan of how many looks
there will be, and holds whatever the dependence between the tests. The series 1 / k^2 spends 61 %
at the first look, which buys the power there, and the looks after it still have something left at
any k. Looks count against the items and not against the incumbent: an accepted candidate does not
renew what was spent. A false acceptance is one of a candidate that is no better, or that lost more
on a guarded benchmark than it may: both are tested at the level of the look.

What it does not cover: candidates are chosen by what earlier looks told (adaptive reuse; Dwork et
al. 2015, Science 349:636; Blum and Hardt 2015, ICML). Until the first acceptance, one who sees
outcomes alone is on a fixed path, and the bound is exact; scores tell more than outcomes do. New
items, or the test split that nobody chooses by, are the remedy; the number of looks says when it is
time.

The history is experiments/looks.jsonl: one line for each pair of a candidate's and an incumbent's
answers, in the order in which they were first judged. Judged again, they keep their number, so a
verdict is reproducible; by another measure (judge.primary, judge.metric) they are a look of their
own, since the measure could be chosen by what the first one told. A number never falls: where lines
were moved or merged from another branch, the place in the file or the number written down counts,
whichever is later. A verdict holds its own line, so that where DVC's cache gives the verdict back
in another clone, the stage track writes the look down there too.

What makes two looks one series is a shared question, whatever its task is called and however it is
spaced or cased: for each set of items a line {items, questions} holds a short hash of every
question, so that the smallest part of a benchmark inherits its looks. Lines from before that are
compared by their sketch, until their items are judged once more.

A file that was cut short is made whole from its copy in .pawl/, the commit HEAD and the verdicts in
experiments/. The line {looks} says how many there were: where fewer can be found, nothing is
judged. It is changed in place and a lower bound, so that `merge=union`, which keeps the lines of
both sides, leaves it true.

Not counted: scores of a candidate that was evaluated and never judged, and looks in a clone whose
file was never merged (a sweep's are).
"""

from __future__ import annotations

import base64
import fcntl
import json
import math
import os
import re
import subprocess
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import ValidationError

from stages.common.errors import PawlError
from stages.common.files import sha256_text
from stages.common.reports.base import problem
from stages.common.reports.look import Looked, line_of

FILE, COPY = Path("experiments/looks.jsonl"), Path(".pawl/looks.jsonl")
Key = tuple[str, ...]
KEY = ("items", "candidate", "incumbent", "measure")
NOTED = ("experiment", "n", "outcome")
"""What a line says beside the hashes and the number."""
SKETCH = 32
"""Item ids that stand for a set of items in lines from before its questions were kept: the smallest
ones.
"""
SHORT = 5
"""Bytes of a question's hash: of two sets of 10,000 questions without a common one, 1 in 10,000
pairs shares a hash.
"""
_ALIKE = str.maketrans("‐‑‒–—―−﹘‘’‚‛`´′“”„‟«»″", "-" * 8 + "'" * 7 + '"' * 7, "\u034f\ufe0e\ufe0f")  # noqa: RUF001
_COUNT = re.compile(rb'^\{"looks":([ \d]{9})\}$', re.MULTILINE)


def spend(alpha: float, look: int) -> float:
    """The level at which look number `look` (from 1) is tested."""
    return alpha * 6 / (math.pi * look) ** 2


def of_pair(
    candidate: pa.Table,
    incumbent: pa.Table,
    questions: Mapping[str, str],
    primary: str = "",
    metric: str = "correct",
) -> dict[str, str]:
    """What identifies a look: the items, who was right about which on either side (the texts do not
    matter), and what of it decides, written where it is not the default. Beside it the hashes of
    the questions; `questions` are the texts by item id.
    """
    ids = sorted({*candidate["item_id"].to_pylist(), *incumbent["item_id"].to_pylist()})
    sides = {
        name: outcomes_sha256(table)
        for name, table in (("candidate", candidate), ("incumbent", incumbent))
    }
    measure = (
        {}
        if (primary, metric) == ("", "correct")
        else {"measure": f"{metric} of {primary or 'all'}"}
    )
    asked = b"".join(sorted({_short(questions[item]) for item in ids if item in questions}))
    sketch = " ".join(item[:8] for item in ids[:SKETCH])
    return {
        "items": sha256_text("\n".join(ids)),
        "sketch": sketch,
        "questions": base64.b64encode(asked).decode(),
        **sides,
        **measure,
    }


def outcomes_sha256(table: pa.Table) -> str:
    """Hash of who was right about which item."""
    names = ["benchmark", "item_id", "repeat", "correct", "score"]
    ordered = table.select(names).sort_by([(name, "ascending") for name in names[:3]])
    return sha256_text(json.dumps([ordered[name].to_pylist() for name in names]))


def _short(question: str) -> bytes:
    """What a question is known by: its characters, without blanks and what nobody sees; case,
    width, dashes and quotes are as one.
    """
    same = unicodedata.normalize(
        "NFKC", unicodedata.normalize("NFKC", question.translate(_ALIKE)).casefold()
    )
    seen = "".join(
        mark
        for mark in same
        if not mark.isspace() and unicodedata.category(mark) not in ("Cc", "Cf")
    )
    return bytes.fromhex(sha256_text(seen))[:SHORT]


def _hashes(questions: str) -> set[bytes]:
    held = base64.b64decode(questions, validate=True)
    return {held[at : at + SHORT] for at in range(0, len(held), SHORT)}


class History(NamedTuple):
    """What a file says."""

    looks: dict[Key, str]  # its lines by what they are about, each once and in order
    questions: dict[str, str]  # their hashes, by the hash of their items
    total: int  # how many looks there were at least


def number(
    history: Iterable[dict[str, Any]],
    look: dict[str, str],
    questions: Mapping[str, str] | None = None,
) -> int:
    """The number of a look among those at the same or overlapping items, from 1; the next one where
    it is new. `questions` are their hashes, by the hash of the items.
    """
    asked = {items: _hashes(held) for items, held in (questions or {}).items()}
    ours, sketch = _hashes(look.get("questions", "")), set(look["sketch"].split())

    def overlaps(earlier: dict[str, Any]) -> bool:
        same = earlier["items"] == look["items"] or sketch & set(earlier["sketch"].split())
        return bool(same or ours & asked.get(earlier["items"], set()))

    overlapping = [earlier for earlier in history if overlaps(earlier)]
    numbers = {
        _key(earlier): max(place, earlier.get("look", 1))
        for place, earlier in enumerate(overlapping, 1)
    }
    return numbers.get(_key(look)) or max(numbers.values(), default=0) + 1


def enter(
    roots: Iterable[Path],
    look: dict[str, str],
    judge: Callable[[int], dict[str, Any]],
    least: int = 1,
) -> dict[str, Any]:
    """Give a look its number, judge at it, and write it down where it is new: in each root, as a
    sweep works in clones.

    Args:
        judge: what to note beside the hashes (the outcome), given the number.
        least: what the number is at least, known from elsewhere.

    Returns:
        what `judge` gave, and `look`, the number.

    Raises:
        PawlError: a file of looks is broken or has lost lines. Nothing is judged then: an unknown
            number of looks allows no level.
    """
    places = sorted({root.resolve() for root in roots})
    with ExitStack() as stack:
        known: list[tuple[int, bytes, History]] = []
        for path in (root / name for root in places for name in (FILE, COPY)):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX)  # workers of a sweep judge side by side
            held = _read(file)
            known.append((file, held, _parsed(held.decode("utf-8", "replace"), path)))
        lines, questions = _together([history for _, _, history in known], places)
        if len(lines) < (count := max(history.total for _, _, history in known)):
            fix = (
                f"'git log -p {FILE}' or another clone has them; to count from what is left, delete"
                f' its line {{"looks": ...}} and {COPY}'
            )
            told = (
                f"the history of looks has lost lines: it counted {count}, and {len(lines)} are"
                " left"
            )
            raise PawlError(told, where=str(places[0] / FILE), fix=fix)
        if look.get("questions"):
            questions.setdefault(look["items"], look["questions"])
        place = max(least, number(map(json.loads, lines.values()), look, questions))
        note = judge(place) | {"look": place}
        entry = {name: value for name, value in look.items() if name != "questions"}
        lines.setdefault(_key(look), json.dumps({**entry, **note}, sort_keys=True))
        for file, held, history in known:
            _write(file, held, history, lines, questions)
    return note


def accepted(root: Path) -> set[str]:
    """The hashes of results (see `outcomes_sha256`) that were accepted when they were judged."""
    path = root / FILE
    lines = (
        _parsed(path.read_bytes().decode("utf-8", "replace"), path).looks.values()
        if path.exists()
        else ()
    )
    return {look["candidate"] for look in map(json.loads, lines) if look.get("outcome") == "accept"}


def take_over(roots: Iterable[Path], verdict: Looked) -> None:
    """Write down the look of a verdict that was not judged here: DVC's cache, shared with another
    clone, gave it back.

    It counts from its own number, since what was looked at before it is not known here.

    Raises:
        PawlError: what the verdict says of its look is no look.
    """
    for look in verdict.looks:
        if not look.judged:
            raise PawlError(
                "the look of this verdict says no outcome or number",
                where="reports/judge.json",
                fix=verdict.remedy,
            )
        told = look.plain()
        note = {name: told.pop(name) for name in NOTED}
        enter(roots, told, lambda _, note=note: note, least=told.pop("look"))  # type: ignore[misc]


def _together(histories: list[History], roots: list[Path]) -> tuple[dict[Key, str], dict[str, str]]:
    """The looks of all files, and those that a commit or a verdict still has where every file lost
    them.
    """
    lines = {key: line for history in histories for key, line in history.looks.items()}
    questions = {items: held for history in histories for items, held in history.questions.items()}
    lost = 0
    for look in (look for root in roots for look in _witnesses(root)):
        if "candidate" not in look:
            questions.setdefault(look["items"], look["questions"])
        elif _key(look) not in lines:
            lost += 1
            lines[_key(look)] = json.dumps(
                {name: value for name, value in look.items() if name != "questions"}, sort_keys=True
            )
    if lost:
        print(
            f"looks: {lost} that {FILE} had lost are written down again, from the last commit or"
            " the verdicts in experiments/"
        )
    return lines, questions


def _witnesses(root: Path) -> Iterator[dict[str, Any]]:
    """Looks and questions as the last commit and the verdicts of finished experiments have them;
    what is broken there is passed over.
    """
    command = ["git", "show", f"HEAD:./{FILE}"]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    told = [_loaded(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []
    for path in sorted((root / FILE.parent).glob("*/judge.json")):
        verdict = Looked.find(path)
        told += [look.plain() for look in verdict.looks] if verdict else []
    yield from (each for each in told if not _wrong(each) and "looks" not in each)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _write(
    file: int, held: bytes, history: History, lines: dict[Key, str], questions: dict[str, str]
) -> None:
    """Append what a file lacks, then raise its count; killed in between, the count is too low,
    which loses nothing.
    """
    missing = [line for key, line in lines.items() if key not in history.looks]
    unasked = [items for items in questions if items not in history.questions]
    missing += [
        json.dumps({"items": items, "questions": questions[items]}, sort_keys=True)
        for items in unasked
    ]
    found = _COUNT.search(held)
    more = ([] if found else [f'{{"looks":{len(history.looks):>9}}}']) + missing
    if more:
        text = ("\n" if held and not held.endswith(b"\n") else "") + "".join(
            f"{line}\n" for line in more
        )
        os.pwrite(file, text.encode(), len(held))
        os.fsync(file)
    if len(lines) > history.total:
        at = found or _COUNT.search(_read(file))
        assert at
        os.pwrite(file, f"{len(lines):>9}".encode(), at.start(1))
        os.fsync(file)


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _key(look: dict[str, Any]) -> Key:
    return tuple(look.get(name, "") for name in KEY)


def _parsed(text: str, path: Path) -> History:
    """The lines of a file."""
    looks: dict[Key, str] = {}
    questions: dict[str, str] = {}
    count = 0
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            wrong = _wrong(entry)
        except (ValueError, RecursionError) as error:
            wrong = str(error)[:200]
        if wrong:
            fix = (
                "it counts the looks, so it may not lose lines: restore it from Git ('git checkout"
                f" {FILE}')"
            )
            if path.parts[-2:] == COPY.parts:
                fix = f"it is a copy of {FILE}: delete it"
            raise PawlError(f"a look cannot be read: {wrong}", where=f"{path}:{at}", fix=fix)
        if "looks" in entry:
            count = max(count, entry["looks"])
        elif "candidate" in entry:
            looks.setdefault(_key(entry), line)
        else:
            questions.setdefault(entry["items"], entry["questions"])
    return History(looks, questions, count)


def _wrong(entry: Any) -> str:
    """What is wrong with a line; empty if nothing is."""
    try:
        line_of(entry)
    except ValidationError as error:
        return problem(error)
    return ""
