"""How much two evaluations of the same weights differ: where they may, and where the measured share
lies.

`python -m stages.evaluate --noise` measures it and writes reports/noise/KEY.json; the key stands
for the model, the engine, the settings and the items, not for the adapter. The page shows it beside
the verdict. It decides nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.common.files import sha256_text
from stages.common.reports.evaluation import Summary
from stages.common.reports.noise import NoiseReport

FOLDER = Path("reports/noise")
COMMAND = "python -m stages.evaluate --noise"
_OF_THE_WEIGHTS = {"adapter_sha256", "adapter_served_as", "template_date"}
"""Parts of a fingerprint that change from run to run under one configuration."""


def may_differ(fingerprint: dict[str, Any]) -> bool:
    """Whether two evaluations with this fingerprint may give different answers.

    A greedy answer changes with the requests that are computed beside it. Two ways are known to be
    free of that: float32 on a CPU, and vLLM with batch invariance. Of a fingerprint that says
    nothing, nothing is said.
    """
    exact = fingerprint.get("device") == "cpu" and fingerprint.get("dtype") == "float32"
    return bool(fingerprint) and not exact and not fingerprint.get("batch_invariant")


def place(summary: Summary) -> Path:
    """Where the figure of an evaluation's configuration lies, from the evaluation's summary."""
    kept = {
        name: value for name, value in summary.fingerprint.items() if name not in _OF_THE_WEIGHTS
    }
    text = json.dumps([kept, summary.items_sha256], sort_keys=True)
    return FOLDER / f"{sha256_text(text)[:16]}.json"


def sentence(root: Path, summary: Summary) -> str:
    """What to say of it beside a verdict, "" if two evaluations do not differ."""
    found = NoiseReport.find(root / place(summary))
    if found is None:
        if not may_differ(summary.fingerprint):
            return ""
        return (
            "With this engine, two evaluations of the same weights may differ. How much was not"
            f" measured: {COMMAND}"
        )
    if not found.flips:
        return ""
    share = f"{100 * found.flips / found.answers:.1f} %"
    return (
        f"Noise: two evaluations of the same weights disagree on {found.flips} of {found.answers}"
        f" verdicts ({share})."
    )
