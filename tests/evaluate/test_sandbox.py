"""Model-written code is run in a room that it cannot look, reach or grow out of, and cannot spoil
for the next item.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stages.common.doctor import missing
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.evaluate import sandbox

ROW = {"prompt": "def f(x):\n", "test": "def check(c):\n    assert c(2) == 4\n", "entry_point": "f"}
RIGHT = "    return x * 2"
SPEAK = """    import os
    for number in range(3, 100):
        try: os.write(number, {})
        except OSError: pass
    os._exit(0)"""
SOCKETS = (
    "    import socket; [socket.socket(family) for family in (1, 2, 10)]; socket.socketpair();"
    " return x * 2"
)
STOP = (
    "    import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(0.5); return 4"
)
PEER = "    import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0; return 5"
SAY = "    import os, sys; raise Exception({})"
CALL = """    import ctypes, os
    number = {{'x86_64': {}, 'aarch64': {}}}[os.uname().machine]
    result = ctypes.CDLL(None).syscall(number, {})
    if result == 0: os._exit(0)
    assert result > 0
    return 4"""
OTHERS = """    import gc, sys
    frame, texts = sys._getframe(), []
    while frame:
        texts.append(repr(frame.f_locals))
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, (dict, list, tuple)):
            texts += [part for part in (thing.values() if isinstance(thing, dict) else thing) if isinstance(part, (str, bytes))]
    raise Exception(sum(repr(text).count('-'.join(('marker', '17'))) for text in texts))"""
ATTACKS = {
    "the network": (
        "    import socket; socket.create_connection(('127.0.0.1', {port}), 2); return 4"
    ),
    "a name server": "    import socket; socket.getaddrinfo('example.org', 80); return 4",
    "writing where Python lies": "    open('/usr/x', 'w').write('x'); return 4",
    "writing into the root": "    open('/x', 'w').write('x'); return 4",
    "a large file": (
        "    f = open('/scratch/a', 'wb')\n    for _ in range(500): f.write(b'0' * 2**20)\n   "
        " return 4"
    ),
    "memory": "    a = bytearray(8 * 2**30); return 4",
    "a fork bomb": "    import os\n    while True: os.fork()",
    "threads without end": (
        "    import threading, time\n    while True: threading.Thread(target=time.sleep,"
        " args=(60,)).start()"
    ),
    "time": "    while True: pass",
    "sleep": "    import time; time.sleep(600)",
    "leaving": "    import os; os._exit(0)",
    "a mount": (
        "    import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/usr', b'tmpfs', 0, None) =="
        " 0; return 4"
    ),
    "becoming root": "    import os; os.setuid(0); os.listdir('/proc'); return 4",
    "a user namespace": (
        "    import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0; return 4"
    ),
    "a user namespace by clone": CALL.format(56, 220, "0x10000011, 0, 0, 0, 0"),
    "a network namespace of its own": (
        "    import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0; return 4"
    ),
    "shared memory that outlives it": (
        "    import ctypes; assert ctypes.CDLL(None).shmget(7, 2**20, 0o1666) >= 0; return 4"
    ),
    "a message queue that outlives it": (
        "    import ctypes; assert ctypes.CDLL(None).msgget(7, 0o1666) >= 0; return 4"
    ),
    "memory that no limit counts": "    import os; os.memfd_create('x'); return 4",
    "a socket to the machine's host": "    import socket; socket.socket(40, 1); return 4",
    "a socket to the kernel": "    import socket; socket.socket(16, 3); return 4",
    "a key in the kernel's ring": CALL.format(248, 217, "b'user', b'pawl', b'x', 1, -4"),
    "stopping the room": STOP.replace("return 4", "return 5"),
    "looking into the room's first process": PEER,
    "a verdict that nests without end": SPEAK.format("b'[' * 60000"),
    "a verdict that is no number": SPEAK.format("""b'{"error": 1, "score": "abc"}'"""),
    "a score above all": SPEAK.format("""b'{"score": 99.0}'"""),
}
LEAVE = """    import os
    for folder in ('/scratch', '/dev/shm'):
        os.makedirs(folder + '/a/b')
        open(folder + '/a/b/c', 'wb').write(b'0' * 2**20)
        os.chmod(folder + '/a/b', 0)
        os.chmod(folder + '/a', 0)
    return 4"""
FOUND = SAY.format("repr([os.listdir('/scratch'), os.listdir('/dev/shm')])")


def item(code: str) -> dict:
    return {"prediction": code, "reference": "", "row": ROW}


@pytest.fixture(scope="module", autouse=True)
def room() -> None:
    if reason := missing().get("sandbox"):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this file's rooms are built: another run of these tests has its own."""
    return tmp_path_factory.mktemp("rooms")


@pytest.fixture(scope="module")
def verdicts(room: None, rooms: Path) -> dict[str, dict]:
    """One room for all attacks, a right answer before, between and after them."""
    os.environ["PAWL_TEST_SECRET"] = "sk-very-secret"
    import socket

    with (
        socket.socket() as listening,
        tempfile.NamedTemporaryFile(dir=ROOT, suffix=".secret") as private,
    ):
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        codes = {
            name: code.replace("{port}", str(listening.getsockname()[1]))
            for name, code in ATTACKS.items()
        }
        codes["seen"] = SAY.format(
            "repr([dict(os.environ), os.listdir('/'), [os.path.exists(p) for p in"
            f" ({str(ROOT / 'params.yaml')!r}, {private.name!r}, '/etc/passwd', '/proc/1',"
            " '/root/.ssh', '/home')]])"
        )
        asked: list[tuple[str, str]] = [
            ("right before", RIGHT + "  # marker-17"),
            ("right with sockets of its own", SOCKETS),
            ("looking for others", OTHERS),
            ("leaving something behind", LEAVE),
            ("found", FOUND),
        ]
        for name, code in codes.items():
            asked += [(name, code), (f"right after {name}", RIGHT)]
        asked.append(("right at the end", RIGHT + "  # marker-17"))
        begun = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(rooms))
            found = sandbox.run(
                {"type": "x.HumanEvalEvaluator"}, [item(code) for _, code in asked], seconds=1.5
            )
        assert time.monotonic() - begun < 60
    del os.environ["PAWL_TEST_SECRET"]
    return dict(zip((name for name, _ in asked), found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_a_wrong_answer_and_the_next_item_is_scored_as_ever(
    attack: str, verdicts: dict[str, dict]
) -> None:
    assert "error" in verdicts[attack], verdicts[attack]
    assert verdicts[f"right after {attack}"] == {"score": 1.0}


def test_right_is_right(verdicts: dict[str, dict]) -> None:
    assert verdicts["right before"] == verdicts["right with sockets of its own"] == {"score": 1.0}


def test_an_item_leaves_nothing_for_the_next_one(verdicts: dict[str, dict]) -> None:
    assert verdicts["leaving something behind"] == {"score": 1.0} and verdicts["found"] == {
        "error": "Exception: [[], []]"
    }


def test_an_item_finds_no_other_item_in_its_process(verdicts: dict[str, dict]) -> None:
    assert verdicts["right at the end"] == {"score": 1.0} and verdicts["looking for others"] == {
        "error": "Exception: 0"
    }


def test_neither_keys_nor_the_repository_nor_the_machines_files_are_there(
    verdicts: dict[str, dict],
) -> None:
    seen = verdicts["seen"]["error"]
    assert "sk-very-secret" not in seen and "PAWL" not in seen
    assert seen.endswith("[False, False, False, False, False, False]]"), seen


def test_nothing_outlives_the_room(verdicts: dict[str, dict], rooms: Path) -> None:
    mine = str(rooms).encode()  # a room of another worker's tests may be open now
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            assert mine not in process.read_bytes()
    assert not list(rooms.iterdir())


def test_where_there_is_no_room_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "binds", lambda folder: ["/no/such/folder"])
    mark = tmp_path / "ran"
    with pytest.raises(PawlError, match="none was run"):
        sandbox.run({"type": "x.HumanEvalEvaluator"}, [item(f"    open({str(mark)!r}, 'w')")])
    assert not mark.exists()


def test_a_user_without_rights_gets_the_same_room(need: Callable[[str], None]) -> None:
    """As nobody, through a user namespace: with the system's Python, since ours may lie where
    nobody may look.
    """
    need("mount")  # only root can be somebody else
    need("sandbox_as_nobody")
    python = shutil.which("python3", path="/usr/bin:/bin")
    assert python
    import json

    room = Path(tempfile.mkdtemp(prefix="room-", dir="/tmp"))
    room.chmod(0o777)
    box = room.with_suffix(".py")
    box.write_bytes((ROOT / "stages/evaluate/box.py").read_bytes())
    box.chmod(0o644)
    codes = [
        RIGHT,
        ATTACKS["a fork bomb"],
        ATTACKS["writing into the root"],
        RIGHT,
        SAY.format("repr([os.getuid(), os.listdir('/')])"),
    ]
    codes += [
        STOP,
        PEER,
        LEAVE,
        FOUND,
        RIGHT,
        ATTACKS["a user namespace"],
        ATTACKS["shared memory that outlives it"],
    ]
    job = {
        "evaluator": {"type": "x.HumanEvalEvaluator"},
        "items": [item(code) for code in codes],
        "seconds": 2,
        "memory": 2**24,
    }
    lazy = room.with_suffix(".lazy")
    lazy.mkdir()
    (lazy / "programs.py").write_bytes((ROOT / "stages/evaluate/programs.py").read_bytes())
    lazy.chmod(0o755), (lazy / "programs.py").chmod(0o644)
    binds = [
        *(path for path in ("/usr", "/bin", "/lib", "/lib64") if os.path.lexists(path)),
        f"{lazy}=/lazy",
    ]
    done = subprocess.run(
        [python, "-I", str(box), str(room), *binds],
        input=json.dumps(job | {"limits": sandbox.LIMITS}),
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
        env={},
        cwd="/",
        timeout=60,
    )
    box.unlink()
    shutil.rmtree(lazy)
    room.rmdir()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    scores = [
        1.0,
        None,
        None,
        1.0,
        None,
        1.0,
        None,
        1.0,
        None,
        1.0,
        None,
        None,
    ]  # a signal to the first process goes nowhere
    assert [verdict.get("score") for verdict in found] == scores and "[0, [" in found[4]["error"]
    assert found[8]["error"] == "Exception: [[], []]"


@pytest.mark.e2e
def test_opencompass_scores_mbpp_in_the_room() -> None:
    def mbpp(code: str) -> dict:
        return {
            "prediction": f"```python\n{code}\n```",
            "reference": "assert f(2) == 4",
            "row": None,
        }

    spec = {"type": "opencompass.datasets.mbpp.MBPPEvaluator"}
    found = sandbox.run(
        spec,
        [
            mbpp("def f(x):\n    return 2 * x"),
            mbpp("def f(x):\n    return x"),
            mbpp("import socket\nf = socket"),
        ],
    )
    assert [verdict.get("score") for verdict in found] == [1.0, 0.0, 0.0]
