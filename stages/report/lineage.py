"""What was tried before: the records in experiments/, who descends from whom, and the sweeps that
DVC keeps as refs of Git.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from stages.common.files import flatten
from stages.common.items import wilson
from stages.common.reports.verdict import Verdict
from stages.common.text import plain

FOLDER = re.compile(r"\d{4,}-[a-z0-9][a-z0-9-]*")
SWEEP_REF = re.compile(r"refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/(\S+)")
SWEEPS, SWEEP_ROWS = 5, 200
"""The newest sweeps, and the most experiments of all of them, that the page shows."""
WORDS = 1500
"""Characters of a judge's reason that a card shows; the whole is in experiments/."""


def number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def read_experiments(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The finished experiments as cards, oldest first, and the names of folders that hold no
    readable record.
    """
    cards, broken = [], []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir() or path.name.startswith("."):
            continue
        record = _json(path / "record.json")
        if (
            not FOLDER.fullmatch(path.name)
            or not isinstance(record.get("number"), int)
            or not isinstance(record.get("status"), str)
        ):
            broken.append(plain(path.name, 80))
        elif record["status"] != "PLANNED":
            cards.append(_card(path, record))
    cards.sort(key=lambda card: (card["number"], card["folder"]))
    _pass_on_measures(cards)
    _mark_champion(comparable(cards))
    _set_depths(cards)
    return cards, broken


def _card(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    words, evidence = _dict(_json(path / "judge.json").get("words")), _dict(record.get("evidence"))
    if record.get("words"):  # of a crash, which has no verdict
        words = {**words, "Explained": record["words"]}
    measured = _json(path / "val.json")
    figures = {
        key: number(evidence.get(key))
        for key in ("n", "accuracy", "incumbent_accuracy", "difference", "low", "high", "p")
    }
    changes = record.get("changes")
    spent = {key: record[key] for key in ("cost", "tokens", "account", "usage") if record.get(key)}
    return {
        "number": record["number"],
        "folder": path.name,
        "slug": path.name.partition("-")[2],
        "status": record["status"],
        "parent": str(record.get("parent") or ""),
        "incumbent": str(record.get("incumbent") or ""),
        "hypothesis": plain(record.get("hypothesis") or "", WORDS),
        "reason": plain(record.get("reason") or "", WORDS),
        "changes": (
            [change for change in changes if isinstance(change, dict)][:20]
            if isinstance(changes, list)
            else []
        ),
        "words": {
            str(name): plain(text, WORDS) for name, text in words.items() if isinstance(text, str)
        },
        "duration_s": number(record.get("duration_s")),
        "finished_at": plain(record.get("finished_at") or "", 40),
        "spent": {
            name: value for name, value in flatten(spent).items() if number(value) is not None
        },
        "parts": {
            str(name): _dict(part) for name, part in _dict(evidence.get("benchmarks")).items()
        },
        "measure": (
            ""
            if not measured
            else json.dumps(
                [measured.get("items_sha256"), measured.get("settings")], sort_keys=True
            )
        ),
        **figures,
        "champion": False,
        "on_path": False,
        "depth": 0,
    }


def comparable(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The experiments measured as the newest one was: on the same items, with the same settings.
    One scale for others would mislead.
    """
    return [card for card in cards if card["measure"] == cards[-1]["measure"]] if cards else []


def _pass_on_measures(cards: list[dict[str, Any]]) -> None:
    """An experiment without results was to be measured as the one that it started from."""
    known: dict[str, str] = {}
    for card in cards:
        card["measure"] = known[card["folder"]] = card["measure"] or known.get(card["parent"], "")


def _mark_champion(cards: list[dict[str, Any]]) -> None:
    """The newest kept experiment and its ancestors."""
    by_folder = {card["folder"]: card for card in cards}
    kept = [card for card in cards if card["status"] == "KEPT"]
    if kept:
        card: dict[str, Any] | None = kept[-1]
        kept[-1]["champion"] = True
        while card and not card["on_path"]:  # a loop of parents ends too
            card["on_path"] = True
            card = by_folder.get(card["parent"])


def _set_depths(cards: list[dict[str, Any]]) -> None:
    """How far a card hangs from the line of kept ones."""
    by_folder = {card["folder"]: card for card in cards}
    for card in cards:
        parent = by_folder.get(card["parent"])
        card["depth"] = 0 if card["on_path"] or parent is None else min(6, parent["depth"] + 1)


def drawn(cards: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes and edges of the search's chart. A crashed experiment has no accuracy: it is drawn at
    the lowest one.
    """
    known = [card["accuracy"] for card in cards if card["accuracy"] is not None]
    if not known:
        return [], []
    places = {
        card["folder"]: (
            card["number"],
            min(known) if card["accuracy"] is None else card["accuracy"],
        )
        for card in cards
    }
    paths = {card["folder"]: card["on_path"] for card in cards}
    nodes = [
        {
            "number": card["number"],
            "accuracy": places[card["folder"]][1],
            "status": card["status"],
            "href": f"#exp-{card['number']}",
            "label": (
                f"{card['folder']}: {card['status'].lower()}"
                + (
                    ""
                    if card["accuracy"] is None
                    else f", accuracy {card['accuracy']:.3f}, {_signed(card)}"
                )
            ),
        }
        for card in cards
    ]
    edges = [
        {
            "number": places[card["parent"]][0],
            "accuracy": places[card["parent"]][1],
            "number2": places[card["folder"]][0],
            "accuracy2": places[card["folder"]][1],
            "path": paths[card["folder"]] and paths[card["parent"]],
        }
        for card in cards
        if card["parent"] in places
    ]
    return nodes, edges


def _signed(card: dict[str, Any]) -> str:
    if card["difference"] is None:
        return "no difference measured"
    return f"{100 * card['difference']:+.1f} points against {card['incumbent']}"


def read_sweeps(root: Path) -> list[dict[str, Any]]:
    """DVC's experiments (`dvc exp run`, queues) by the commit that they started from, newest first;
    [] outside of a Git repository.

    Read from their commits, so that no experiment has to be applied, and none that was removed is
    shown.
    """
    fields = "%(refname) %(objectname) %(committerdate:unix)"
    listing = _git(
        root, "for-each-ref", "--sort=-committerdate", f"--format={fields}", "refs/exps/"
    ).decode("utf-8", "replace")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in listing.splitlines()[:SWEEP_ROWS]:
        ref, commit, _ = line.rsplit(" ", 2)
        if match := SWEEP_REF.fullmatch(ref):
            found.setdefault(match[1] + match[2], []).append((match[3], commit))
    newest = dict(list(found.items())[:SWEEPS])
    commits = [
        commit
        for base, parts in newest.items()
        for commit in [base, *(commit for _, commit in parts)]
    ]
    wanted = [f"{commit}:{name}" for commit in commits for name in _FILES]
    files = _blobs(root, wanted) if wanted else {}
    return [
        sweep for base, parts in newest.items() if (sweep := _sweep(base, parts, files))["rows"]
    ]


_FILES = ("params.yaml", "reports/judge.json")


def _sweep(base: str, parts: list[tuple[str, str]], files: dict[str, bytes]) -> dict[str, Any]:
    before = _params(files.get(f"{base}:params.yaml"))
    rows: list[dict[str, Any]] = []
    for name, commit in parts:
        verdict = Verdict.find_in(files.get(f"{commit}:reports/judge.json"))
        if verdict is None:
            continue
        decided = verdict.evidence.deciding
        accuracy, n = decided.after, decided.figures.n
        after = _params(files.get(f"{commit}:params.yaml"))
        low, high = wilson(round(accuracy * n), n)
        changed = {
            key: value
            for key, value in after.items()
            if before.get(key) != value and not key.startswith("experiment.")
        }
        figures = {"difference": decided.figures.difference, "p_better": decided.figures.p_better}
        rows.append(
            {
                "name": plain(name, 60),
                "changed": changed,
                "accuracy": accuracy,
                "low": low,
                "high": high,
                "n": n,
                "outcome": verdict.outcome,
                "label": f"{name}: {accuracy:.3f}",
                **figures,
            }
        )
    rows.sort(key=lambda row: (-row["accuracy"], row["name"]))
    keys = sorted({key for row in rows for key in row["changed"]})[:6]
    return {"base": base[:7], "rows": rows, "keys": keys, "before": before}


def _git(root: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=root, input=stdin, capture_output=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def _blobs(root: Path, names: list[str]) -> dict[str, bytes]:
    """The contents of `commit:path` objects, through one process; what does not exist is left
    out.
    """
    out, found, place = (
        _git(root, "cat-file", "--batch", stdin="\n".join(names).encode() + b"\n"),
        {},
        0,
    )
    for name in names:
        end = out.find(b"\n", place)
        if end < 0:
            break
        header = out[place:end].split()
        place = end + 1
        if len(header) == 3 and header[1] == b"blob":
            size = int(header[2])
            found[name] = out[place : place + size]
            place += size + 1
    return found


def _params(text: bytes | None) -> dict[str, Any]:
    """The leaves of a composed params.yaml, for display."""
    try:
        value = yaml.load(text or b"", Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}
    return flatten(value) if isinstance(value, dict) else {}


def _loaded(text: bytes | None) -> dict[str, Any]:
    try:
        return _dict(json.loads(text or b"{}"))
    except (ValueError, RecursionError):
        return {}


def _json(path: Path) -> dict[str, Any]:
    try:
        return _loaded(path.read_bytes())
    except OSError:
        return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
