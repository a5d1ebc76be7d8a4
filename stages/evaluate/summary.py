"""From per-item rows to the scores of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages.common.items import holds, wilson
from stages.common.reports.evaluation import Answer, Scores


def summarize(answers: Sequence[Answer]) -> tuple[Scores, dict[str, Scores]]:
    """Scores of one evaluation, pooled and for each benchmark, computed from its rows; one at
    least.
    """
    by_name: dict[str, list[Answer]] = {}
    for answer in answers:
        by_name.setdefault(answer.benchmark, []).append(answer)
    return _scores(answers), {name: _scores(part) for name, part in sorted(by_name.items())}


def _scores(answers: Sequence[Answer]) -> Scores:
    n, correct = len(answers), sum(answer.correct for answer in answers)
    low, high = wilson(correct, n)
    scores = Scores(
        n=n,
        accuracy=correct / n,
        accuracy_low=low,
        accuracy_high=high,
        lenient=sum(answer.correct or holds(answer.gold, answer.prediction) for answer in answers)
        / n,
        score=sum(answer.score for answer in answers) / n,
        truncated=sum(answer.truncated for answer in answers),
        output_tokens=sum(answer.output_tokens for answer in answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
    )
    runs = 1 + max(answer.repeat for answer in answers)
    return scores if runs == 1 else _repeated(scores, answers, runs)


def _repeated(scores: Scores, answers: Sequence[Answer], runs: int) -> Scores:
    """With pass@k, as items were asked several times: the chance that one of k answers to an item
    is right, averaged over items.

    Unbiased estimate 1 - C(n-c, k) / C(n, k) from n answers of which c are right (Chen et al. 2021,
    arXiv 2107.03374, equation 1). The interval around the accuracy takes all answers for
    independent, which repeats of one item are not: it is then too narrow.
    """
    right: dict[str, int] = {}
    for answer in answers:
        right[answer.item_id] = right.get(answer.item_id, 0) + answer.correct

    def chance(k: int) -> float:
        return sum(1 - math.comb(runs - c, k) / math.comb(runs, k) for c in right.values()) / len(
            right
        )

    pass_at_k = {str(k): chance(k) for k in range(1, runs + 1)}
    return scores.model_copy(update={"items": len(right), "pass_at_k": pass_at_k})
