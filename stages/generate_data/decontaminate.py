"""Find benchmark items in training rows, on its own.

python -m stages.generate_data decontaminate --train ROWS.jsonl --items NAME:SPLIT=ITEMS.jsonl ...
    [--ngram 13] [--fuzzy 0.6]

Rows and items are JSON Lines. Of a row every text is searched, whatever its key and however deep it
lies, JSON inside a text too. An item is what its usual fields say (question, answer; instruction,
input, output; messages; ...), or all its text where it has none of them. Prints JSON: `rows`, how
many were read, and `contaminated`, a list of {row, benchmark, split, match} with `row` counted from
0; never an item's text. Exit code 0 where nothing was found, 1 where something was, 3 on bad input.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NoReturn

from stages.common.errors import PawlError
from stages.common.files import read_jsonl, without_repeats
from stages.common.items import SPLITS
from stages.generate_data.overlap import FEWEST_SHINGLES, Hit, Index, Item
from stages.generate_data.texts import of_item, of_row

CANARY = Item(
    "(control)",
    "val",
    "A ferry with 48 berths leaves the northern harbour every 25 minutes and carries bicycles,"
    " crates of herring and at most 7 lorries. How many passengers can cross between noon and 5"
    " o'clock if every third departure is cancelled because of fog?",
    "384 passengers",
)
"""An item of no benchmark, always planted: so the control tries every signal, also where a
benchmark's own items are too short for one.
"""
_BLOCK = 1000


def read_items(benchmark: Path) -> list[Item]:
    """Every validation and test item under data/benchmark.

    Raises:
        PawlError: there are none, or a file is broken.
    """
    items = []
    for split in SPLITS:
        for path in sorted((benchmark / split).glob("*.jsonl")):
            items += [
                Item(row["benchmark"], split, row["question"], row["answer"])
                for row in read_jsonl(path)
            ]
    if {item.split for item in items} != set(SPLITS):
        raise PawlError(
            "there are no benchmark items to compare with",
            where=str(benchmark),
            fix="run 'dvc repro build_benchmark'",
        )
    return items


def search(
    items: Sequence[Item], n: int, fuzzy: float, *, seen: tuple[str, ...] = ("val",)
) -> tuple[Index, dict[str, Any]]:
    """The index of these items, and what the positive control says of it.

    Args:
        seen: the splits whose items are planted.

    Raises:
        PawlError: a planted item is not found. A search that finds nothing must not pass for clean
            data.
    """
    index = Index([*items, CANARY], n, fuzzy)
    results = positive_control(index, [CANARY, *(item for item in items if item.split in seen)])
    for name, result in results.items():
        if failed := [kind for kind, passed in result.items() if passed is False]:
            raise PawlError(
                f"the decontamination misses a planted item of {name} ({', '.join(failed)})",
                where="stages/generate_data/overlap.py",
                fix=(
                    "training data cannot be trusted: this is a bug, or data.ngram or data.fuzzy"
                    " does not suit the items"
                ),
            )
    return index, results


def positive_control(index: Index, items: Sequence[Item]) -> dict[str, dict[str, bool | None]]:
    """Plant items in rows and look whether they are found: {benchmark: {exact, embedded, ...}},
    True: all well.

    exact: a row with the item's question. embedded: the question inside a longer row, found by its
    n-grams: resemblance alone would find it too, and hide that they are not searched for. wrapped:
    the same between two runs of the benchmark's own boilerplate. paraphrase: the question with
    other numbers and another beginning. boilerplate: a row of that boilerplate alone, in which no
    n-gram may be found. None: it cannot be tried, because the items are too short for it, or there
    is no boilerplate.
    """
    results: dict[str, dict[str, bool | None]] = {}
    for name in sorted({item.benchmark for item in items}):
        first = next(item for item in items if item.benchmark == name)
        long, similar = index.distinctive.get(name), index.resembling.get(name)
        frame = index.boilerplate.get(name, "")

        def found(prompt: str, answer: str, *matches: str, name: str = name) -> bool:
            return any(
                hit.benchmark == name and (not matches or hit.match in matches)
                for hit in index.find([prompt], answer)
            )

        planted = long.question if long else ""
        results[name] = {
            "exact": found(f"\t {first.question} \n", "an answer", "exact"),
            "embedded": (
                found(
                    f"Somebody once asked me this on a train: {planted} I had to think about it.",
                    "So did I.",
                    "ngram",
                )
                if long
                else None
            ),
            "wrapped": (
                found(f"{frame} {planted} {frame}", "an answer", "ngram")
                if long and frame
                else None
            ),
            "paraphrase": (
                found(paraphrase(similar.question, index.fuzzy), "an answer") if similar else None
            ),
            "boilerplate": not found(frame, "", "ngram") if frame else None,
        }
    return results


def paraphrase(question: str, fuzzy: float) -> str:
    """The same question with every number changed, and one word more before it where that leaves
    the similarity that is looked for.
    """
    return ("Now: " if fuzzy <= FEWEST_SHINGLES / (FEWEST_SHINGLES + 1) else "") + re.sub(
        r"[0-9]+", lambda number: str(int(number[0][:15]) + 13), question
    )


# --- on its own


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        args = _arguments(argv)
        items = [item for given in args.items for item in _items(*given)]
        if not items:
            raise PawlError("there are no items", where="--items")
        index, _ = search(items, args.ngram, args.fuzzy, seen=tuple({item.split for item in items}))
        rows, found = 0, []
        for hits in _searched(index, args.train, args.workers):
            found += [
                {
                    "row": rows + at,
                    "benchmark": hit.benchmark,
                    "split": hit.split,
                    "match": hit.match,
                }
                for at, hit in hits[1]
            ]
            rows += hits[0]
        if not rows:
            raise PawlError(
                "there are no rows",
                where=str(args.train),
                fix="name the file with the training rows",
            )
    except (PawlError, OSError, BrokenProcessPool) as error:
        print(f"decontaminate: error: {error}", file=sys.stderr)
        return 3
    print(json.dumps({"rows": rows, "contaminated": found}, indent=1))
    return 1 if found else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PawlError(message, fix="python -m stages.generate_data decontaminate --help")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m stages.generate_data decontaminate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--train", type=Path, required=True, metavar="ROWS.jsonl")
    parser.add_argument(
        "--items",
        type=_named,
        required=True,
        action="extend",
        nargs="+",
        metavar="NAME:SPLIT=ITEMS.jsonl",
    )
    parser.add_argument(
        "--ngram", type=int, default=13, help="words in a row that count (default 13)"
    )
    parser.add_argument(
        "--fuzzy", type=float, default=0.6, help="similarity of questions that counts (default 0.6)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes (default: one for each core)",
    )
    args = parser.parse_args(argv)
    if not 3 <= args.ngram <= 50 or not 0.3 <= args.fuzzy <= 1 or args.workers < 1:
        raise PawlError("--ngram is 3 to 50, --fuzzy 0.3 to 1, --workers 1 or more")
    return args


def _named(text: str) -> tuple[str, str, Path]:
    match = re.fullmatch(r"([^:=]+):([^:=]+)=(.+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not NAME:SPLIT=FILE")
    return match[1], match[2], Path(match[3])


def _items(name: str, split: str, path: Path) -> Iterator[Item]:
    for number, row in enumerate(read_jsonl(path), 1):
        texts = of_item(row, f"{path}:{number}")
        yield Item(
            name, split, "\n".join(texts.prompts) or texts.answers[0], "\n".join(texts.answers)
        )


def _searched(
    index: Index, path: Path, workers: int
) -> Iterator[tuple[int, list[tuple[int, Hit]]]]:
    """For each block of rows, in their order, how many it holds and which of them hit what."""
    blocks = _blocks(path)
    head = [block for _, block in zip(range(4), blocks, strict=False)]
    if workers == 1 or len(head) < 4:
        _share(index)
        yield from map(_look, _chained(head, blocks))
        return
    pending: deque[Any] = deque()
    # not forked: the threads of rensa would be missing in the copies, which then wait for them for
    # ever
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _share, (index,)
    ) as pool:
        for block in _chained(head, blocks):
            pending.append(pool.submit(_look, block))
            # bounded: the file is read no faster than it is searched
            if len(pending) > 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _chained(head: Iterable[Any], rest: Iterable[Any]) -> Iterator[Any]:
    yield from head
    yield from rest


def _blocks(path: Path) -> Iterator[tuple[str, int, list[bytes]]]:
    lines: list[bytes] = []
    first = 1
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            lines.append(line)
            if len(lines) == _BLOCK:
                yield str(path), first, lines
                lines, first = [], number + 1
    if lines:
        yield str(path), first, lines


_index: Index
_LINES = (
    "correct that line; the search reads JSON Lines, one object a line (other kinds of files are"
    " searched as sources of generate_data)"
)


def _share(index: Index) -> None:
    global _index
    _index = index


def _look(block: tuple[str, int, list[bytes]]) -> tuple[int, list[tuple[int, Hit]]]:
    path, first, lines = block
    rows = []
    for number, line in enumerate(lines, first):
        where = f"{path}:{number}"
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"), object_pairs_hook=without_repeats)
        except (ValueError, RecursionError) as error:
            raise PawlError(f"broken line: {str(error)[:200]}", where=where, fix=_LINES) from None
        rows.append(of_row(row, where))
    return len(rows), [(at, hit) for at, hits in enumerate(_index.find_all(rows)) for hit in hits]
