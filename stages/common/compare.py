"""The runs and sweeps that DVC knows, as one table: what differs between them, and the scores to
choose by.

python -m stages.common.compare
    runs of HEAD and of the newest five commits that runs started from

A run that is queued, at work or failed has no scores: DVC would show those of the tree that it
started from.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, flatten
from stages.common.text import plain

FIGURES = {
    "reports/judge.json": (
        "outcome",
        "evidence.pooled.difference",
        "evidence.pooled.low",
        "evidence.pooled.high",
        "evidence.pooled.p_better",
    ),
    "reports/train.json": ("final_loss",),
}
"""Of the hundreds of figures in reports/, those that a person chooses by, by the file that has
them.
"""
PARAMS = ("model", "data", "train", "launcher", "judge")
BASES = 5


def bases() -> list[str]:
    """HEAD, and the newest commits that finished and queued runs started from."""
    refs = _git(
        "for-each-ref", "--sort=-committerdate", "--format=%(refname)", "refs/exps/"
    ).splitlines()
    finished = [
        found[1] + found[2]
        for ref in refs
        if (found := re.fullmatch(r"refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/[^/]+", ref))
    ]
    stashed = (
        _git("log", "-g", "--format=%gs", "refs/exps/celery/stash").splitlines()
        if "refs/exps/celery/stash" in refs
        else []
    )
    queued = [
        found[1]
        for line in stashed
        if (found := re.search(r"dvc-exp:[0-9a-f]+:([0-9a-f]{40})", line))
    ]
    return list(dict.fromkeys([_git("rev-parse", "HEAD").strip(), *queued, *finished]))[: BASES + 1]


def rows(shown: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """One row for the tree, for each commit and for each run of `dvc exp show --json`."""
    for base in shown:
        name = base.get("name") or ("this tree" if base["rev"] == "workspace" else base["rev"][:7])
        yield {"run": name, "state": "", **_figures(base), **_params(base)}
        for run in base.get("experiments") or []:
            newest = run["revs"][0]
            state = str((run.get("executor") or {}).get("state") or "success").lower()
            done = state == "success"
            name = newest.get("name") or run.get("name") or newest["rev"][:7]
            yield {
                "run": f"  {name}",
                "state": "" if done else state,
                **(_figures(newest) if done else {}),
                **_params(newest),
            }


def _figures(run: dict[str, Any]) -> dict[str, str]:
    files = (run.get("data") or {}).get("metrics") or {}
    found: dict[str, str] = {}
    for file, names in FIGURES.items():
        values = flatten((files.get(file) or {}).get("data") or {})
        found |= {name.rpartition(".")[2]: _text(values[name]) for name in names if name in values}
    return found


def _params(run: dict[str, Any]) -> dict[str, str]:
    values = flatten(
        ((((run.get("data") or {}).get("params") or {}).get("params.yaml")) or {}).get("data") or {}
    )
    return {key: _text(value) for key, value in values.items() if key.split(".")[0] in PARAMS}


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain(str(value), 40)


def table(found: list[dict[str, str]]) -> str:
    """Markdown, with the parameters that differ between runs; "-" where a run has no such
    figure.
    """
    names = [name.rpartition(".")[2] for names in FIGURES.values() for name in names]
    keys = sorted({key for row in found for key in row} - {"run", "state", *names})
    columns = [
        "run",
        "state",
        *names,
        *(key for key in keys if len({row.get(key) for row in found}) > 1),
    ]
    lines = [columns, *([row.get(column, "-") for column in columns] for row in found)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    written = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    return "\n".join(
        [written[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *written[1:]]
    )


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m stages.common.compare", description=__doc__, formatter_class=raw
    ).parse_args()
    asked = [word for base in bases() for word in ("--rev", base)]
    done = subprocess.run(
        ["dvc", "exp", "show", "--json", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PawlError(
            "DVC shows no experiments", where=plain(done.stderr.strip(), 300), fix="dvc exp show"
        )
    print(table(list(rows(json.loads(done.stdout)))))


if __name__ == "__main__":
    run_main("compare", main)
