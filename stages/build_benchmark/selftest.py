"""Does a benchmark's scoring reward right answers and nothing else? Known replies to some of its
items, before any model is asked.

Each item is answered by its gold answer alone and in five usual sentences, by every wrong answer in
the same forms, by nothing, by a label without an answer and by an essay without one. Where
OpenCompass's scoring fails and all answers are letters, yes or no, or numbers, our own extraction
decides (stages/common/extraction.py), and OpenCompass's figure stands beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stages.common import extraction
from stages.common.errors import PawlError
from stages.common.files import sha256_text
from stages.common.numerals import fold
from stages.common.numerals import number as parse
from stages.common.schema import Benchmark
from stages.common.scoring import Item, Scorer, Scoring, Task, is_judged, processor, scorer
from stages.common.verdicts import EXACT, TOLERANCE, decide

# of a benchmark: half those with the longest answers, which post-processors break, and half drawn
ITEMS = 24
LIMITS = {"gold": 0.95, "sentences": 0.95, "wrong": 0.98, "empty": 1.0, "label": 1.0, "essay": 0.98}
"""The least share of replies that scoring gets right, of each sort. One right answer in 20 misread
moves a score by five points, which is what an experiment gains; a wrong one accepted is worse,
since a model can learn to give it; no answer is never right. The first three are below 1 since
items are odd at times: an option that says what another one says, a gold answer with its unit.
"""
SENTENCES = (
    "The answer is {}.", "Answer: {}", "**{}**", "So the answer is \\boxed{{{}}}.",
    "Let us look at what is asked, one step after the other.\n{}",
)  # fmt: skip
EMPTY = ("", " \n")
LABELS = ("Answer:", "**Answer:**", "The answer is", "So the answer is \\boxed{}.")
ESSAYS = (
    (
        "This has been discussed for a long time. A careful reader would look at every side of it,"
        " and more would have to be known to decide. In the end it depends on how the words are"
        " meant. Both sides have their reasons, and I have not made up my mind."
    ),
    "I'm sorry, but I can't help with that.",
)
_COMPARING = ("AccEvaluator", "AccwithDetailsEvaluator")


class AccwithDetailsEvaluator:
    """OpenCompass's, in short: it and AccEvaluator compare text with text, and importing them takes
    two and ten seconds.
    """

    def score(self, predictions: list[Any], references: list[Any]) -> dict[str, Any]:
        pairs = list(zip(predictions, references, strict=True))
        details = {
            str(n): {"pred": given, "refr": gold, "is_correct": given == gold}
            for n, (given, gold) in enumerate(pairs)
        }
        return {
            "accuracy": 100 * sum(given == gold for given, gold in pairs) / len(pairs),
            "details": details,
        }


@dataclass(frozen=True)
class Shares:
    """The share of known replies that scoring gets right: right ones taken for right, others for
    wrong; None where there were none.

    Attributes:
        gold, sentences: the gold answer alone, and in sentences.
        wrong: another answer, alone and in the same sentences.
        empty, label, essay: no answer.
    """

    gold: float | None
    sentences: float | None
    wrong: float | None
    empty: float | None
    label: float | None
    essay: float | None

    def short(self, but: tuple[str, ...] = ()) -> list[str]:
        """Which of them are below their limit."""
        return [
            name
            for name, share in asdict(self).items()
            if name not in but and share is not None and share < LIMITS[name]
        ]


def examine_items(
    name: str,
    val: list[Item],
    test: list[Item],
    scoring: Scoring | None,
    benchmark: Benchmark,
) -> dict[str, Any]:
    """`examine` for a benchmark's items; of the test items it sees what kind their answers are and
    nothing else.
    """
    golds = [item.get("reference", item["answer"]) for item in (*val, *test)]
    return examine(Task(name, "val", val, scoring), benchmark, golds)


def examine(task: Task, benchmark: Benchmark, golds: list[Any]) -> dict[str, Any]:
    """What the report says of a benchmark's scoring. Where our extraction is to decide,
    task.scoring says so afterwards.

    Args:
        task: validation items; test items are not looked at.
        golds: what all its items, of both splits, are compared with: they say what kind the answers
            are.

    Raises:
        PawlError: scoring that rewards wrong answers, or that does not know the right ones, and
            that nothing stands in for.
    """
    if task.scoring and (task.scoring["executes_code"] or is_judged(task)):
        return _unknown(
            "a language model compares" if is_judged(task) else "what the model wrote is run"
        )
    made, kind = _quick(task, benchmark), extraction.kind(golds)
    whole = task.scoring is None or (
        not task.scoring["postprocessor"] and type(made.evaluator).__name__ in EXACT
    )
    try:
        found = shares(task, made, kind, guarded=False)
    except PawlError as error:
        if not all(isinstance(gold, dict) for gold in golds):
            raise error
        return _unknown("its checks need what is not installed here")
    report: dict[str, Any] = {"items": min(ITEMS, len(task.items)), "opencompass": asdict(found)}
    if not found.short(("sentences",) if whole or not kind else ()):
        return {"scored_by": "OpenCompass", **report}
    if task.scoring and kind and not whole:
        task.scoring["extraction"] = kind
    decides = shares(task, made, kind)
    by = (
        f"our extraction ({kind})"
        if task.scoring and "extraction" in task.scoring
        else "OpenCompass, except replies without an answer"
    )
    if short := decides.short(() if "extraction" in (task.scoring or {}) else ("sentences",)):
        shown = ", ".join(f"{name} {getattr(decides, name):.0%}" for name in short)
        raise PawlError(
            f"scoring {task.name} gets too few of known replies right: {shown} (see LIMITS in"
            f" {__name__})",
            where=f"benchmark ({task.name}), evaluator and postprocessor",
            fix=(
                "choose another evaluator or postprocessor; 'python -m stages.build_benchmark"
                " --self-test' shows all of them"
            ),
        )
    return {"scored_by": by, **report, "decides": asdict(decides)}


def _unknown(why: str) -> dict[str, Any]:
    return {
        "scored_by": "OpenCompass, except replies without an answer",
        "items": 0,
        "why": f"{why}: replies with an answer are not tried here",
    }


def shares(task: Task, made: Scorer, kind: str, *, guarded: bool = True) -> Shares:
    """How much of known replies scoring gets right.

    Args:
        guarded: as it decides; else OpenCompass's alone, which may take no answer for a right one.
    """
    items = sample(task.items)
    golds = {item["item_id"]: gold_text(item) for item in items}
    others = {item["item_id"]: wrong_texts(item, kind, list(golds.values())) for item in items}
    replies: dict[str, list[tuple[Item, str]]] = {name: [] for name in LIMITS}
    for item in items:
        gold = golds[item["item_id"]]
        replies["empty"] += [(item, text) for text in EMPTY]
        replies["label"] += [(item, text) for text in LABELS]
        if gold is None:
            continue
        replies["essay"] += [(item, text) for text in ESSAYS]
        replies["gold"].append((item, gold))
        replies["sentences"] += [(item, text) for text in said(gold, kind)]
        for wrong in others[item["item_id"]]:
            replies["wrong"] += [(item, text) for text in (wrong, *said(wrong, kind))]
    return Shares(
        **{
            name: _share(task, made, pairs, name in ("gold", "sentences"), guarded)
            for name, pairs in replies.items()
        }
    )


def _share(
    task: Task, made: Scorer, pairs: list[tuple[Item, str]], wanted: bool, guarded: bool
) -> float | None:
    if not pairs:
        return None
    scoring = task.scoring
    if scoring is not None and not guarded:
        scoring = {**scoring, "extraction": ""}
    asked = Task(task.name, task.split, [item for item, _ in pairs], scoring)
    verdicts = decide(asked, [text for _, text in pairs], made, guarded=guarded)
    return sum((score >= 1 - TOLERANCE) == wanted for score in verdicts.scores) / len(pairs)


def sample(items: list[Item]) -> list[Item]:
    """Some items, the same for the same: those with the longest answers, and others by their
    hash.
    """
    longest = sorted(items, key=lambda item: (-len(gold_text(item) or ""), item["item_id"]))[
        : ITEMS // 2
    ]
    rest = [item for item in items if item not in longest]
    return (
        longest
        + sorted(rest, key=lambda item: sha256_text(item["item_id"]))[: ITEMS - len(longest)]
    )


def gold_text(item: Item) -> str | None:
    """A right answer as text; None where the item's gold is no text, but a form or tests."""
    gold = item.get("reference", item["answer"])
    gold = gold[0] if isinstance(gold, list) and gold else gold
    return gold if isinstance(gold, str) else None


def said(answer: str, kind: str) -> list[str]:
    """An answer in five usual sentences; a number in its usual form, with a comma for thousands
    and, once, a currency.
    """
    number = parse(answer) if kind == "number" else None
    if number is None or number.value.denominator != 1:
        return [sentence.format(answer) for sentence in SENTENCES]
    grouped = f"{int(number.value):,}"
    forms = (
        f"{'-' if number.value < 0 else ''}${grouped.lstrip('-')}",
        answer,
        grouped,
        grouped,
        answer,
    )
    return [sentence.format(form) for sentence, form in zip(SENTENCES, forms, strict=True)]


def wrong_texts(item: Item, kind: str, golds: list[str | None]) -> list[str]:
    """The wrong letters of a choice, the other of yes and no, else the gold answer of another
    item.
    """
    gold = gold_text(item)
    if gold is None:
        return []
    if kind == "choice":
        letters = list(extraction.options(item["question"])) or sorted(
            {other.strip(" ()") for other in golds if other}
        )
        return [
            gold.replace(gold.strip(" ()"), letter)
            for letter in letters
            if letter != gold.strip(" ()")
        ]
    if kind == "boolean":
        pairs = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
        return [pairs[gold.strip().lower()]]
    others = sorted(
        {other for other in golds if other and _plainly(other) != _plainly(gold)},
        key=lambda other: sha256_text(gold + other),
    )
    return others[:1]


def _plainly(text: str) -> str:
    number = parse(text)
    return str(number.value) if number else fold(text).casefold().strip()


def _quick(task: Task, benchmark: Benchmark) -> Scorer:
    """A task's scorer, without the imports of an evaluator that only compares."""
    kind = str(task.scoring["evaluator"]["type"] if task.scoring else benchmark.evaluator)
    if kind.rpartition(".")[2] not in _COMPARING:
        return scorer(task, benchmark)
    process = processor(task, benchmark)
    return Scorer(AccwithDetailsEvaluator(), lambda text: str(process(text)), "accuracy")
