"""Ask a model all benchmark items, score the answers with OpenCompass, write one row an item.

python -m stages.evaluate --split val                       the fine-tuned model: reports/eval_val
python -m stages.evaluate --split val --split test --base   the base model: reports/baseline
python -m stages.evaluate --noise                           validation twice: reports/noise

The last one counts how many verdicts change between two evaluations of the same weights.

Nothing is written unless every item was answered and the rows reproduce OpenCompass's own score.
A run that was stopped goes on with the items that are missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from stages.common import items
from stages.common.config import load_params
from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, sha256_file
from stages.common.keys import tracked
from stages.common.models import base_model
from stages.common.process import stage_lock, time_limit
from stages.common.reports.evaluation import Answer, Summary, write_rows
from stages.common.schema import Config
from stages.common.scoring import Task
from stages.evaluate import benchmark, infer, judged, noise, results


def main() -> None:
    args, begun = parse_args(), time.monotonic()
    with locked(args):
        with load_params(
            *tracked("baseline"),
            untracked=[
                "engine.startup_timeout_s",
                "engine.api_key_env",
                "engine.gpu_memory_utilization",
                "evaluate.concurrency",
                "evaluate.request_timeout_s",
                "evaluate.retries",
                "benchmark.allow_code_execution",
                "launcher.timeout_h",
            ],
        ) as params:
            base, model_dir = base_model()
            adapter = None if args.base else tuned_dir()
            tasks = benchmark.read(args.split, params.evaluate.limit)
            benchmark.check(tasks, params.benchmark)
            judged.check(tasks, params.engine.judge)
            say(tasks, base["name"], adapter)
            model = f"{base['name']}, {'fine-tuned' if adapter else 'base'}"

            def ask(params: Config, run: int = 0) -> AbstractContextManager[results.Answered]:
                return results.answered(
                    tasks, params, base, model_dir, adapter, log_file(args), run
                )

            if args.noise:
                with time_limit(params.launcher.timeout_h):
                    print(noise.measure(ask, tasks, params, ROOT, model))
                return
            with time_limit(params.launcher.timeout_h), ask(params) as answered:
                found = [results.split(split, tasks, answered, params) for split in args.split]
                about = {
                    "model": model,
                    "settings": infer.settings(params.evaluate) | ruler(params),
                    "opencompass": version("opencompass"),
                    "runtime_s": round(time.monotonic() - begun, 1),
                }
                for rows, summary in found:
                    write(folder(args.base, summary.split), rows, summary.model_copy(update=about))


def ruler(params: Config) -> dict[str, str]:
    """How answers to one's own tasks are scored. The items of suites say it themselves."""
    return {
        "evaluator": params.benchmark.evaluator,
        "postprocessor": params.benchmark.postprocessor,
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stages.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--split",
        action="append",
        choices=items.SPLITS,
        help="may be given twice: one server answers both",
    )
    parser.add_argument("--base", action="store_true", help="the base model, without the adapter")
    parser.add_argument(
        "--noise", action="store_true", help="evaluate twice, and count the verdicts that change"
    )
    args = parser.parse_args()
    if args.noise == bool(args.split):
        parser.error("give --split, or --noise alone: it takes the validation items")
    args.split = args.split or ["val"]
    args.split = [split for split in items.SPLITS if split in args.split]
    return args


def stages(args: argparse.Namespace) -> list[str]:
    """The DVC stages whose outputs this call writes."""
    return ["baseline"] if args.base else [f"eval_{split}" for split in args.split]


@contextmanager
def locked(args: argparse.Namespace) -> Iterator[None]:
    with ExitStack() as stack:
        for name in ["noise"] if args.noise else stages(args):
            stack.enter_context(stage_lock(name, record_failure=not args.noise))
        yield


def log_file(args: argparse.Namespace) -> Path:
    name = "noise" if args.noise else stages(args)[0]
    return ROOT / ".pawl" / "logs" / f"serve-{name}.log"


def folder(base: bool, split: str) -> Path:
    return ROOT / "reports" / ("baseline" if base else f"eval_{split}")


def tuned_dir() -> Path:
    """Where training left an adapter, or, after full fine-tuning, a whole model."""
    path = ROOT / "models" / "adapter"
    if not (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise PawlError(
            "there is no fine-tuned model",
            where=str(path),
            fix="run 'dvc repro train', or ask the base model with --base",
        )
    return path


def say(tasks: list[Task], name: str, adapter: Path | None) -> None:
    count = sum(len(task.items) for task in tasks)
    parts = ", ".join(f"{len(task.items)} {task.split}/{task.name}" for task in tasks)
    print(f"asking {name}{', fine-tuned,' if adapter else ''} {count} items: {parts}")


def write(where: Path, rows: list[Answer], summary: Summary) -> None:
    split, overall = summary.split, summary.overall
    write_rows(where / f"{split}.jsonl", rows)
    bound = {"rows_sha256": sha256_file(where / f"{split}.jsonl")}  # whose summary this is
    summary.model_copy(update=bound).write(where / f"{split}.json")
    if split == "test":  # whoever chooses the next experiment reads this output
        print(f"test: {overall.n} items answered; their scores are for the report alone")
        return
    shown = ", ".join(
        f"{name} {part.accuracy:.3f} ({part.lenient:.3f} lenient)"
        for name, part in summary.benchmarks.items()
    )
    accuracy = f"accuracy {overall.accuracy:.3f} on {overall.n} items"
    print(f"{split}: {accuracy}: {shown}; {overall.truncated} truncated")


if __name__ == "__main__":
    run_main("evaluate", main)
