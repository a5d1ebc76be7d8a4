"""How much two evaluations of the same weights differ: where they may, and where the measured share lies.

`python -m stages.evaluate --noise` measures it and writes reports/noise/KEY.json; the key stands for the model, the engine, the
settings and the items, not for the adapter. The page shows it beside the verdict. It decides nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import read_object, sha256_text

FOLDER = Path("reports/noise")
COMMAND = "python -m stages.evaluate --noise"
_OF_THE_WEIGHTS = {"adapter_sha256", "adapter_served_as", "template_date"}
"""Parts of a fingerprint that change from run to run under one configuration."""


def may_differ(fingerprint: dict[str, Any]) -> bool:
    """Whether two evaluations with this fingerprint may give different answers.

    A greedy answer changes with the requests that are computed beside it. Two ways are known to be free of that: float32 on a CPU,
    and vLLM with batch invariance. Of a fingerprint that says nothing, nothing is said.
    """
    exact = fingerprint.get("device") == "cpu" and fingerprint.get("dtype") == "float32"
    return bool(fingerprint) and not exact and not fingerprint.get("batch_invariant")


def place(summary: dict[str, Any]) -> Path:
    """Where the figure of an evaluation's configuration lies, from the evaluation's summary."""
    fingerprint = summary.get("fingerprint") or {}
    kept = {name: value for name, value in fingerprint.items() if name not in _OF_THE_WEIGHTS}
    text = json.dumps([kept, summary.get("items_sha256")], sort_keys=True)
    return FOLDER / f"{sha256_text(text)[:16]}.json"


def known(root: Path, summary: dict[str, Any]) -> tuple[int, int] | None:
    """(verdicts that changed, verdicts) as measured for this configuration; None if it was not, or if the file is broken."""
    path = root / place(summary)
    if not path.is_file():
        return None
    try:
        report = read_object(path)
    except (PawlError, OSError):
        return None
    flips, answers = report.get("flips"), report.get("answers")
    if type(flips) is not int or type(answers) is not int or not 0 <= flips <= answers or not answers:
        return None
    return flips, answers


def sentence(root: Path, summary: dict[str, Any]) -> str:
    """What to say of it beside a verdict, "" if two evaluations do not differ."""
    found = known(root, summary)
    if found is None:
        if not may_differ(summary.get("fingerprint") or {}):
            return ""
        return f"With this engine, two evaluations of the same weights may differ. How much was not measured: {COMMAND}"
    flips, answers = found
    if not flips:
        return ""
    share = f"{100 * flips / answers:.1f} %"
    return f"Noise: two evaluations of the same weights disagree on {flips} of {answers} verdicts ({share})."
