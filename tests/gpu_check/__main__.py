"""What this machine's GPUs are shown to do: a table to paste into an issue. `make gpu-check` runs
it.

python -m tests.gpu_check
    every check, in under 10 minutes on one GPU; exit 1 if one fails
python -m tests.gpu_check --ready
    whether there is a GPU to check; exit 1 and one line if not
python -m tests.gpu_check --rehearse
    the same commands on the CPU with a tiny random model: tests the checks, proves no GPU
python -m tests.gpu_check --only noise
    the checks whose name has this in it

A check that fails does not end the others. If all pass, .pawl/gpu-check.json says so, and Pawl
stops saying that it was not yet run on this GPU.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from stages.common import doctor, gpus
from stages.common.errors import PawlError
from stages.common.files import main_root
from tests.conftest import ROOT, copy_repository
from tests.gpu_check.checks import CHECKS, Check
from tests.gpu_check.place import NotRun, Place

OK, FAILED, NOT_RUN = "ok", "FAILED", "not run"


@dataclass(frozen=True)
class Done:
    """A check's line of the table."""

    name: str
    result: str
    figures: str
    seconds: float

    def __str__(self) -> str:
        text = " ".join(self.figures.split()).replace("|", "\\|")
        return f"| {self.name} | {self.result} | {text} | {self.seconds:.0f} |"


def no_gpu() -> str:
    """Why nothing can be checked here, in one line; "" if something can."""
    try:
        if gpus.usable():
            return ""
    except PawlError as error:
        return f"{error.what}; {error.fix}"
    return "no NVIDIA GPU is visible here (nvidia-smi): run it on the machine with the GPU"


def make(name: str, check: Check, place: Place) -> Done:
    begun = time.monotonic()
    result, figures = OK, ""
    try:
        figures = check(place)
    except NotRun as reason:
        result, figures = NOT_RUN, str(reason)
    except Exception as error:  # noqa: BLE001 - whatever went wrong is this check's, and the others go on
        kind = "" if isinstance(error, AssertionError | PawlError) else f"{type(error).__name__}: "
        result, figures = FAILED, f"{kind}{error}"[:600]
    return Done(name, result, figures, time.monotonic() - begun)


def table(checks: Mapping[str, Check], place: Place) -> list[Done]:
    """Make the checks one after another, and print a line for each as soon as it is known."""
    print("| check | result | figures | seconds |\n|---|---|---|---:|", flush=True)
    found = []
    for name, check in checks.items():
        found.append(make(name, check, place))
        print(found[-1], flush=True)
    return found


def title(place: Place) -> str:
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    built = f"torch {version('torch')}, {doctor.serving() or 'no vLLM'}"
    if place.rehearsal:
        return f"REHEARSAL on the CPU, which proves no GPU: Pawl {head or 'without Git'}, {built}"
    kinds = ", ".join(sorted({card.name for card in place.cards}))
    return (
        f"Pawl {head or 'without Git'} on {len(place.cards)} x {kinds}, driver"
        f" {place.cards[0].driver}, {built}"
    )


def prepared(rehearsal: bool) -> Place:
    """A fresh copy of the working tree to check in, beside the log of all commands."""
    work = main_root() / ".pawl" / "gpu-check"
    shutil.rmtree(work, ignore_errors=True)
    folder = copy_repository(work / "pawl")
    if (main_root() / ".venv-serve").exists():
        (folder / ".venv-serve").symlink_to((main_root() / ".venv-serve").resolve())
    return Place(folder, () if rehearsal else gpus.usable())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ready", action="store_true", help="only say whether there is a GPU to check"
    )
    parser.add_argument("--rehearse", action="store_true", help="run the checks on the CPU")
    parser.add_argument(
        "--only",
        action="append",
        help="a part of the names of the checks to make; may be given several times",
    )
    args = parser.parse_args()
    if not args.rehearse and (reason := no_gpu()):
        print(f"gpu-check: error: {reason}", file=sys.stderr)
        return 1
    if args.ready:
        return 0
    wanted = args.only or [""]
    if unknown := [part for part in wanted if not any(part in name for name in CHECKS)]:
        parser.error(f"no check has {unknown[0]!r} in its name: {', '.join(CHECKS)}")
    chosen = {name: check for name, check in CHECKS.items() if any(part in name for part in wanted)}
    begun = time.monotonic()
    place = prepared(args.rehearse)
    print(f"{title(place)}\n", flush=True)
    return finish(
        table(chosen, place), place, time.monotonic() - begun, whole=len(chosen) == len(CHECKS)
    )


def finish(found: list[Done], place: Place, seconds: float, *, whole: bool) -> int:
    """The last lines, the proof, and the exit code."""
    counts = {
        result: sum(done.result == result for done in found) for result in (OK, FAILED, NOT_RUN)
    }
    shown = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
    print(f"\n{shown}, in {seconds / 60:.1f} minutes")
    if counts[FAILED]:
        print(
            f"what the commands said: {place.folder.parent / 'commands.log'}; the results:"
            f" {place.folder}"
        )
        return 1
    if whole and not place.rehearsal:
        gpus.prove()
    shutil.rmtree(place.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
