"""`kill -9` in the middle of 2,000 requests costs none that was answered; memory stays flat; the
command line searches on its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.common.files import ROOT, write_jsonl
from stages.common.replies import _BATCH
from tests.fake_server import FakeServer

pytestmark = pytest.mark.e2e

REQUESTS, IN_FLIGHT = 2000, 32
STAGE = """
import sys
from pathlib import Path
from stages.common.schema import LLM, Data, Source
from stages.common.schema.data import Teacher
from stages.generate_data.__main__ import make

root, url = Path(sys.argv[1]), sys.argv[2]
strong = LLM(base_url=url, model="fake", concurrency=32, timeout_s=30)
source = Source(kind="file", path=str(root / "rows.jsonl"), recipe="answer")
data = Data(
    name="d", seed=1, sources={"mine": source}, teacher=Teacher(strong=strong), max_rows=0, ngram=13, max_contamination=0.1,
    max_bad_fraction=0.1,
)
make(data, 1000, lambda conversations: [len(c) for c in conversations], root, root)
"""


def answer(body: dict[str, object]) -> str:
    time.sleep(0.02)
    return f"Because.\nAnswer: {len(str(body['messages']))}"


def prepared(root: Path) -> Path:
    for split in ("val", "test"):
        item = {
            "item_id": split,
            "benchmark": "b",
            "question": f"What is secret {split}?",
            "answer": "x",
            "category": "",
        }
        write_jsonl(root / "data" / "benchmark" / split / "b.jsonl", [item])
    write_jsonl(
        root / "rows.jsonl",
        ({"question": f"Question number {number} of many"} for number in range(REQUESTS)),
    )
    return root


def start(root: Path, url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", STAGE, str(root), url], cwd=ROOT)


def results(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for part in ("data/train", "reports")
        for path in sorted((root / part).iterdir())
    }


def test_a_killed_run_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    root = prepared(tmp_path)
    with FakeServer(answer) as server:
        assert start(root, server.url).wait(120) == 0
        assert server.requests == REQUESTS
    undisturbed = results(root)
    for name in ("data/train", "reports", ".pawl"):
        shutil.rmtree(root / name)
    with FakeServer(answer) as server:
        for part in (1, 2):
            process = start(root, server.url)
            while server.requests < part * REQUESTS // 3:
                assert process.poll() is None
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert not (root / "data" / "train").exists()
        assert start(root, server.url).wait(120) == 0
        again = server.requests - REQUESTS
    lost = IN_FLIGHT + 2 * _BATCH
    assert 0 <= again <= 2 * lost, (
        "only what was in flight or on its way to the disk at a kill is asked again"
    )
    assert results(root) == undisturbed


def test_the_search_on_its_own_says_what_it_found_and_nothing_of_the_items(tmp_path: Path) -> None:
    item = {
        "question": (
            "Which river runs past the oldest lighthouse of the northern coast and into which sea"
            " does it flow?"
        ),
        "answer": "None",
    }
    write_jsonl(tmp_path / "items.jsonl", [item])
    rows = [
        {"question": "hello", "answer": "world"},
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": f"An exam: {item['question']}"},
            ]
        },
        {"instruction": "Answer.", "input": item["question"], "output": "y"},
        {"instruction": item["question"], "input": "", "output": "y"},
        {"text": f"It was dark. {item['question']} Nobody knew."},
    ]

    def search(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stages.generate_data", "decontaminate", *argv]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    write_jsonl(tmp_path / "rows.jsonl", rows)
    items = f"rivers:test={tmp_path}/items.jsonl"
    done = search("--train", f"{tmp_path}/rows.jsonl", "--items", items)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 5
    assert [
        (one["row"], one["benchmark"], one["split"], one["match"]) for one in found["contaminated"]
    ] == [
        (1, "rivers", "test", "ngram"),
        (2, "rivers", "test", "ngram"),
        (3, "rivers", "test", "exact"),
        (4, "rivers", "test", "ngram"),
    ]
    assert "lighthouse" not in done.stdout + done.stderr
    write_jsonl(tmp_path / "clean.jsonl", rows[:1])
    clean = search("--train", f"{tmp_path}/clean.jsonl", "--items", items)
    assert clean.returncode == 0 and json.loads(clean.stdout) == {"rows": 1, "contaminated": []}
    (tmp_path / "broken.jsonl").write_text('{"question": "a", "answer": "b"}\n{"que')
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "other.jsonl").write_text('{"a text of another kind": 1}\n')
    assert search("--train", f"{tmp_path}/other.jsonl", "--items", items).returncode == 0, (
        "every string of a row is searched, whatever its key"
    )
    for train, given in (
        ("broken.jsonl", items),
        ("missing.jsonl", items),
        ("empty.jsonl", items),
        ("rows.jsonl", "no split"),
        ("rows.jsonl", f"a:b={tmp_path}/no"),
    ):
        bad = search("--train", f"{tmp_path}/{train}", "--items", given)
        assert bad.returncode == 3 and not bad.stdout and "error" in bad.stderr, (train, given)
        assert "Traceback" not in bad.stderr


@pytest.mark.parametrize("part", ["all", "train"])
def test_memory_does_not_grow_with_the_rows(part: str, tmp_path: Path) -> None:
    program = STAGE.replace('recipe="answer"', f'part="{part}"').replace(
        "max_rows=0", "max_rows=0, near_duplicates=0.9, filters=FILTERS"
    )
    program = program.replace(
        "import sys\n",
        'import resource, sys\nFILTERS = ["duplicates", "near_duplicates", "decontamination",'
        ' "too_long"]\n',
    )
    program += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    peaks = []
    for count in (20_000, 100_000):
        root = prepared(tmp_path / str(count))
        write_jsonl(
            root / "rows.jsonl",
            (
                {
                    "question": f"row {n} {n * 7919 % 9973} {n * 104729 % 99991} ?",
                    "answer": f"{n} " * 40,
                }
                for n in range(count)
            ),
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(root), ""],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        peaks.append(int(done.stdout.split()[-1]))
    assert (peaks[1] - peaks[0]) / 80_000 * 1_000_000 < 700, (
        f"MiB at {peaks}: a million rows would not fit into 1 GiB"
    )
