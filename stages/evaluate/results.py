"""From items to answers to rows, and what each split's rows add up to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from stages.common import details, llm, scoring
from stages.common.files import ROOT, sha256_text
from stages.common.replies import key_of, remove
from stages.common.reports.evaluation import Answer, EvalSummary, Oddities, Summary, Unanswered
from stages.common.reports.test_results import TestSummary
from stages.common.schema import Config
from stages.common.scoring import Scorer, Task
from stages.common.verdicts import Score, Verdicts, beside
from stages.evaluate import benchmark, infer, judged, sandbox, score
from stages.evaluate.serve import engine
from stages.evaluate.serve.server import ServerDiedError
from stages.evaluate.summary import summarize
from stages.evaluate.think import Thinking

KINDS: dict[str, type[Summary]] = {"val": EvalSummary, "test": TestSummary}


@dataclass(frozen=True)
class Answered:
    """Every item's replies.

    Attributes:
        replies: by repeat, task and item.
        fingerprint: what they depend on beside what is asked: model, template, engine, sampling.
    """

    replies: infer.Answers
    scorers: list[Scorer]
    fingerprint: dict[str, object]


@contextmanager
def answered(
    tasks: list[Task],
    params: Config,
    base: Mapping[str, Any],
    model_dir: Path,
    adapter: Path | None,
    log: Path,
    run: int = 0,
) -> Iterator[Answered]:
    """All items' replies, for as long as the block lasts.

    The store that kept them is removed if the block ends without an error. A server that dies is
    started once more, and asked what is missing.

    Args:
        run: not 0: the number of a run whose replies are to be its own, not those of another run
            with the same settings.

    Raises:
        PawlError: see `infer.ask` and `engine.serve`.
    """
    scorers: list[Scorer] = []

    def load() -> None:  # OpenCompass's imports take a while, as does the server's start
        scorers.extend(scoring.scorer(task, params.benchmark) for task in tasks)

    for attempt in (1, 2):
        try:
            with engine.serve(
                params.engine,
                model_dir,
                adapter,
                log,
                weights_sha256=base["weights_sha256"],
                meanwhile=None if scorers else load,
            ) as endpoint:
                fingerprint = endpoint.fingerprint | infer.settings(params.evaluate)
                fingerprint |= clock(params, base)
                shaping = _shaping(fingerprint, endpoint, tasks, base)
                shaping["base_url"] = params.engine.base_url
                if run:
                    shaping["run"] = run
                right = _right(tasks, scorers, params)
                with infer.store(ROOT / ".pawl" / "eval", shaping) as kept:
                    replies = infer.ask(
                        endpoint, tasks, params.engine, params.evaluate, kept, right
                    )
            break
        except ServerDiedError as error:
            if attempt == 2:
                raise
            print(f"evaluate: {error.what.splitlines()[0]}; starting it once more")
    yield Answered(replies, scorers, fingerprint)
    remove(kept.path)


def clock(params: Config, base: Mapping[str, object]) -> dict[str, str]:
    """Today's date, if a server that is not ours writes it into each prompt.

    Its answers of another day are to other prompts. Our own engines write the date of model.date.
    """
    if params.engine.kind != "external" or not base.get("date"):
        return {}
    return {"template_date": date.today().isoformat()}


def split(
    which: str, tasks: list[Task], found: Answered, params: Config
) -> tuple[list[Answer], Summary]:
    """Rows and summary of one split; the rows of a repeat follow those of the one before."""
    thinking = _thinking(params)
    rows: list[Answer] = []
    ruled: dict[str, list[Verdicts]] = {}
    own = [task for task in tasks if task.split == which]
    given: list[llm.Reply] = []
    for replies in found.replies:
        for task, answers in zip(tasks, replies, strict=True):
            if task.split == which:
                given += answers
    fingerprint = found.fingerprint | ruler(own, params) | not_sent(given)
    verdicts: list[llm.Reply] = []
    short = sha256_text(json.dumps(fingerprint, sort_keys=True))[:16]
    for repeat, replies in enumerate(found.replies):
        for task, scorer, answers in zip(tasks, found.scorers, replies, strict=True):
            if task.split == which:
                instead = _instead(task, scorer, params, verdicts)
                rows += score.rows(
                    task,
                    answers,
                    scorer,
                    thinking=thinking,
                    repeat=repeat,
                    fingerprint=short,
                    instead=instead,
                    told=ruled,
                )
    overall, benchmarks = summarize(rows)
    benchmarks = {
        name: scores.model_copy(update=beside(ruled[name])) for name, scores in benchmarks.items()
    }
    told = oddities(given)
    if judging := oddities(verdicts):
        told["engine_judge"] = Oddities(**judging)
    if told and which == "val":
        print(f"{which}: not as it should be: {json.dumps(Oddities(**told).plain())}")
    if thinking.closing:
        told["thinking"] = dict(thinking.counts)
    summary = KINDS[which](
        split=which,
        overall=overall,
        benchmarks=benchmarks,
        items_sha256=benchmark.items_sha256(own),
        fingerprint=fingerprint,
        **told,
    )
    return rows, summary


def not_sent(replies: Sequence[llm.Reply]) -> dict[str, list[str]]:
    """What the server refuses of the sampling, for the fingerprint.

    Answers at its own temperature are other answers.
    """
    names = sorted({name for reply in replies for name in reply.not_sent})
    return {"not_sent": names} if names else {}


def oddities(replies: Sequence[llm.Reply]) -> dict[str, Any]:
    """What is odd about the replies of a split, as fields of `Oddities`; empty if nothing is."""
    found: dict[str, Any] = {}
    missing = Counter(reply.finish_reason or "none given" for reply in replies if reply.missing)
    if missing:
        reasons = dict(sorted(missing.items()))
        found["unanswered"] = Unanswered(n=missing.total(), finish_reasons=reasons)
    if signed := Counter(reply.model for reply in replies if reply.model):
        found["answered_as"] = dict(sorted(signed.items()))
    if estimated := sum(reply.estimated for reply in replies):
        found["estimated_token_counts"] = estimated
    return found | not_sent(replies)


def ruler(tasks: list[Task], params: Config) -> dict[str, object]:
    """What measures the answers of one split, for its fingerprint.

    It is the same whatever other splits were asked in the same call. An item's id is made of its
    last question and its answer; the worked examples before it, how OpenCompass scores it and who
    judges it are here.
    """
    found: dict[str, object] = {}
    if any(not task.scoring for task in tasks):
        found |= {
            "evaluator": params.benchmark.evaluator,
            "postprocessor": params.benchmark.postprocessor,
        }
    if suites := [task for task in tasks if task.scoring]:
        found["prompts_sha256"] = _prompts(tasks)
        scored = {task.name: task.scoring for task in suites}
        found["scoring_sha256"] = sha256_text(json.dumps(scored, sort_keys=True))
    if any(scoring.is_judged(task) for task in suites):
        found["judge"] = judged.identity(params.engine.judge)
    return found


def _prompts(tasks: list[Task]) -> str:
    """A hash of all questions, whatever their order."""
    keys = [key_of(turns, 0).hex()[:32] for task in tasks for turns in task.conversations]
    return sha256_text("\n".join(sorted(keys)))


def _shaping(
    fingerprint: dict[str, object],
    endpoint: engine.Endpoint,
    tasks: list[Task],
    base: Mapping[str, object],
) -> dict[str, object]:
    """By which kept replies are found: all that shapes an answer, the base's small files too.

    And the splits: two evaluations at once, of one model's two splits, must not remove each other's
    replies.
    """
    splits = sorted({task.split for task in tasks})
    return fingerprint | {"model": endpoint.model, "files": base.get("files"), "splits": splits}


def _instead(task: Task, scorer: Scorer, params: Config, verdicts: list[llm.Reply]) -> Score | None:
    if task.scoring and task.scoring["executes_code"]:
        return sandbox.score(scorer)
    if scorer.evaluator is None:
        return judged.scores(params.engine.judge, ROOT / ".pawl" / "eval", scorer, verdicts)
    return None


def _thinking(params: Config) -> Thinking:
    known = params.evaluate
    return Thinking(known.think_open, known.think_close, known.think_begun)


def _right(tasks: list[Task], scorers: list[Scorer], params: Config) -> infer.IsRight:
    """Whether a reply is right, for the progress: of validation items that are cheap to score."""
    by_task = dict(zip(map(id, tasks), scorers, strict=True))

    def right(task: Task, index: int, reply: llm.Reply) -> bool | None:
        scorer = by_task[id(task)]
        if task.split != "val" or type(scorer.evaluator).__name__ not in details.ADAPTERS:
            return None  # nobody who decides sees how a test goes
        alone = Task(task.name, task.split, [task.items[index]], task.scoring)
        return score.rows(alone, [reply], scorer, thinking=_thinking(params))[0].correct

    return right
