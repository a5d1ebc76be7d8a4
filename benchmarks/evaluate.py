"""How long an evaluation takes here and through OpenCompass's own command line: paired, on the same
items, model and server.

python -m benchmarks.evaluate [--pairs 3] [--full-pairs 1] [--items 200]      (make bench-eval)

1. fifty short questions, the model served already
2. the four evaluations of the embedded default: three servers against four `opencompass` runs that
start a server each

Both sides use the same server program and the same number of requests in flight, and go first by
turns; the verdicts must be the same, item by item. Needs a finished run of the default in this
working tree (models/, data/benchmark), and a machine that does nothing else. Writes
reports/benchmarks/evaluate.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stages.common.files import ROOT, read_json, read_jsonl, write_json, write_jsonl
from stages.common.reports.evaluation import Answer, read_rows
from stages.evaluate.serve import adapter as adapters
from stages.evaluate.serve.server import free_port

TASKS = ("chain_sum", "word_sequence_reversal")
CONFIG = """
from opencompass.datasets.custom import CustomDataset
from opencompass.models import OpenAISDK
from opencompass.openicl.icl_evaluator import AccwithDetailsEvaluator
from opencompass.openicl.icl_inferencer import GenInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate
from opencompass.openicl.icl_retriever import ZeroRetriever

datasets = [
    dict(
        abbr=name, type=CustomDataset, path=path, reader_cfg=dict(input_columns=['question'], output_column='answer'),
        infer_cfg=dict(
            prompt_template=dict(type=PromptTemplate, template=dict(round=[dict(role='HUMAN', prompt='{{question}}')])),
            retriever=dict(type=ZeroRetriever), inferencer=dict(type=GenInferencer),
        ),
        eval_cfg=dict(evaluator=dict(type=AccwithDetailsEvaluator), pred_postprocessor=dict(type='bench_strip.strip')),
    )
    for name, path in {files!r}.items()
]
models = [
    dict(
        type=OpenAISDK, abbr='model', path={model!r}, key='EMPTY', openai_api_base={url!r}, tokenizer_path={base!r}, query_per_second=10000,
        batch_size=64, max_workers=64, max_out_len=32, max_seq_len=1024, temperature=0, retry=2,
        meta_template=dict(round=[dict(role='HUMAN', api_role='HUMAN'), dict(role='BOT', api_role='BOT', generate=True)]),
    )
]
work_dir = {work!r}
"""
STRIP = "def strip(text):\n    return text.strip()\n"
"""What the default declares for its tasks' answers before they are compared; OpenCompass finds it
by its path.
"""


@contextlib.contextmanager
def served(folder: Path, model: Path, log: str) -> Iterator[str]:
    """A server of this model alone; its URL."""
    port = free_port()
    argv = [
        sys.executable,
        "-m",
        "stages.evaluate.serve.batching",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--device",
        "cpu",
    ]
    with open(folder / log, "wb") as out:
        server = subprocess.Popen(
            [*argv, "--max-model-len", "1024", "--model", str(model)],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)},
        )
    try:
        while subprocess.run(
            ["curl", "-sf", f"http://127.0.0.1:{port}/health"], capture_output=True
        ).returncode:
            assert server.poll() is None, (folder / log).read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def opencompass(folder: Path, url: str, model: Path, files: dict[str, str]) -> dict[str, Any]:
    """One run of the command; prediction and verdict of every item, by task and place."""
    work = folder / "opencompass"
    shutil.rmtree(work, ignore_errors=True)
    base = str(ROOT / "models/base")
    (folder / "bench_config.py").write_text(
        CONFIG.format(files=files, model=str(model), url=url, base=base, work=str(work))
    )
    (folder / "bench_strip.py").write_text(STRIP)
    command = Path(sys.executable).with_name("opencompass")
    done = subprocess.run(
        [str(command), str(folder / "bench_config.py"), "--dump-eval-details"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)},
    )
    found: dict[str, Any] = {}
    for name in files:
        [path] = work.glob(f"*/predictions/model/{name}.json")
        predictions = json.loads(path.read_text())
        [path] = work.glob(f"*/results/model/{name}.json")
        details = json.loads(path.read_text())["details"]
        details = list(details.values()) if isinstance(details, dict) else details
        said = [predictions[str(number)]["prediction"] for number in range(len(predictions))]
        found[name] = [
            (text, bool(_first(detail["is_correct"])))
            for text, detail in zip(said, details, strict=True)
        ]
    assert done.returncode == 0, done.stderr[-2000:]
    return found


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def workspace(folder: Path, items: int) -> Path:
    """A working tree with this code, this run's models and the first items of each benchmark."""
    root = folder / "pawl"
    shutil.copytree(ROOT / "stages", root / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "conf", root / "conf")
    (root / "models").symlink_to((ROOT / "models").resolve())
    for split in ("val", "test"):
        for name in TASKS:
            rows = list(read_jsonl(ROOT / f"data/benchmark/{split}/{name}.jsonl"))[:items]
            write_jsonl(root / f"data/benchmark/{split}/{name}.jsonl", rows)
    return root


def pawl(root: Path, *arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"} | {
        "PYTHONPATH": ""
    }
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=root, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


def rows_of(root: Path, where: str) -> dict[str, list[tuple[str, bool]]]:
    rows = read_rows(root / "reports" / where, Answer)
    return {
        name: [(row.prediction, row.correct) for row in rows if row.benchmark == name]
        for name in TASKS
    }


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, int]:
    pairs = [pair for name in ours for pair in zip(ours[name], theirs[name], strict=True)]
    return {
        "items": len(pairs),
        "other_answers": sum(one[0].strip() != other[0].strip() for one, other in pairs),
        "other_verdicts": sum(one[1] != other[1] for one, other in pairs),
    }


def fifty(folder: Path, pairs: int) -> dict[str, Any]:
    """Fifty questions, served already: imports, requests and scores, from the start of the command
    to its end.
    """
    root = workspace(folder / "fifty", 25)
    model = ROOT / "models/base"
    files = {name: str(root / f"data/benchmark/val/{name}.jsonl") for name in TASKS}
    settings = ["engine=external", "engine.api_key_env=''", f"engine.served_model={model}"]
    with served(folder, model, "fifty.log") as url:
        pawl(root, "stages.common.config", f"engine.base_url={url}", *settings)

        def we() -> None:
            pawl(root, "stages.evaluate", "--base", "--split", "val")

        def they() -> dict[str, Any]:
            return opencompass(folder, url, model, files)

        we()  # a server's first requests are slower
        return paired(
            pairs, we, they, lambda found: compare(rows_of(root, "baseline/val.jsonl"), found)
        )


def four(folder: Path, pairs: int, items: int) -> dict[str, Any]:
    """Base and fine-tuned, validation and test: servers' starts included on both sides; the merged
    model is there on both.
    """
    root = workspace(folder / "four", items)
    pawl(root, "stages.common.config", "engine=transformers")
    base, adapter = ROOT / "models/base", ROOT / "models/adapter"
    weights = read_json(ROOT / "models/base.json")["weights_sha256"]
    places = {
        ("baseline", "val"): "baseline/val.jsonl",
        ("baseline", "test"): "baseline/test.jsonl",
        ("tuned", "val"): "eval_val/val.jsonl",
        ("tuned", "test"): "eval_test/test.jsonl",
    }
    with adapters.merged(
        base.resolve(), adapter, weights, folder / "merge.log", lambda: None
    ) as merged:
        shutil.copytree(merged.parent, root / ".pawl/merged", dirs_exist_ok=True)

        def we() -> None:
            pawl(root, "stages.evaluate", "--base", "--split", "val", "--split", "test")
            pawl(root, "stages.evaluate", "--split", "val")
            pawl(root, "stages.evaluate", "--split", "test")

        def they() -> dict[Any, Any]:
            found = {}
            for (name, split), model in zip(places, (base, base, merged, merged), strict=True):
                with served(folder, model, "four.log") as url:
                    files = {
                        task: str(root / f"data/benchmark/{split}/{task}.jsonl") for task in TASKS
                    }
                    found[name, split] = opencompass(folder, url, model, files)
            return found

        def same(found: dict[Any, Any]) -> dict[str, int]:
            parts = [compare(rows_of(root, place), found[key]) for key, place in places.items()]
            return {key: sum(part[key] for part in parts) for key in parts[0]}

        return paired(pairs, we, they, same)


def paired(
    pairs: int,
    we: Callable[[], None],
    they: Callable[[], Any],
    same: Callable[[Any], dict[str, int]],
) -> dict[str, Any]:
    """Seconds of both sides, which go first by turns, and whether they say the same of every
    item.
    """
    ours: list[float] = []
    theirs: list[float] = []
    load = round(os.getloadavg()[0], 2)
    found = None
    for pair in range(pairs):
        for side in ("theirs", "ours") if pair % 2 == 0 else ("ours", "theirs"):
            begun = time.monotonic()
            if side == "ours":
                we()
                ours.append(time.monotonic() - begun)
            else:
                found = they()
                theirs.append(time.monotonic() - begun)
    return _figures(ours, theirs, same(found)) | {
        "pairs": pairs,
        "load_before": load,
        "cores": os.cpu_count(),
    }


def _figures(ours: list[float], theirs: list[float], same: dict[str, int]) -> dict[str, Any]:
    ratios = [other / one for one, other in zip(ours, theirs, strict=True)]
    return {
        "pawl_median_s": round(statistics.median(ours), 1),
        "opencompass_median_s": round(statistics.median(theirs), 1),
        "pawl_s": [round(value, 1) for value in ours],
        "opencompass_s": [round(value, 1) for value in theirs],
        "median_ratio": round(statistics.median(ratios), 2),
        "ratios": [round(value, 2) for value in ratios],
        **same,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluate", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--full-pairs", type=int, default=1)
    parser.add_argument(
        "--items", type=int, default=200, help="items of each benchmark in the four evaluations"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmarks/evaluate.json")
    args = parser.parse_args()
    found: dict[str, Any] = read_json(args.out) if args.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="pawl-bench-") as name:
        folder = Path(name)
        if args.pairs:
            found["fifty_questions_served_already"] = fifty(folder, args.pairs)
            print(json.dumps(found["fifty_questions_served_already"]), flush=True)
            write_json(args.out, found)
        if args.full_pairs:
            found["four_evaluations_of_the_default"] = four(folder, args.full_pairs, args.items)
            print(json.dumps(found["four_evaluations_of_the_default"]), flush=True)
            write_json(args.out, found)
    slow = [
        name
        for name, wanted in (
            ("fifty_questions_served_already", 4),
            ("four_evaluations_of_the_default", 2),
        )
        if name in found and found[name]["median_ratio"] < wanted
    ]
    wrong = [name for name, part in found.items() if part["other_verdicts"]]
    print(
        f"slower than promised: {', '.join(slow) or 'nothing'}; other verdicts:"
        f" {', '.join(wrong) or 'none'}"
    )
    return 1 if slow or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
