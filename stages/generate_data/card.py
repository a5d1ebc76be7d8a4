"""The data card: what the training data is, for a person to read. Its sample rows are data, whatever they say."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from typing import Any

from stages.common.schema import Data
from stages.generate_data.rows import Kept, messages

_LONGEST = 1000  # characters of a sample row


def write(data: Data, rows: list[Kept], report: dict[str, Any]) -> str:
    """The card as Markdown: sources, licences, counts, and ten rows drawn by the data's seed."""
    kept, tokens, seed = len(rows), report["tokens"], data.seed
    lines = [
        f"# Training data: {_plain(data.name)}",
        "",
        f"{kept} rows, {tokens['total']} tokens ({tokens['p50']} in the median row, {tokens['max']} in the longest), seed {seed}.",
        "",
        "| Source | Origin | Licence | Read | Bad | Duplicates | In the benchmark | Too long | Unused | Kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, source in data.sources.items():
        origin = {
            "procedural": f"reasoning_gym {source.task} {source.settings or ''}",
            "wheel": f"{source.package} {source.path}",
            "jsonl": source.path,
        }
        count = report["sources"][name]
        cells = [name, origin[source.kind], source.licence or "not stated"]
        cells += [str(count[key]) for key in ("read", "bad", "duplicates", "contaminated", "too_long", "unused", "kept")]
        lines.append("| " + " | ".join(map(_plain, cells)) + " |")
    share = report["contamination"]["fraction"]
    lines += [
        "",
        f"Rows with a question of the benchmark, or {data.ngram} words in a row of an item, were removed ({share:.1%}).",
        "",
        f"## {min(10, kept)} of {kept} rows",
        "",
    ]
    for row in random.Random(f"{seed}\0card").sample(rows, min(10, kept)):
        lines += [_fenced(json.dumps(messages(row.question), ensure_ascii=False)), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text for one line or one cell: nothing in it is Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> str:
    """Text in a code block that it cannot end; characters that do not show, or turn the reading direction, are escaped."""
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    text = "".join(c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else f"\\u{ord(c):04x}" for c in text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"
