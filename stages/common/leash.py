"""Run a program, and end its whole process group when whoever started it is gone: kill -9 lets
nobody clean up after himself.

python -I -S leash.py PARENT_PID PROGRAM [ARGUMENT ...]

The kernel tells a process of its parent's death, but not the grandchildren; vLLM then leaves its
workers to themselves. Standard library only, and started without site-packages: it costs a few
hundredths of a second.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = signal.SIGUSR1


def main() -> None:
    parent, argv = int(sys.argv[1]), sys.argv[2:]
    signal.signal(_PARENT_GONE, lambda *_: os.killpg(0, signal.SIGKILL))
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # meant for the program, which gets its own; a handler, since "ignore" would be inherited
        signal.signal(sign, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _PARENT_GONE)
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
    code = subprocess.Popen(argv, stdin=subprocess.DEVNULL).wait()
    if code < 0:  # end as it ended
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
