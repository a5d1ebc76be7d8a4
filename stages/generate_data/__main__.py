"""Make the training data: read, draw or ask for every source, filter, remove what the benchmark
holds too, sample, shuffle.

python -m stages.generate_data
python -m stages.generate_data decontaminate --train ROWS.jsonl --items NAME:SPLIT=ITEMS.jsonl ...
    only the search, on any files

Writes data/train (train.jsonl, and eval.jsonl where data.eval_fraction is set, with
dataset_info.json for LLaMA-Factory; rejected.jsonl, every row that was removed and why),
reports/generate_data.json and reports/data_card.md. No report holds an item's text.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from stages.common.config import load_params
from stages.common.errors import run_main
from stages.common.files import ROOT, fresh_folder, main_root, write_json, write_text
from stages.common.keys import tracked
from stages.common.models import base_model
from stages.common.process import stage_lock, time_limit
from stages.common.replies import Replies
from stages.common.reports.data import (
    Contamination,
    DataReport,
    Flow,
    SourceCounts,
    Teaching,
    Tokens,
)
from stages.common.schema import Data
from stages.generate_data import card, decontaminate, sources, spool, tokens
from stages.generate_data.filters import Filters
from stages.generate_data.rows import Counts, Seen, dataset_info, quantiles
from stages.generate_data.teacher import Budget, Teacher


def summarize(
    data: Data,
    filters: Filters,
    train: list[int],
    held_out: list[int],
    teachers: dict[str, Teacher],
    controls: dict[str, dict[str, bool | None]],
) -> DataReport:
    """What reports/generate_data.json says: the same whether replies were paid for now or
    before.
    """
    kept = spool.tally(filters.spool, train + held_out)
    for number, count in enumerate(filters.counts.values()):
        count.kept = kept[number]
        count.unused = count.read - count.removed() - count.kept
    searched, found = (
        sum(filters.searched.values()),
        sum(count.contaminated for count in filters.counts.values()),
    )
    remarks = filters.remarks()
    return DataReport(
        name=data.name,
        kind=next(iter(filters.kinds)),
        rows=len(train),
        eval_rows=len(held_out),
        seed=data.seed,
        sources={name: SourceCounts(**asdict(count)) for name, count in filters.counts.items()},
        filters=[Flow(filter=name, **flow) for name, flow in filters.flow.items()],
        tokens=Tokens(**quantiles(filters.spool.tokens[number] for number in train)),
        contamination=Contamination(
            fraction=found / searched if searched else 0.0, hits=filters.hit_list()
        ),
        positive_control=controls,
        teacher={
            tier: Teaching(model=teacher.llm.model, **teacher.usage.report())
            for tier, teacher in sorted(teachers.items())
        },
        **({"remarks": remarks} if remarks else {}),
    )


def make(
    data: Data,
    cutoff_len: int,
    count_tokens: Callable[[list[Seen]], list[int]],
    root: Path,
    home: Path,
    *,
    plain: bool = False,
) -> DataReport:
    """Build and write everything under `root`, and return the report. The cache of replies lies
    under `home`. `plain`: no answers.
    """
    index, controls = decontaminate.search(
        decontaminate.read_items(root / "data" / "benchmark"), data.ngram, data.fuzzy
    )
    teachers: dict[str, Teacher] = {}
    with fresh_folder(root / "data" / "train") as folder, ExitStack() as stack:
        scratch = folder / "scratch"
        scratch.mkdir()
        rejected = stack.enter_context(
            open(folder / "rejected.jsonl", "w", encoding="utf-8", errors="backslashreplace")
        )
        rows = spool.Spool(scratch / "rows")
        counts = {name: Counts() for name in data.sources}

        def note(removed: dict[str, Any]) -> None:
            rejected.write(json.dumps(removed, ensure_ascii=False) + "\n")

        filters = Filters(data, index, count_tokens, cutoff_len, rows, scratch, note, counts)
        budget = Budget(data.teacher.max_tokens, data.teacher.max_cost)
        replies = cache(
            lambda: stack.enter_context(Replies(home / ".pawl" / "teacher" / "replies.sqlite"))
        )

        def teacher(tier: str) -> Teacher:
            if tier not in teachers:
                made = Teacher(
                    getattr(data.teacher, tier), replies(), budget, f"data.teacher.{tier}"
                )
                teachers[tier] = stack.enter_context(made)
            return teachers[tier]

        sources.gather(data, filters, teacher, scratch, plain=plain)
        train, held_out = spool.hold_out(spool.select(data, rows), rows, data.eval_fraction)
        report = summarize(data, filters, train, held_out, teachers, controls)
        parts = {"train": train, "eval": held_out} if held_out else {"train": train}
        for name, chosen in parts.items():
            with open(folder / f"{name}.jsonl", "wb") as file:
                file.writelines(rows.lines(chosen))
        write_json(folder / "dataset_info.json", dataset_info(report.kind, parts))
        shown = random.Random(f"{data.seed}\0card").sample(train, min(card.SAMPLES, len(train)))
        samples = [card.sample_text(line) for line in rows.lines(shown)]
        filters.close()
        stack.close()  # every reply is on disk before the folder takes its name
    write_text(root / "reports" / "data_card.md", card.write(data, report, samples))
    report.write(root / "reports" / "generate_data.json")
    if budget.requests:
        print(
            f"generate_data: paid for {budget.requests} replies in this run, cost"
            f" {budget.cost:.4g}; the others were in the cache"
        )
    return report


def main() -> int:
    if sys.argv[1:2] == ["decontaminate"]:
        return decontaminate.main(sys.argv[2:])
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m stages.generate_data", description=__doc__, formatter_class=form
    ).parse_args()
    with (
        stage_lock("generate_data"),
        load_params(
            *tracked("generate_data"),
            untracked=["launcher.timeout_h"],
            inputs=["data/local", "prompts/generate_data"],
        ) as params,
        time_limit(params.launcher.timeout_h),
    ):
        _, model = base_model()
        plain = params.train.stage == "pt"
        report = make(
            params.data,
            params.train.cutoff_len,
            tokens.counter(model, plain=plain),
            ROOT,
            main_root(),
            plain=plain,
        )
        for name, count in report.sources.items():
            print(
                f"generate_data: {name}: "
                + ", ".join(
                    f"{number} {what.replace('_', ' ')}" for what, number in count if number
                )
            )
        for remark in report.remarks:
            print(f"generate_data: {remark}")
        share = report.contamination.fraction if report.contamination else 0.0
        made = f"{report.rows} rows, {report.tokens.total:,} tokens"
        print(
            f"generate_data: {made}; {share:.1%} of the different rows were in the benchmark and"
            " are gone"
        )
    return 0


if __name__ == "__main__":
    run_main("generate_data", main)
