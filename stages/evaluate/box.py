"""A room for model-written code: no network, no files but Python's own, no keys, few processes, little memory, little time.

Runs as `python -I box.py ROOM BINDS...` (it imports nothing of Pawl, which is not in the room), reads one job as JSON from its input and
writes the verdicts to its output. The steps: new namespaces (network, processes, mounts, and, for a user without rights, users); a
root of its own on memory, in which Python's folders are mounted read-only; and for every item one child with empty scratch folders of
its own, limits and no privileges, after which every process in the room is killed. Whatever of this cannot be had ends it before any
code is run. The room's first process keeps its privileges, so that no item's code can stop it or look into it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

_NEW_NS, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NOBODY = 65534
_SCRATCH = "/scratch"
_SHARED = "/dev/shm"
_READY = b"R"  # a child's first byte: it is disarmed
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """A function of the C library that must succeed."""
    if getattr(_libc, name)(*(part.encode() if isinstance(part, str) else part for part in arguments)) != 0:
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
    """Make `room` the root: an empty file system in memory, Python's folders read-only, three devices."""
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
            call("mount", "none", str(inside), None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV, None)
    for name in (_SCRATCH, _SHARED, "/old"):
        Path(room + name).mkdir(parents=True, exist_ok=True)
    os.chdir(room)
    call("syscall", _PIVOT_ROOT[os.uname().machine], ".", "old")
    os.chdir("/")
    call("umount2", "/old", 2)
    Path("/old").rmdir()
    call("mount", "none", "/", None, _REMOUNT | _RDONLY | _NOSUID | _NODEV, f"size={memory},mode=755")
    os.environ["TMPDIR"] = os.environ["HOME"] = _SCRATCH


def clear(memory: int) -> None:
    """Empty folders to write into, for this process and its children alone; they are gone when these are."""
    call("unshare", _NEW_NS)
    for name in (_SCRATCH, _SHARED):
        call("mount", "tmpfs", name, "tmpfs", _NOSUID | _NODEV, f"size={memory},mode=1777")
    os.chdir(_SCRATCH)


def disarm(was_root: bool, limits: dict[str, int]) -> None:
    """Limits, then no privileges: nothing here or in a child can get any back."""
    for name in ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE"):
        resource.setrlimit(getattr(resource, name), (limits[name], limits[name]))
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    for capability in range(64):
        _libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; fails for those that this kernel does not know
    if was_root:  # the kernel does not limit the processes of the real root
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, none)
    call("capget", header, none)
    if any(none):
        raise OSError("privileges are left")


def run(job: dict, was_root: bool) -> list[dict]:
    """The verdict of each item: {"score": ...} or {"error": ...}, one child after the other."""
    score = scorer(job["evaluator"])
    return [alone(score, item, job, was_root) for item in job["items"]]


def alone(score, item: dict, job: dict, was_root: bool) -> dict:
    """Score one item in a child of its own; at the end every process but this one, which is the room's first, is killed.

    Raises:
        OSError: the child could not be disarmed, so that it ran nothing.
    """
    reading, writing = os.pipe()
    seconds = job["seconds"]
    if os.fork() == 0:
        try:
            os.close(reading)
            try:
                clear(job["memory"])
                disarm(was_root, job["limits"])
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
                null = os.open("/dev/null", os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
            except BaseException as error:  # noqa: BLE001 - told by what is missing: the first byte
                os.write(writing, f" {error}".encode())
                return {}
            os.write(writing, _READY)
            try:
                verdict = {"score": float(score(item))}
            except BaseException as error:  # noqa: BLE001 - whatever model-written code raises
                verdict = {"error": f"{type(error).__name__}: {error}"[:300]}
            os.write(writing, json.dumps(verdict).encode())
        finally:
            os._exit(0)
    os.close(writing)
    if os.read(reading, 1) != _READY:
        raise OSError(f"an item's process could not be disarmed:{os.read(reading, 1000).decode(errors='replace')}")
    until, text = time.monotonic() + seconds, b""
    while (left := until - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, 65536)
        text += part
        if not part or len(text) > 65536:
            break
    os.close(reading)
    for _ in range(200):  # a fork bomb makes new ones while the old ones die
        try:
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)
        except (ChildProcessError, ProcessLookupError):
            break
    return read(text)


def read(text: bytes) -> dict:
    """What a child says, which may be the model's own words: a score or an error, and nothing else."""
    try:
        said = json.loads(text)
        if "score" in said and isinstance(said["score"], float) and 0 <= said["score"] <= 1:
            return {"score": said["score"]}
        return {"error": str(said["error"])[:300]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"error": "no verdict: it ran too long, or ended"}


# --- what is scored


def scorer(spec: dict):
    """A function that gives an item's score in [0, 1]; imports what it needs before any model-written code runs."""
    kind = spec["type"].rpartition(".")[2]
    if kind == "HumanEvalEvaluator":
        return human_eval
    sys.path.insert(0, "/lazy")
    importlib.import_module("lazy").quick_opencompass()
    module = importlib.import_module(spec["type"].rpartition(".")[0])
    if kind == "LCBCodeGenerationEvaluator":
        extract = importlib.import_module("opencompass.datasets.livecodebench.extract_utils").extract_code_generation
        return lambda item: lcb(module, extract, item, spec.get("timeout", 6))
    evaluator = getattr(module, kind)(**{key: value for key, value in spec.items() if key != "type"})

    def score(item: dict) -> float:
        result = evaluator.score(predictions=[item["prediction"]], references=[item["reference"]])
        return float(result["details"]["0"]["is_correct"])

    return score


def human_eval(item: dict) -> float:
    """1.0 where the function passes the problem's tests (Chen et al. 2021, section 2.1): prompt, completion and test as one program."""
    row = item["row"]
    program = f"{row['prompt']}{item['prediction']}\n{row['test']}\ncheck({row['entry_point']})"
    exec(compile(program, "program", "exec"), {"__name__": "program"})  # noqa: S102 - what this room is for
    return 1.0


def lcb(module, extract, item: dict, timeout: float) -> float:
    sample = [{"input_output": item["row"]["evaluation_sample"]}]
    metrics = module.codegen_metrics(sample, [[extract(item["prediction"])]], k_list=[1], num_process_evaluate=1, timeout=timeout)
    return float(metrics[0]["pass@1"]) / 100


def main() -> int:
    room, binds = sys.argv[1], sys.argv[2:]
    sys.path[:] = [os.path.realpath(path) for path in sys.path]  # what is mounted
    job = json.load(sys.stdin)
    Path("/proc/self/oom_score_adj").write_text("1000")  # where memory ends, these processes are what the kernel takes
    was_root = leave()
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: nothing here outlives the evaluation
    child = os.fork()  # the first process of the new process namespace: with it, all others in it end
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process gets no signal from within but those that it handles
    furnish(room, binds, job["memory"])
    clear(job["memory"])  # what an evaluator's imports want to write; no item sees it
    sys.stdout.write(json.dumps(run(job, was_root)))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
