"""The memory of this machine that a process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

GIB = 2**30
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
_V2 = ("memory.max", "memory.current", "inactive_file", "active_file")


def machine_gib(root: Path = Path("/")) -> float:
    """What is available on the machine, or less where a control group (container, batch job,
    systemd) allows less.
    """
    return float(min([psutil.virtual_memory().available, *_left(root)])) / GIB


def _left(root: Path) -> Iterator[int]:
    """Bytes that each limited control group above this process has left. Cached files count as used
    there and are given back when asked, also those read more than once (active), as a base model
    is.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        limit, usage, *cached = _V1 if controllers else _V2
        inside = PurePosixPath(path.strip("/"))
        # a container without a namespace of its own is told the host's path, and finds its group
        # where the root would be
        for part in {base, base / inside, *(base / above for above in inside.parents)}:
            try:
                # "max" is no number: not limited
                most, used = int((part / limit).read_text()), int((part / usage).read_text())
                stat = dict(
                    entry.split() for entry in (part / "memory.stat").read_text().splitlines()
                )
            except (OSError, ValueError):
                continue
            yield max(0, most - used + sum(int(stat.get(name, 0)) for name in cached))
