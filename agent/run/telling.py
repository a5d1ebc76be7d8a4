"""What came out of an experiment, for people: on the terminal, in the commit, and why a stage
failed.
"""

from __future__ import annotations

import sys

from agent.knowledge import history
from agent.knowledge.history import Record
from agent.run import account, workspace
from agent.run.progress import say
from stages.common import failure
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.redaction import redact
from stages.common.text import plain


def tell(record: Record) -> None:
    """The outcome, for the person who waits."""
    reason = f" ({record.reason})" if record.reason else ""
    say(f"agent: {record.folder} {record.status}{reason}")
    if record.words:
        say(f"  {record.words}")
    if record.evidence:
        figures = ", ".join(
            [
                f"accuracy {history.accuracy(record)}",
                f"difference {history.difference(record)}",
                f"p {history.p_value(record)}",
            ]
        )
        items = f"{record.evidence.get('n')} validation items"
        say(f"  {figures} against {record.incumbent}, {items}")
    committed = f"committed as {workspace.head()[:10]}"
    say(f"  experiments/{record.folder}/, {committed}; all of them: python -m agent history")


def message(record: Record) -> str:
    """The commit message. Every line begins with our own word, so that no text of others becomes a
    trailer.
    """
    before = history.number(record.evidence.get("incumbent_accuracy"))
    after = history.number(record.evidence.get("accuracy"))
    numbers = ""
    if before is not None and after is not None:
        numbers = f", accuracy {before:.3f} -> {after:.3f}"
        numbers += f", {history.difference(record)}, p {history.p_value(record)}"
    lines = [
        f"Experiment {record.folder}: {record.status}{numbers}",
        "",
        f"Changed: {plain(history.changes(record), 500)}",
        f"Against: {record.incumbent}",
        f"Why: {plain(record.hypothesis, 2000)}",
    ]
    if record.reason:
        lines.append(f"Reason: {record.reason}")
    if record.words:
        lines.append(f"Explained: {record.words}")
    return "\n".join(lines) + "\n"


def reason_of(error: BaseException) -> str:
    """Why an experiment has no verdict, in one line."""
    what = error.what if isinstance(error, PawlError) else f"{type(error).__name__}: {error}"
    return plain(redact(what), 300)


def failed_at(stage: str, since: float) -> str:
    """The stage that failed after `since`, and its error if the stage cannot have read test
    data.
    """
    if not stage:
        return ""
    left = failure.read(stage, since)
    if stage not in failure.SEES_NO_TEST or not left.get("error"):
        return f" at {stage}"
    first = str(left["error"]).splitlines()[0]
    return f" at {stage}: {plain(redact(first), 200)}"


def explained(record: Record, stage: str, since: float) -> str:
    """The judge's words on the stage that failed after `since`, in seconds since 1970; "" if it has
    none.

    What the judge paid for them goes into the account.
    """
    if not stage or not (ROOT / "stages/judge").is_dir():
        return ""
    argv = [sys.executable, "-m", "stages.judge", "explain-failure", "--since", f"{since:.3f}"]
    workspace.call(argv, check=False, timeout_s=600)
    said = failure.read(stage, since).get("explained")
    if not isinstance(said, dict):
        return ""
    paid = said.get("paid")
    if record.run and isinstance(paid, dict):
        read, written, cost = (
            history.number(paid.get(name)) or 0.0
            for name in ("prompt_tokens", "output_tokens", "cost")
        )
        account.add_call(record.run, record.trial, "explain", int(read), int(written), cost)
    return plain(redact(str(said.get("reason") or "")), 1500)
