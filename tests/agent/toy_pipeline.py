"""Four quick stages with the files of the real pipeline, so that the agent's tests run real git and
real DVC. The learning rate decides.

python -m stages.toy train | baseline | generate_data | judge; each run of a stage is a line of
.pawl/toy-runs.log
"""

import json
import os
import sys
import time
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from stages.common.failure import record
from stages.common.process import stage_lock
from stages.common.reports.evaluation import EvalSummary, Scores
from stages.common.reports.training import TrainReport

ITEMS = 40
RANK = {4: -9, 8: -6, 32: 5, 64: 6}
"""What other ranks than 16 add to it; two epochs and more add 2."""
RIGHT = {0.001: 20, 0.0005: 32, 0.002: 8, 0.003: 34, 0.0001: 39}
"""Right answers by learning rate; others: 20."""
FAIL, SLEEP, MEDDLE = 0.004, 0.006, 0.007
TEST_SECRET = "test-split-7731"


def write(path: str, value: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(value if isinstance(value, str) else json.dumps(value))


def rows(right: int, split: str, benchmark_seed: int = 0) -> str:
    row = {
        "benchmark": "toy",
        "split": split,
        "prediction": "p",
        "gold": "g",
        "prompt_tokens": 1,
        "output_tokens": 1,
        "truncated": False,
        "repeat": 0,
    }
    lines = [
        {
            "item_id": f"{benchmark_seed:08x}{k:08x}",
            "correct": k < right,
            "score": float(k < right),
            **row,
        }
        for k in range(ITEMS)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def summary(right: int) -> EvalSummary:
    share = right / ITEMS
    scores = Scores(
        n=ITEMS,
        accuracy=share,
        accuracy_low=0.0,
        accuracy_high=1.0,
        lenient=share,
        score=share,
        truncated=0,
        output_tokens=ITEMS,
        prompt_tokens=ITEMS,
    )
    return EvalSummary(split="val", overall=scores, benchmarks={"toy": scores})


def train(params: DictConfig) -> None:
    rate = params.train.learning_rate
    TrainReport(
        initial_loss=2.0,
        final_loss=1.0,
        steps=2,
        epochs=1.0,
        rows=60,
        trainable_parameters=1,
        total_parameters=2,
        runtime_s=1.0,
    ).write("reports/train.json")
    write("reports/loss.csv", "step,epoch,split,loss\n1,0.5,train,2.0\n2,1.0,train,1.0\n")
    if rate == FAIL:
        print("train: error: a printed line is not what is read", file=sys.stderr)
        record(
            "train",
            exit_code=1,
            error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        )
        sys.exit(1)
    if rate == SLEEP:
        with stage_lock("train"):  # as the real stage does
            Path(".pawl/toy.pid").write_text(str(os.getpid()))
            print("sleeping", flush=True)
            time.sleep(60)
    if rate == MEDDLE:  # as if somebody edited a file meanwhile
        write("prompts/judge/reason.j2", "edited")
    write("models/adapter", str(rate))
    right = (
        RIGHT.get(rate, 20)
        + RANK.get(params.train.lora_rank, 0)
        + 2 * (params.train.num_train_epochs >= 2)
    )
    right = min(ITEMS, max(0, right))
    write("reports/eval_val/val.jsonl", rows(right, "val", params.benchmark.seed))
    summary(right).write("reports/eval_val/val.json")
    write("reports/eval_test/test.json", {"accuracy": 0.7731, "note": TEST_SECRET})


def judge(params: DictConfig) -> None:
    paths = ("reports/eval_val/val.jsonl", f"{params.experiment.incumbent}/val.jsonl")
    sides = [[json.loads(line) for line in Path(path).read_text().splitlines()] for path in paths]
    if len({tuple(row["item_id"] for row in side) for side in sides}) > 1:
        print("judge: error: items differ", file=sys.stderr)
        sys.exit(1)
    candidate, incumbent = (sum(row["correct"] for row in side) / ITEMS for side in sides)
    gain = candidate - incumbent
    outcome = "accept" if gain > 0.1 else "inconclusive" if gain > 0 else "reject"
    about = {
        name: params.experiment[name] for name in ("name", "hypothesis", "parent", "incumbent")
    }
    write("reports/judge.md", outcome)
    write("reports/judge.json", verdict(figures(candidate, incumbent), outcome, **about))


def figures(candidate: float, incumbent: float, p_better: float = 0.0004) -> dict[str, object]:
    """The evidence of ITEMS pairs, as the judge writes it."""
    sides = {
        side: {"accuracy": share, "low": 0.0, "high": 1.0, "lenient": share, "score": share}
        for side, share in (("candidate", candidate), ("incumbent", incumbent))
    }
    gain = candidate - incumbent
    return {
        "n": ITEMS,
        **sides,
        "difference": gain,
        "low": gain - 0.1,
        "high": gain + 0.1,
        "lenient_difference": gain,
        "p_better": p_better,
        "p_two_sided": 2 * p_better,
        "candidate_only": 0,
        "incumbent_only": 0,
        "gain": 0.0,
        "loss": 0.0,
    }


def verdict(part: dict[str, object], outcome: str, **about: str) -> dict[str, object]:
    """A verdict on one benchmark, "toy"."""
    return {
        "experiment": about,
        "outcome": outcome,
        "accepted": outcome == "accept",
        "guards": [{"guard": "complete", "passed": True, "detail": "every item was answered"}],
        "evidence": {
            "alpha": 0.05,
            "min_effect": 0.01,
            "outcome": outcome,
            "why": "toy",
            "pooled": part,
            "benchmarks": {"toy": part},
        },
        "words": {
            "Code Summary": "A toy.",
            "Reason": "It is a toy.",
            "Decision": "yes" if outcome == "accept" else "no",
        },
    }


def generate_data(params: DictConfig) -> None:
    Path("data/train").mkdir(parents=True, exist_ok=True)
    write(
        "data/train/train.jsonl",
        "".join(
            json.dumps({"messages": [{"role": "user", "content": f"q {k}"}]}) + "\n"
            for k in range(60)
        ),
    )
    tokens = {"total": 60, "p50": 1, "p90": 1, "p99": 1, "max": 1}
    source = {"read": 60, "duplicates": 0, "contaminated": 0, "kept": 60}
    report = {
        "rows": 60,
        "tokens": tokens,
        "sources": {"toy": source},
        "max_rows": params.data.max_rows,
    }
    write("reports/generate_data.json", report)


def done(stage: str, params: DictConfig) -> None:
    """A line for a run that came to its end, with what decided it: nothing may be there twice."""
    about = [
        params.train.learning_rate,
        params.train.lora_rank,
        params.train.num_train_epochs,
        params.data.max_rows,
        params.experiment.name,
    ]
    with open(".pawl/toy-runs.log", "a") as log:
        log.write(f"{stage} {about}\n")


if __name__ == "__main__":
    given = OmegaConf.load("params.yaml")
    Path(".pawl").mkdir(exist_ok=True)
    time.sleep(float(os.environ.get("TOY_SLEEP_S", "0")))
    if sys.argv[1] == "baseline":
        write("reports/baseline/val.jsonl", rows(5, "val", given.benchmark.seed))
        summary(5).write("reports/baseline/val.json")
    else:
        {"train": train, "judge": judge, "generate_data": generate_data}[sys.argv[1]](given)
    done(sys.argv[1], given)
