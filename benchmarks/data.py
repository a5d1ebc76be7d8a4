"""Measure the data stage: requests a second to a teacher, and the search for a million rows in
20,000 items.

python benchmarks/data.py                          all of it ('make bench-data')
python benchmarks/data.py --only teacher           a bare aiohttp loop, Pawl's teacher, distilabel
1.5.3 python benchmarks/data.py --only decontaminate     recall, false positives, time and memory

The server answers after 200 ms, 256 requests are in flight (1,280 a second at most), and runs on
the same machine. distilabel runs in an environment of its own, .pawl/bench/distilabel. Figures are
printed and written to reports/benchmarks/data.json, each part with the load of the machine before:
other work on it slows every part, though not equally.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rows as synthetic  # noqa: E402 - needs the path above
from stages.common.replies import Replies  # noqa: E402
from stages.common.schema import LLM  # noqa: E402
from stages.generate_data.recipes import divided, prompt  # noqa: E402
from stages.generate_data.teacher import Budget, Teacher  # noqa: E402

IN_FLIGHT = 256
SCRATCH = ROOT / ".pawl" / "bench"
DISTILABEL = """
import json, sys, time
from distilabel.models import OpenAILLM
from distilabel.pipeline import Pipeline
from distilabel.steps import LoadDataFromDicts
from distilabel.steps.tasks import TextGeneration

if __name__ == "__main__":
    url, count = sys.argv[1], int(sys.argv[2])
    begun = time.monotonic()
    with Pipeline(name=f"bench-{time.time_ns()}") as pipeline:
        load = LoadDataFromDicts(data=[{"instruction": f"What is {n} + {n + 1}?"} for n in range(count)], batch_size=256)
        llm = OpenAILLM(model="bench", base_url=url, api_key="none", generation_kwargs={"max_new_tokens": 256})
        load >> TextGeneration(llm=llm, input_batch_size=256)
    rows = pipeline.run(use_cache=False)["default"]["train"]
    assert len(rows) == count and all(rows["generation"]), "rows are missing"
    print(json.dumps({"seconds": time.monotonic() - begun}))
"""


@contextmanager
def server() -> Iterator[str]:
    argv = [sys.executable, str(ROOT / "benchmarks" / "server.py"), "--delay-s", "0.2"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdin
        yield process.stdout.readline().strip()
        process.stdin.close()


def messages(number: int) -> list[dict[str, str]]:
    return prompt("answer", question=f"What is {number} + {number + 1}?")


async def bare(url: str, count: int) -> None:
    """As little as an asynchronous client can do: no cache, no retries, no budget."""
    import aiohttp

    numbers, answered = iter(range(count)), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:

        async def worker() -> None:
            nonlocal answered
            for number in numbers:
                body = {"model": "bench", "messages": messages(number), "max_tokens": 256}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    answered += bool((await response.json())["choices"][0]["message"]["content"])

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    assert answered == count


def ours(url: str, count: int) -> None:
    """Everything on: cache on disk, retries, budget, order; the replies are parsed too."""
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH) as folder,
        Replies(Path(folder) / "replies.sqlite") as replies,
    ):
        llm = LLM(
            base_url=url,
            model="bench",
            concurrency=IN_FLIGHT,
            max_output_tokens=256,
            timeout_s=30,
            price_out=1.0,
        )
        with Teacher(llm, replies, Budget(max_tokens=10**9, max_cost=1e9)) as teacher:
            answers = list(
                teacher.answers((number, messages(number), 0) for number in range(count))
            )
        assert [number for number, _ in answers] == list(range(count))
        assert all(divided(reply.text) for _, reply in answers)


def distilabel(url: str, count: int) -> float:
    """Seconds of a pipeline of distilabel 1.5.3, start-up of its processes included, imports
    not.
    """
    environment = SCRATCH / "distilabel"
    python = environment / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
        subprocess.run([uv, "venv", "-q", "--python", "3.11", str(environment)], check=True)
        subprocess.run(
            [
                uv,
                "pip",
                "install",
                "-q",
                "--python",
                str(python),
                "distilabel[openai]==1.5.3",
                "requests",
            ],
            check=True,
        )  # it imports that without saying so
    script = SCRATCH / "distilabel_run.py"
    script.write_text(DISTILABEL, encoding="utf-8")
    done = subprocess.run(
        [str(python), str(script), url, str(count)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"distilabel failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def bench_teacher(count: int, peer_count: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    with server() as url:
        for _ in range(3):  # by turns, so that other work on the machine meets both
            for name, run in (
                ("bare", lambda: asyncio.run(bare(url, count))),
                ("ours", lambda: ours(url, count)),
            ):
                begun = time.monotonic()
                run()
                rates[name].append(count / (time.monotonic() - begun))
        middle = {name: statistics.median(values) for name, values in rates.items()}
        print(f"bare aiohttp loop   {middle['bare']:7.0f} requests/s (median of 3)")
        print(
            f"pawl's teacher      {middle['ours']:7.0f} requests/s  "
            f" {middle['ours'] / middle['bare']:.2f} of the bare loop (wanted: 0.85)",
            flush=True,
        )
        peer = peer_count / distilabel(url, peer_count)
    print(
        f"distilabel 1.5.3    {peer:7.0f} requests/s   ours is {middle['ours'] / peer:.1f} times"
        " that (wanted: 5)"
    )
    return {
        "requests": count,
        "in_flight": IN_FLIGHT,
        "delay_s": 0.2,
        "runs": rates,
        "bare": middle["bare"],
        "ours": middle["ours"],
        "distilabel": peer,
        "distilabel_requests": peer_count,
        "ours_to_bare": middle["ours"] / middle["bare"],
        "ours_to_distilabel": middle["ours"] / peer,
    }


def bench_decontaminate(rows: int, items: int) -> dict[str, Any]:
    folder = SCRATCH / "rows"
    planted = set(synthetic.write(folder, rows, items, 1000))
    argv = [
        sys.executable,
        "-m",
        "stages.generate_data",
        "decontaminate",
        "--train",
        f"{folder}/rows.jsonl",
    ]
    begun = time.monotonic()
    with open(folder / "found.json", "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*argv, "--items", f"bench:test={folder}/items.jsonl"], cwd=ROOT, stdout=out
        )
        peak = _watch(process)
    seconds = time.monotonic() - begun
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    hit = {one["row"] for one in found["contaminated"]}
    assert process.returncode == 1 and found["rows"] == rows
    recall, false = len(hit & planted) / len(planted), len(hit - planted) / (rows - len(planted))
    print(
        f"{rows:,} rows, {items:,} items: {seconds:.0f} s (wanted: 300), {peak:.2f} GiB with all"
        " processes"
    )
    print(
        f"recall of planted 13-grams {recall:.2%} (wanted: 100 %), false positives {false:.1e}"
        " (wanted: 1e-4)"
    )
    shutil.rmtree(folder)
    return {
        "rows": rows,
        "items": items,
        "seconds": seconds,
        "peak_memory_gib": peak,
        "recall": recall,
        "false_positives": false,
    }


def _watch(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; the most memory that it and its children held at once (proportional set
    size), in GiB.
    """
    import psutil

    peak = 0.0
    done = threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.5):
            total = 0
            for one in _family(process.pid):
                try:
                    total += psutil.Process(one).memory_full_info().pss
                except psutil.Error:
                    continue
            peak = max(peak, total / 2**30)

    thread = threading.Thread(target=look)
    thread.start()
    process.wait()
    done.set()
    thread.join()
    return peak


def _family(pid: int) -> list[int]:
    import psutil

    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("teacher", "decontaminate"))
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument(
        "--peer-requests",
        type=int,
        default=10_000,
        help="for distilabel, which takes about a minute for 10,000",
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=20_000)
    args = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    target = ROOT / "reports" / "benchmarks" / "data.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    # processes that ran or wanted to, mean of the last minute
    load = {"load_before": round(os.getloadavg()[0], 2)}
    found["machine"] = f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    if args.only != "decontaminate":
        found["teacher"] = bench_teacher(args.requests, args.peer_requests) | load
    if args.only != "teacher":
        found["decontamination"] = bench_decontaminate(args.rows, args.items) | load
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
