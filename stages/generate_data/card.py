"""The data card: what the training data is, for a person to read. Its sample rows are data,
whatever they say.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

from stages.common.reports.data import DataReport
from stages.common.schema import Data, Source

SAMPLES = 10
_LONGEST = 1000  # characters of a sample row
_COLUMNS = {
    "read": "Read",
    "bad": "Bad",
    "duplicates": "Duplicates",
    "contaminated": "In the benchmark",
    "too_long": "Too long",
}
_SELDOM = ("refused", "unverified", "empty", "refusal", "format", "language", "near_duplicates")


def write(data: Data, report: DataReport, samples: Sequence[str]) -> str:
    """The card as Markdown: sources, licences, counts, and rows drawn by the data's seed, as
    JSON.
    """
    tokens, sources = report.tokens, report.sources
    seldom = [name for name in _SELDOM if any(getattr(source, name) for source in sources.values())]
    columns = (
        _COLUMNS
        | {name: name.replace("_", " ").capitalize() for name in seldom}
        | {"unused": "Unused", "kept": "Kept"}
    )
    held = f" and {report.eval_rows} held out for the loss" if report.eval_rows else ""
    lines = [
        f"# Training data: {_plain(data.name)}",
        "",
        (
            f"{report.rows} rows{held}, {tokens.total} tokens ({tokens.p50} in the median row,"
            f" {tokens.max} in the longest), seed {data.seed}."
        ),
        "",
        "| Source | Origin | Licence | " + " | ".join(columns.values()) + " |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for name, source in data.sources.items():
        cells = [
            name,
            _origin(source, data),
            source.licence or "not stated",
            *(str(getattr(sources[name], key)) for key in columns),
        ]
        lines.append("| " + " | ".join(map(_plain, cells)) + " |")
    share = report.contamination.fraction if report.contamination else 0.0
    lines += [
        "",
        (
            f"Rows with a question of the benchmark, or {data.ngram} words in a row of an item, or"
            f" a question like one but for its numbers, were removed ({share:.1%})."
        ),
    ]
    lines += ["", *(f"- {_plain(remark)}" for remark in report.remarks)] if report.remarks else []
    for tier, usage in report.teacher.items():
        lines += [
            "",
            _plain(
                f"The {tier} teacher, {usage.model}, gave {usage.requests} replies:"
                f" {usage.prompt_tokens} prompt and {usage.output_tokens} output tokens, cost"
                f" {usage.cost:.4g}."
            ),
        ]
    lines += ["", f"## {len(samples)} of {report.rows} rows", ""]
    for sample in samples:
        lines += [_fenced(sample), ""]
    return "\n".join(lines)


def sample_text(line: bytes) -> str:
    """A row of the file as the card shows it: the conversation alone where that is all there is."""
    row = json.loads(line)
    return json.dumps(row["messages"] if list(row) == ["messages"] else row, ensure_ascii=False)


def _origin(source: Source, data: Data) -> str:
    origin = {
        "procedural": f"reasoning_gym {source.task} {source.settings or ''}",
        "wheel": f"{source.package} {source.path}",
        "hub": f"{source.repo} {source.subset} {source.split} at {source.revision[:12]}",
    }.get(source.kind, source.path)
    return (
        f"{origin}, {source.recipe} by {getattr(data.teacher, source.tier).model}"
        if source.recipe
        else origin
    )


def _plain(text: str) -> str:
    """Text for one line or one cell: nothing in it is Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> str:
    """Text in a code block that it cannot end; characters that do not show, or turn the reading
    direction, are escaped.
    """
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    text = "".join(
        (
            c
            if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
            else f"\\u{ord(c):04x}"
        )
        for c in text
    )
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"
