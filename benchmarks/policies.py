"""Which policy needs the fewest experiments? A search of the recorded table of real runs, by the
loop's own proposers and gates.

python -m benchmarks.policies [--seeds 200]            writes reports/agent_policies.md

A seed draws the grid point to start from and the policy's luck. Each policy then proposes, one
experiment at a time and with everything seen
so far; the present state moves to whatever is better, as the loop's does. Counted are experiments
until one is among the best 5 % of the table.
The metric of these tiny runs is the evaluation loss, shown to the proposers as exp(-loss), which
lies between 0 and 1 as an accuracy does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pool
from typing import Any

from agent import gates
from agent.gates import Known, Situation, Tried
from agent.gates.proposal import Proposal
from agent.propose import policy_optuna
from benchmarks.record_runs import GRID, TABLE
from stages.common.files import ROOT, write_text
from stages.common.schema import Agent
from stages.common.schema.loop import Budget, Dimension

REPORT = ROOT / "reports" / "agent_policies.md"
Point = dict[str, Any]


def table() -> dict[tuple[Any, ...], float]:
    """Score, exp(-evaluation loss), of each grid point."""
    return {
        tuple(run["params"].values()): math.exp(-run["eval_loss"])
        for run in json.loads(TABLE.read_text(encoding="utf-8"))
    }


def best(scores: dict[tuple[Any, ...], float], share: float = 0.05) -> set[tuple[Any, ...]]:
    """The best 5 % of the grid points."""
    return set(sorted(scores, key=lambda point: -scores[point])[: round(share * len(scores))])


@dataclass
class Search:
    """What a policy has seen: points with their scores in order, and the present one."""

    scores: dict[tuple[Any, ...], float]
    present: Point
    seed: int
    seen: list[tuple[Point, float]] = field(default_factory=list)

    def score(self, point: Point) -> float:
        return self.scores[tuple(point.values())]

    def known(self) -> Known:
        tried = [
            Tried(
                f"{k:04d}-run",
                f"a run of the table with the score {score:.4f}",
                {key: value for key, value in point.items() if value != self.present[key]},
                score,
            )
            for k, (point, score) in enumerate(self.seen, 1)
        ]
        state = Situation("tiny-random", 160, self.score(self.present), "2 CPU cores", True, "")
        space = {key: Dimension("choice", choices=list(values)) for key, values in GRID.items()}
        agent = Agent("table", "optuna", 24.0, self.seed, near=0.0, budget=Budget(), space=space)
        return Known({**self.present, "train.stage": "sft"}, {}, state, agent, tried=tried)


def by_gated_random(search: Search) -> Point | None:
    """Any step of one variable that the gates let pass."""
    known, dice = search.known(), random.Random(f"gated {search.seed} {len(search.seen)}")
    steps = [
        (key, value)
        for key, values in GRID.items()
        for value in values
        if value != search.present[key]
    ]
    dice.shuffle(steps)
    return next(
        (passed for key, value in steps if (passed := _passes(search, known, key, value))), None
    )


def _passes(search: Search, known: Known, key: str, value: Any) -> Point | None:
    step = policy_optuna.option(known, {key: value}, 0.0)
    refused = gates.check(Proposal("", (step,), policy_optuna.POLICY), known)
    return None if refused else {**search.present, key: value}


def by_random(search: Search) -> Point:
    """Any grid point that was not tried: free of the gates, and of the present state."""
    dice = random.Random(f"random {search.seed} {len(search.seen)}")
    seen = [tuple(point.values()) for point, _ in search.seen]
    left = [point for point in search.scores if point not in seen]
    return dict(zip(GRID, dice.choice(left), strict=True))


def by_optuna(search: Search) -> Point | None:
    known = search.known()
    proposal, _ = policy_optuna.propose(known)
    options = gates.clean(proposal, gates.check(proposal, known)) if proposal else []
    return (
        {**search.present, **{change.key: change.after for change in options[0].changes}}
        if options
        else None
    )


def by_script(search: Search) -> Point | None:
    """A scripted proposer in a language model's place: go on where the last step helped, else try
    the next variable, then the other way.
    """
    known = search.known()
    order = list(GRID)
    random.Random(f"script {search.seed}").shuffle(order)
    last = [(set_of, score) for set_of, score in search.seen][-1][0]
    moved = [
        key
        for key in order
        if len(search.seen) > 1
        and last == search.present
        and search.seen[-2][0].get(key) != last[key]
    ]
    for key in [*moved, *order]:
        values = GRID[key]
        place = values.index(search.present[key])
        for step in (1, -1):
            inside = 0 <= place + step < len(values)
            if inside and (passed := _passes(search, known, key, values[place + step])):
                return passed
    return None


POLICIES: dict[str, Callable[[Search], Any]] = {
    "random": by_random,
    "random within the gates": by_gated_random,
    "optuna": by_optuna,
    "llm (scripted)": by_script,
}


def run(seed: int, name: str, scores: dict[tuple[Any, ...], float]) -> int:
    """Experiments until one of the best 5 % was measured; where a policy has nothing left to
    propose, it goes on at random.
    """
    goal = best(scores)
    start = random.Random(f"start {seed}").choice([point for point in scores if point not in goal])
    search = Search(scores, dict(zip(GRID, start, strict=True)), seed)
    search.seen.append((search.present, search.score(search.present)))
    for count in range(1, len(scores)):
        point = POLICIES[name](search) or by_random(search)
        search.seen.append((point, search.score(point)))
        if tuple(point.values()) in goal:
            return count
        if search.score(point) > search.score(search.present):
            search.present = point
    return len(scores)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    scores = table()
    with Pool(2) as pool:
        needed = {
            name: pool.map(partial(run, name=name, scores=scores), range(seeds), chunksize=5)
            for name in POLICIES
        }
    lines = [
        "# How many experiments a policy needs",
        "",
        (
            f"Generated by `python -m benchmarks.policies --seeds {seeds}` from"
            " `benchmarks/tiny_runs.json`:"
        ),
        f"{len(scores)} real trainings of the",
        (
            "tiny random model by LLaMA-Factory (five learning rates, four ranks, two batch sizes,"
            " two warm-ups), recorded by"
        ),
        (
            "`python -m benchmarks.record_runs`. Counted are experiments until one is among the"
            " best 5 % of the table"
        ),
        (
            f"({len(best(scores))} of {len(scores)}), from a starting point that the seed draws"
            f" outside of them; {seeds} seeds."
        ),
        "",
        (
            "| policy | mean | median | 90th percentile | saved against random, mean with 95 %"
            " interval |"
        ),
        "|---|---|---|---|---|",
    ]
    for name, counts in needed.items():
        saved = [a - b for a, b in zip(needed["random"], counts, strict=True)]
        half = 1.96 * statistics.stdev(saved) / math.sqrt(seeds) if seeds > 1 else 0.0
        middle = statistics.mean(saved)
        shown = (
            ""
            if name == "random"
            else f"{middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"
        )
        tenth = sorted(counts)[min(seeds - 1, math.ceil(0.9 * seeds) - 1)]
        lines.append(
            f"| {name} | {statistics.mean(counts):.1f} | {statistics.median(counts):g} | {tenth} |"
            f" {shown} |"
        )
    lines += [
        "",
        (
            "`random` may jump to any point of the table. The others move one variable from the"
            " best so far, by a factor of three at"
        ),
        (
            "most, as the gates demand: that costs jumps, and buys differences that can be put down"
            " to one variable. Where no such step is"
        ),
        "left, Optuna moves two",
        (
            "variables and the others go on at random. The scripted proposer stands for a language"
            " model that reads"
        ),
        "the history: further where the",
        "last step helped, else the next variable.",
    ]
    write_text(REPORT, "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
