"""A room for model-written code.

It has no network, no files but Python's own, no keys, few processes, little memory, little time.

Runs as `python -I box.py ROOM BINDS...` (of Pawl only programs.py and lazy.py are in the room),
reads one job as JSON from its input and writes the verdicts to its output. The steps: new
namespaces (network, processes, mounts, IPC, and, for a user without rights, users); a root of its
own on memory, in which Python's folders are mounted read-only; and for every item one child with
namespaces and empty scratch folders of its own, limits, no privileges and a filter of system calls,
after which every process in the room is killed. Whatever of this cannot be had ends it before any
code is run.

Two processes stay. The outer one alone knows the items and hears the verdicts; the room's first
process, of which the items' processes are copies, never sees either, so that no item finds another
one in its memory. It keeps its privileges, so that no item's code can stop it or look into it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

_NEW_NS, _NEW_UTS, _NEW_IPC = 0x20000, 0x4000000, 0x8000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NOBODY = 65534
_SCRATCH, _SHARED = "/scratch", "/dev/shm"
_READY = b"R"  # a child's first byte: it is disarmed
_ENDED = b"E"  # of the first process: every process of an item is gone
_LONGEST = 65536  # bytes of what an item's process may say
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_SOCKET = {"x86_64": (41, 53), "aarch64": (198, 199)}  # socket, socketpair
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
"""System calls that no item gets, with their numbers on x86_64 and aarch64. The first two make new
namespaces, with the rights in them. The next gives memory that no limit counts, or that is kept
beyond a process. The last three look into other processes."""
Item = dict[str, Any]
Score = Callable[[Item], float]


class Job(TypedDict):
    """What is asked of the room: an evaluator's configuration, and `count` items in the end."""

    evaluator: dict[str, object]
    items: NotRequired[list[Item]]
    count: NotRequired[int]
    seconds: float
    memory: int
    limits: dict[str, int]


class Verdict(TypedDict, total=False):
    """What became of an item: its score from 0 to 1, or an error, which is a score of 0."""

    score: float
    error: str


_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """A function of the C library that must succeed."""
    given = [part.encode() if isinstance(part, str) else part for part in arguments]
    if getattr(_libc, name)(*given) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def leave() -> bool:
    """Into new namespaces; whether this process was the machine's root before."""
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEW_NS | _NEW_UTS | _NEW_IPC | _NEW_PID | _NEW_NET
    call("unshare", flags if uid == 0 else flags | _NEW_USER)
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    return uid == 0


def furnish(room: str, binds: list[str], memory: int) -> None:
    """Make `room` the root: empty, in memory, with Python's folders read-only and three devices."""
    sealed = _REMOUNT | _RDONLY | _NOSUID | _NODEV
    call("mount", "none", "/", None, _REC | _PRIVATE, None)
    call("mount", "tmpfs", room, "tmpfs", _NOSUID | _NODEV, f"size={memory},mode=755")
    for bind in ["/dev/null", "/dev/zero", "/dev/urandom", *binds]:
        path, _, other = bind.partition("=")
        inside = Path(room + (other or path))
        if Path(path).is_symlink():
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(Path(path).readlink())
            continue
        (inside if Path(path).is_dir() else inside.parent).mkdir(parents=True, exist_ok=True)
        if not Path(path).is_dir():
            inside.touch()
        call("mount", path, str(inside), None, _BIND | _REC, None)
        if not path.startswith("/dev/"):
            call("mount", "none", str(inside), None, _BIND | sealed, None)
    for name in (_SCRATCH, _SHARED, "/old"):
        Path(room + name).mkdir(parents=True, exist_ok=True)
    os.chdir(room)
    call("syscall", _PIVOT_ROOT[os.uname().machine], ".", "old")
    os.chdir("/")
    call("umount2", "/old", 2)
    Path("/old").rmdir()
    call("mount", "none", "/", None, sealed, f"size={memory},mode=755")
    os.environ["TMPDIR"] = os.environ["HOME"] = _SCRATCH


def clear(memory: int) -> None:
    """Namespaces and empty folders for this process and its children alone; they end with these."""
    call("unshare", _NEW_NS | _NEW_IPC | _NEW_NET | _NEW_UTS)
    for name in (_SCRATCH, _SHARED):
        call("mount", "tmpfs", name, "tmpfs", _NOSUID | _NODEV, f"size={memory},mode=1777")
    os.chdir(_SCRATCH)


def disarm(was_root: bool, limits: dict[str, int]) -> None:
    """Limits, then no privileges: nothing here or in a child can get any back."""
    for name in ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE"):
        resource.setrlimit(getattr(resource, name), (limits[name], limits[name]))
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    for capability in range(64):
        # PR_CAPBSET_DROP; it fails for those that this kernel does not know
        _libc.prctl(24, capability, 0, 0, 0)
    if was_root:  # the kernel does not limit the processes of the real root
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, none)
    call("capget", header, none)
    if any(none):
        raise OSError("privileges are left")
    refuse_calls(os.uname().machine)


def refuse_calls(machine: str) -> None:
    """Refuse the calls of _REFUSED, and a clone into new namespaces, here and in all children.

    The answer is "not permitted" (seccomp, mode 2).
    """
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, not_permitted, no_such_call, kill = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
    refuse, number_of_call = (give, 0, 0, not_permitted), (load, 0, 0, 0)
    steps = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURE[machine]), (give, 0, 0, kill)]
    # the last two refuse the calls of a second table, which the numbers here do not name
    steps += [number_of_call, (at_least, 0, 1, 0x40000000), refuse]
    table = ("x86_64", "aarch64").index(machine)
    for number in (numbers[table] for numbers in _REFUSED.values()):
        steps += [(equal, 0, 1, number), refuse]
    # Unix and Internet sockets stay in the item's namespaces; vsock reaches the machine's host
    for number in _SOCKET[machine]:
        families = [(equal, 3, 0, 1), (equal, 2, 0, 2), (equal, 1, 0, 10)]
        steps += [(equal, 0, 6, number), (load, 0, 0, 16), *families, refuse, number_of_call]
    # the flags of clone3 cannot be read; the C library then takes clone
    steps += [(equal, 0, 1, _CLONE3), (give, 0, 0, no_such_call)]
    spaces = _NEW_NS | _NEW_UTS | _NEW_IPC | _NEW_USER | _NEW_PID | _NEW_NET | 0x2000000
    steps += [(equal, 0, 3, _CLONE[machine]), (load, 0, 0, 16), (any_bit, 0, 1, spaces), refuse]
    steps += [(give, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filtered = struct.pack("HL", len(steps), ctypes.addressof(program))
    call("prctl", 22, 2, ctypes.create_string_buffer(filtered), 0, 0)
    if _libc.unshare(_NEW_USER) == 0:
        raise OSError("a namespace of its own could be had")


def serve(asked: int, said: int, told: int, room: str, binds: list[str], was_root: bool) -> None:
    """The room's first process: it makes a child for each item, which it never sees.

    It says when all of a child's processes are gone.
    """
    job = json.loads(receive(asked))
    furnish(room, binds, job["memory"])
    clear(job["memory"])  # what an evaluator's imports want to write; no item sees it
    sys.path.insert(0, "/lazy")
    score = importlib.import_module("programs").scorer(job["evaluator"])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    for _ in range(job["count"]):
        child = os.fork()
        if child == 0:
            try:
                one(score, asked, said, job, was_root)
            finally:
                os._exit(0)
        until = time.monotonic() + job["seconds"]
        while os.waitpid(child, os.WNOHANG)[0] == 0 and (left := until - time.monotonic()) > 0:
            signal.sigtimedwait([signal.SIGCHLD], left)
        sweep()
        os.write(told, _ENDED)


def one(score: Score, asked: int, said: int, job: Job, was_root: bool) -> None:
    """An item's process: disarmed, it takes its item, runs it and says its verdict; of the pipes it
    keeps this one alone.
    """
    seconds = int(job["seconds"]) + 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    try:
        item = json.loads(receive(asked))
        clear(job["memory"])
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.closerange(3, said)
        os.closerange(said + 1, 1024)
        disarm(was_root, job["limits"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    except BaseException as error:  # noqa: BLE001 - told by what is missing: the first byte
        os.write(said, f" {error}".encode())
        return
    os.write(said, _READY)
    try:
        verdict: Verdict = {"score": float(score(item))}
    except BaseException as error:  # noqa: BLE001 - whatever model-written code raises
        verdict = {"error": f"{type(error).__name__}: {error}"[:300]}
    os.write(said, json.dumps(verdict).encode())


def sweep() -> None:
    """Kill every process of the room but its first, which calls this."""
    for _ in range(200):  # a fork bomb makes new ones while the old ones die
        try:
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)
        except (ChildProcessError, ProcessLookupError):
            break


def verdicts(job: Job, ask: int, hear: int, ended: int) -> list[Verdict]:
    """The verdict of each item: {"score": ...} or {"error": ...}, one after the other.

    Raises:
        OSError: an item's process could not be disarmed, so that it ran nothing.
        EOFError: the room's first process has ended.
    """
    items = job.pop("items")
    send(ask, json.dumps(job | {"count": len(items)}).encode())
    os.set_blocking(hear, False)
    found = []
    for item in items:
        send(ask, json.dumps(item).encode())
        text = words(hear, ended)
        if text[:1] != _READY:
            raise OSError(
                f"an item's process could not be disarmed:{text[:1000].decode(errors='replace')}"
            )
        found.append(read(text[1:]))
    return found


def words(hear: int, ended: int) -> bytes:
    """What an item's processes say until they are gone, no more than _LONGEST of it; nothing is
    left for the next one.
    """
    text = b""
    while True:
        sources = [ended, hear] if len(text) < _LONGEST else [ended]
        ready = select.select(sources, [], [])[0]
        if hear in ready:
            if not (part := os.read(hear, _LONGEST)):  # nobody holds its other end
                raise EOFError("the room has ended")
            text += part
        elif not os.read(ended, 1):
            raise EOFError("the room has ended")
        else:
            break
    with suppress(BlockingIOError):  # what still lies in the pipe
        while part := os.read(hear, _LONGEST):
            text += part if len(text) < _LONGEST else b""
    return text


def send(pipe: int, text: bytes) -> None:
    """A message after its length; whoever reads it takes no byte of the next one."""
    rest = memoryview(struct.pack("Q", len(text)) + text)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def receive(pipe: int) -> bytes:
    def exactly(size: int) -> bytes:
        text = bytearray()
        while len(text) < size:
            if not (part := os.read(pipe, min(size - len(text), 2**20))):
                raise EOFError("nobody asks any more")
            text += part
        return bytes(text)

    return exactly(struct.unpack("Q", exactly(8))[0])


def read(text: bytes) -> Verdict:
    """What a child says, reduced to a score or an error: it may be the model's own words."""
    try:
        said = json.loads(text)
        if "score" in said and isinstance(said["score"], float) and 0 <= said["score"] <= 1:
            return {"score": said["score"]}
        return {"error": str(said["error"])[:300]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"error": "no verdict: it ran too long, or ended"}


def main() -> int:
    room, binds = sys.argv[1], sys.argv[2:]
    sys.path[:] = [os.path.realpath(path) for path in sys.path]  # what is mounted
    # if memory ends, these processes are what the kernel takes
    Path("/proc/self/oom_score_adj").write_text("1000")
    was_root = leave()
    # PR_SET_PDEATHSIG: nothing here outlives the evaluation
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    (asked, ask), (hear, said), (ended, told) = os.pipe(), os.pipe(), os.pipe()
    # the first process of the new process namespace: with it, all others in it end
    child = os.fork()
    if child == 0:
        _libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        # the first process gets no signal from within but those that it handles
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for pipe in (ask, hear, ended):
            os.close(pipe)
        serve(asked, said, told, room, binds, was_root)
        return 0
    for pipe in (asked, said, told):
        os.close(pipe)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        found = verdicts(json.load(sys.stdin), ask, hear, ended)
    except (EOFError, BrokenPipeError):  # its own error says why
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
