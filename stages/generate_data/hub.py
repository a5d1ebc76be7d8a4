"""The files of a data set on the Hugging Face hub, at one commit: read row by row like local
ones.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from stages.common.errors import PawlError
from stages.common.hub.fetch import fetch
from stages.common.hub.listing import listing
from stages.common.questions import Bad, Question
from stages.common.records import SUFFIXES, parse
from stages.common.schema import Source

_SHARD = re.compile(r"-\d+(-of-\d+)?(-[0-9a-f]{16})?$")
_SUFFIXES = (".parquet", *SUFFIXES, *(f"{suffix}.gz" for suffix in SUFFIXES))


def rows_of(source: Source, where: str) -> Iterator[tuple[str, Question] | Bad]:
    """The rows of the data set's files, in the order of their names.

    Raises:
        PawlError: the hub cannot be reached and the files are not in its cache; no file has the
            split's or the pattern's name.
    """
    found = listing(source.repo, source.revision, "dataset")
    names = sorted(name for name in found.files if name.endswith(_SUFFIXES))
    chosen = (
        [name for name in names if fnmatch.fnmatch(name, source.path)]
        if source.path
        else of_split(names, source.subset, source.split)
    )
    if not chosen:
        what = f"no file of {source.repo} has rows of {source.subset} {source.split}".replace(
            "  ", " "
        )
        raise PawlError(
            what,
            where=f"{where}.split",
            fix=f"name one in {where}.path: {', '.join(names[:10]) or 'it has no such files'}",
        )
    folder = fetch(found, chosen)
    for name in chosen:
        yield from parse(
            folder / name,
            f"{source.repo}/{name}",
            source.format,
            source.columns,
            ignore=source.ignore,
            unanswered=source.recipe in ("answer", "similar"),
        )


def of_split(names: list[str], subset: str, split: str) -> list[str]:
    """The files that hold a split: those named after it and nothing else, shards aside, or else
    those with it among the words of their name. So "train" is not "constrained", and not
    "train_sft" where there is a "train" too. Of a subset they are those in a folder of that name,
    or else those with it among the words of their path: "algebra" is not "intermediate_algebra".
    """
    among = [name for name in names if subset in name.split("/")[:-1]] or [
        name for name in names if _says(name, subset)
    ]
    file = {name: name.rpartition("/")[2] for name in among}
    stem = {name: file[name].partition(".")[0] for name in among}
    return [name for name in among if split in (stem[name], _SHARD.sub("", stem[name]))] or [
        name for name in among if _says(file[name].rpartition(".")[0], split)
    ]


def _says(name: str, word: str) -> bool:
    return not word or re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", name) is not None
