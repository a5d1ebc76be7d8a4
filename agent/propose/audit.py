"""A sample of the training rows for a person to read, if facts are reported to be wrong: no
parameter mends what the rows get wrong.
"""

from __future__ import annotations

import random
import re
from typing import Any

from agent.gates.proposal import Proposal
from agent.knowledge.cache import FOLDER
from stages.common.files import ROOT, read_jsonl, sha256_file, write_text
from stages.common.text import markdown

ROWS = 50
_NAME = re.compile(r"(?<![.!?:]\s)(?<!^)\b[A-Z][\w-]+(?: [A-Z][\w-]+)*|\d[\d.,]*\d|\d")
_NAMES = 8


def audit(proposal: Proposal | None, seed: int) -> str:
    """Write .pawl/agent/audit.md, once for each version of the rows, and give its path; "" if there
    is nothing new to read.
    """
    asked = proposal and any(
        option.kind == "data_quality" and not option.changes for option in proposal.options
    )
    source, path = ROOT / "data/train/train.jsonl", FOLDER / "audit.md"
    if not asked or not source.exists():
        return ""
    mark = f"<!-- rows {sha256_file(source)}, seed {seed} -->"
    if path.exists() and path.read_text(encoding="utf-8").startswith(mark):
        return ""
    rows = list(read_jsonl(source))
    if not rows:
        return ""
    picked = random.Random(seed).sample(rows, min(ROWS, len(rows)))
    lines = [
        mark,
        f"# {len(picked)} of {len(rows)} training rows, to be read",
        "",
        "1. Is each answer right?",
        "2. Do names and facts agree with the outputs that you expect?",
        "   Names and numbers of an answer that its question has not are listed below the row.",
        "3. Does a row show what its answer rests on, such as a product catalog?",
        "",
    ]
    for row in picked:
        question, answers = shown(row)
        lines.append(
            f"- {markdown(' / '.join(part for part in (question, *answers) if part), 900)}"
        )
        if new := [
            name for name in dict.fromkeys(_NAME.findall(" ".join(answers))) if name not in question
        ]:
            lines.append(f"  - not in the question: {markdown(', '.join(new[:_NAMES]), 300)}")
    write_text(path, "\n".join(lines) + "\n")
    return str(path.relative_to(ROOT))


def shown(row: dict[str, Any]) -> tuple[str, list[str]]:
    """Question and answers of a row, whatever its kind: plain text, messages, pairs of DPO,
    labelled answers of KTO.
    """
    if row.get("text"):
        return "", [_text(row["text"])]
    messages = row.get("messages") or row.get("conversations") or []
    turns = [part for part in messages if isinstance(part, dict)]
    own = [part for part in turns if part.get("role", part.get("from")) in ("assistant", "gpt")]
    question = " / ".join(_text(part) for part in turns if part not in own)
    answers = [_text(part) for part in own]
    for name in ("chosen", "rejected"):
        if row.get(name):
            answers.append(f"{name}: {_text(row[name])}")
    label = row.get("kto_tag", row.get("label"))
    if isinstance(label, bool) and answers:
        answers[-1] = f"{'good' if label else 'bad'}: {answers[-1]}"
    return question, answers


def _text(part: Any) -> str:
    if isinstance(part, list):
        return " / ".join(_text(each) for each in part)
    return str(part.get("content", part.get("value", ""))) if isinstance(part, dict) else str(part)
