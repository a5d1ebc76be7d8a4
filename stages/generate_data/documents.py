"""A folder of documents (.txt, .md, .html): as passages that a teacher asks questions about, or as
they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stages.common.errors import PawlError
from stages.common.files import ROOT, sha256_text
from stages.common.questions import Bad, Question
from stages.common.schema import Source
from stages.common.shapes import question_of
from stages.common.tables import LARGEST_ROW

PASSAGE = 400
"""Words of a passage that a teacher sees."""
PIECE = 2000
"""Words from which a text is divided: a benchmark item in a book costs the piece that it is in, and
not the book.
"""


def passages(folder: Path, seed: int, where: str) -> Iterator[tuple[str, str]]:
    """The texts of a folder, files in seeded order, in passages of about PASSAGE words, as
    (file#number, passage).
    """
    files = sorted(
        _files(folder, f"{folder} ({where}.path)"),
        key=lambda path: sha256_text(f"{seed}\0{path.relative_to(folder)}"),
    )
    for path in files:
        text = _plain(path, path.read_text(encoding="utf-8", errors="replace").replace("\0", ""))
        passage: list[str] = []
        number = 0
        for paragraph in [*re.split(r"\n\s*\n", text), ""]:
            passage += paragraph.split()
            while len(passage) >= PASSAGE or (not paragraph and passage):
                yield f"{path.name}#{number}", " ".join(passage[:PASSAGE])
                passage, number = passage[PASSAGE:], number + 1


def rows_of(source: Source, where: str) -> Iterator[tuple[str, Question] | Bad]:
    """The texts of the folder as rows of plain text, files in the order of their names, divided by
    `pieces`.
    """
    folder = ROOT / source.path
    for path in sorted(_files(folder, f"{source.path} ({where}.path)")):
        shown = f"{source.path.rstrip('/')}/{path.relative_to(folder)}"
        if path.stat().st_size > LARGEST_ROW:
            yield Bad(shown, f"a document of more than {LARGEST_ROW >> 20} MiB")
            continue
        try:
            text = _plain(path, path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
        except UnicodeDecodeError as error:
            yield Bad(shown, f"not UTF-8 at byte {error.start}")
            continue
        for number, piece in enumerate(pieces(text) or [""]):
            try:
                yield f"{shown}#{number}", question_of({"text": piece}, "text")
            except ValueError as error:
                yield Bad(f"{shown}#{number}", str(error), piece[:2000])


def pieces(text: str) -> list[str]:
    """The text as it stands, divided at the first blank line after PIECE words, or at the first end
    of a line after twice as many.
    """
    found: list[str] = []
    lines: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        length += len(line.split())
        if length >= (2 * PIECE if line.strip() else PIECE):
            found.append("".join(lines))
            lines, length = [], 0
    return [piece for piece in [*found, "".join(lines)] if piece.strip()]


def _files(folder: Path, where: str) -> list[Path]:
    found = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in (".txt", ".md", ".html", ".htm") and path.is_file()
    ]
    if not found:
        raise PawlError(
            "the folder has no documents", where=where, fix="put .txt, .md or .html files there"
        )
    return found


def _plain(path: Path, text: str) -> str:
    if path.suffix.lower().startswith(".htm"):
        from trafilatura import extract

        return extract(text) or ""
    return text
