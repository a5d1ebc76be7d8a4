"""An experiment of DVC's (the winner of a sweep) put to the test and recorded in experiments/, as
if it had been tried here.

Its parameters become an ordinary experiment against the present incumbent. DVC's run-cache still
has its stages, so only the verdict is computed again: against the incumbent of today, after all
looks at the validation items that the sweep took.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator

from agent.knowledge.history import LOOKS, Record
from agent.run import execution, settings, telling, trial, workspace
from agent.run.progress import Progress, say
from stages.common.errors import PawlError
from stages.common.files import ROOT, write_text
from stages.common.process import stage_lock
from stages.common.reports.verdict import Verdict
from stages.common.text import plain

_REF = re.compile(r"refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/(\S+)")


def find(name: str) -> tuple[str, list[str]]:
    """The commit of an experiment of DVC's, or of a branch that `dvc exp branch` made, and the
    commits of its whole sweep.

    Raises:
        PawlError: no such experiment, or several of that name.
    """
    listing = workspace.git(
        "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps/"
    ).splitlines()
    refs = [
        (commit, match)
        for commit, ref in (line.split(" ", 1) for line in listing)
        if (match := _REF.fullmatch(ref))
    ]
    found = {commit: match[1] + match[2] for commit, match in refs if match[3] == name}
    if len(found) > 1:
        raise PawlError(
            f"{len(found)} experiments have that name, from different commits",
            where=plain(name, 80),
            fix="give its commit",
        )
    if not found:
        asked = workspace.call(
            ["git", "rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}"],
            check=False,
        )
        commit = asked.stdout.strip()
        if (
            asked.returncode
            or not workspace.git("ls-tree", "--name-only", commit, "params.yaml").strip()
        ):
            raise PawlError(
                "DVC has no such experiment",
                where=plain(name, 80),
                fix="see 'dvc exp list' for their names",
            )
        found = {commit: next((match[1] + match[2] for each, match in refs if each == commit), "")}
    ((commit, base),) = found.items()
    return commit, [each for each, match in refs if match[1] + match[2] == base] or [commit]


def overrides(commit: str) -> list[str]:
    """What an experiment changed, as overrides of the present configuration.

    Raises:
        PawlError: it changed nothing, or something that no experiment may change.
    """
    before, after = settings.require_composed(), settings.flat(_show(commit, "params.yaml"))
    keys = sorted(
        key
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key) and not _unimportant(key)
    )
    changes = [{"key": key, "after": after.get(key)} for key in keys]
    if missing := [change["key"] for change in changes if change["key"] not in after]:
        raise PawlError(
            f"the experiment has no {missing[0]}: its configuration is of another version",
            where=commit[:10],
        )
    if not changes:
        raise PawlError(
            "this is the present state: the experiment changed nothing",
            where=commit[:10],
            fix="choose another: 'dvc exp list'",
        )
    return [f"{change['key']}={_value(change['after'])}" for change in changes]


def _unimportant(key: str) -> bool:
    section = key.split(".")[0]
    return section in ("experiment", "tracking", "agent", "judge") or (
        section in settings.MEASURING and not settings.shapes_result(key)
    )


def _value(value: object) -> str:
    """A value as Hydra's command line reads it back as the same."""
    if isinstance(value, str):
        # only before a quote
        escaped = re.sub(
            r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value
        )
        return f"'{escaped}'"
    return "null" if value is None else json.dumps(value)


def put_back_applied(commit: str) -> None:
    """After `dvc exp apply`, the tree holds what the experiment's commit holds: put that back,
    since nothing is lost with it.
    """
    looks = str(LOOKS.relative_to(ROOT))  # a look stays looked at, and the page is nobody's change
    changed = [path for path in workspace.changed() if path not in (looks, workspace.PAGE)]
    for path in changed:
        file = ROOT / path
        held = workspace.call(["git", "show", f"{commit}:{path}"], check=False)
        if (
            held.returncode
            or not file.is_file()
            or file.read_text(encoding="utf-8", errors="replace") != held.stdout
        ):
            return  # a change of somebody's own: require_ready will name it
    if changed:
        workspace.git("checkout", "-q", "HEAD", "--", ".", f":!{looks}", f":!{workspace.PAGE}")
        workspace.call([*workspace._DVC, "checkout", "--quiet", "--force"], check=False)


def take_over_looks(commits: list[str]) -> int:
    """Add the looks at the validation items that a sweep took in its own clones, so that the
    correction for them counts; how many.

    Choosing the best of many is many looks, also where only one of them is adopted.
    """
    known = LOOKS.read_text(encoding="utf-8").splitlines() if LOOKS.exists() else []
    added = [line for line in _looks(commits) if line not in known]
    added = list(dict.fromkeys(added))
    if added:
        write_text(LOOKS, "".join(f"{line}\n" for line in [*known, *added]))
    # other lines say which questions were asked, and how many looks there are
    return sum('"candidate"' in line for line in added)


def _looks(commits: list[str]) -> Iterator[str]:
    for commit in commits:
        held = workspace.call(["git", "show", f"{commit}:{LOOKS.relative_to(ROOT)}"], check=False)
        yield from (
            line for line in held.stdout.splitlines() if held.returncode == 0 and line.strip()
        )


def _show(commit: str, path: str) -> str:
    return workspace.git("show", f"{commit}:{path}")


def hypothesis(name: str, commit: str, sweep: list[str]) -> str:
    """What is claimed when nobody says more: that the sweep's finding holds, with its figures."""
    held = workspace.call(["git", "show", f"{commit}:reports/judge.json"], check=False)
    verdict, told = Verdict.find_in(held.stdout), "no figures"
    if verdict:
        decided = verdict.evidence.deciding
        told = (
            f"accuracy {decided.after:.3f}, {decided.figures.difference:+.3f} on"
            f" {decided.figures.n} validation items"
        )
        told += f" of {plain(decided.benchmark, 80)}" if decided.benchmark else ""
    chosen = f", one of {len(sweep)} of its sweep" if len(sweep) > 1 else ""
    return (
        f"what {plain(name, 80)}{chosen}, found in DVC's experiment holds against the incumbent:"
        f" {told}"
    )


def adopt(name: str, why: str) -> Record:
    """Try what a DVC experiment tried, keep or discard it by the verdict, and record it.

    Raises:
        PawlError: no such experiment, a tree with other changes, or what `try` refuses.
    """
    commit, sweep = find(name)
    put_back_applied(commit)
    head = workspace.require_ready()
    given = overrides(commit)
    settings.parse(given)
    claim = trial.hypothesis(why or hypothesis(name, commit, sweep))
    if reason := trial.why_start(settings.require_composed()):
        telling.tell(trial.starting_point(head, reason))
        head = workspace.head()
    record = trial.plan(given, claim, "" if re.fullmatch(r"[0-9a-f]{7,40}", name) else name, head)
    if added := take_over_looks(sweep):
        say(f"agent: {added} looks at the validation items, taken by the sweep, count too")
    done, cause = execution.run(record, Progress())
    if cause:
        raise cause
    return done


def command(args: argparse.Namespace) -> None:
    with stage_lock("agent", record_failure=False):
        telling.tell(adopt(args.name, args.why))
