"""What vetoes an acceptance whatever the scores say: an evaluation that is incomplete, two not run
alike, data that gives it away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.common.files import flatten, sha256_text
from stages.common.items import ids_sha256
from stages.common.reports.benchmark import BenchmarkReport
from stages.common.reports.evaluation import Oddities
from stages.common.reports.verdict import Guard
from stages.judge.inputs import Inputs, Side

THE_MODEL = ("adapter_sha256", "adapter_served_as", "base_sha256", "chat_template_sha256")
"""Keys of the fingerprint in which candidate and incumbent may differ: they are the model."""
STATED = (
    "engine",
    "engine_version",
    "dtype",
    "device",
    "base_sha256",
    "adapter_sha256",
    "chat_template_sha256",
    "temperature",
    "top_p",
    "seed",
    "max_output_tokens",
)
"""Keys that every fingerprint has; a value may be null where nobody can know it (a server of
somebody else's).
"""
RULERS = ("evaluator", "scoring_sha256")
"""Keys that say how answers became scores; a fingerprint has one of them, or both."""
CONTROL = "(control)"
"""What the positive control of generate_data calls the row that it plants beside those of the
tasks.
"""
QUALITY = ("truncation", "contamination", "same base model")
"""Guards that speak of the candidate's making; the others speak of its measurement."""


def check(
    inputs: Inputs, max_truncated: float, max_contamination: float, same_base_model: bool
) -> list[Guard]:
    """Every guard with its result, and what it found, also if it passed.

    A guard that finds nothing to look at has failed: what is absent from a report proves nothing.
    """
    sides = (("candidate", inputs.candidate), ("incumbent", inputs.incumbent))
    other_base = _other_base(inputs)
    results = [
        (
            "complete",
            [line for name, side in sides for line in _incomplete(name, side, inputs.benchmark)],
            "every item was answered",
        ),
        (
            "summary",
            [line for name, side in sides for line in _misquoted(name, side)],
            "each summary is what its rows add up to",
        ),
        (
            "same items",
            list(_other_items(inputs)),
            "both sides answered the items of the benchmark",
        ),
        (
            "same conditions",
            list(_differences(inputs.candidate, inputs.incumbent)),
            "engine, precision, prompts, sampling and evaluator are the same",
        ),
        (
            "same base model",
            [other_base] if other_base and same_base_model else [],
            other_base or "both sides stand on one base model",
        ),
        (
            "answered",
            [line for name, side in sides for line in _unanswered(name, side, max_truncated)],
            "the model that was asked answered",
        ),
        (
            "truncation",
            list(_truncated(inputs.candidate, max_truncated)),
            _share(inputs.candidate.rows),
        ),
        (
            "contamination",
            list(_contaminated(inputs, max_contamination)),
            "the training data was checked and cleaned",
        ),
    ]
    return [
        Guard(guard=name, passed=not found, detail="; ".join(found) or fine)
        for name, found, fine in results
    ]


def of_files(candidate: Side, incumbent: Side) -> list[str]:
    """What is wrong with two files of rows alone (see `inputs.file_side`), and with the summaries
    beside them where there are any.
    """
    wrong = []
    for name, side in (("candidate", candidate), ("incumbent", incumbent)):
        if len(side.fingerprints) > 1:
            wrong.append(
                f"the {name}'s rows carry {len(side.fingerprints)} fingerprints: they were not"
                " answered under the same conditions"
            )
        if side.summary:
            wrong += [*_misquoted(name, side), *_other_hash(name, side)]
        else:
            wrong += _contradictory(name, side)
    if bool(candidate.summary) != bool(incumbent.summary):
        wrong.append(
            "one side has a summary beside its rows and the other has none, so that nobody knows"
            " whether both were asked alike"
        )
    return wrong + (
        list(_differences(candidate, incumbent)) if candidate.summary and incumbent.summary else []
    )


def _incomplete(name: str, side: Side, benchmark: BenchmarkReport) -> Iterator[str]:
    """Items answered against items built, for each task, and each as often as the summary says."""
    counts = side.rows.group_by("benchmark").aggregate(
        [("item_id", "count_distinct"), ("item_id", "count")]
    )
    answered = {
        row["benchmark"]: (row["item_id_count_distinct"], row["item_id_count"])
        for row in counts.to_pylist()
    }
    tasks = benchmark.tasks
    # the usual number is left out of a fingerprint
    runs = side.stated.fingerprint.get("num_runs", 1)
    for task in sorted(tasks.keys() | answered.keys()):
        built = tasks[task].val if task in tasks else None
        found, rows = answered.get(task, (0, 0))
        if found != built:
            yield f"the {name} answered {found} of {_short(built)} items of {task}"
        elif type(runs) is not int or rows != runs * found:
            yield (
                f"the {name} has {rows} answers to {found} items of {task}, and its summary says"
                f" {_short(runs)} to each"
            )
    if not tasks:
        yield "the benchmark's report names no task"


def _misquoted(name: str, side: Side) -> Iterator[str]:
    """A summary that its rows do not carry, or that nothing binds to these very rows."""
    stated = side.stated.benchmarks
    groups = {"overall": (side.rows, side.stated.overall)}
    for task in sorted({*stated, *pc.unique(side.rows["benchmark"]).to_pylist()}):
        if task in stated:
            groups[task] = side.rows.filter(pc.equal(side.rows["benchmark"], task)), stated[task]
        else:
            yield f"the {name}'s summary states nothing for {task}, of which there are rows"
    for group, (rows, scores) in groups.items():
        counted = {"n": len(rows), "truncated": pc.sum(rows["truncated"]).as_py() or 0}
        counted |= {
            "accuracy": pc.mean(rows["correct"]).as_py(),
            "score": pc.mean(rows["score"]).as_py(),
        }
        for key, value in counted.items():
            if value is None or abs(getattr(scores, key) - value) > 1e-9:
                yield (
                    f"the {name}'s summary states {key} {getattr(scores, key)} for {group}, its"
                    f" rows give {value}"
                )
    yield from _contradictory(name, side)
    yield from _unbound(name, side)


def _contradictory(name: str, side: Side) -> Iterator[str]:
    """Rows that no evaluation of ours writes."""
    whole = pc.greater_equal(side.rows["score"], 1 - 1e-6)
    if odd := pc.sum(pc.not_equal(side.rows["correct"], whole)).as_py():
        yield f"{odd} of the {name}'s rows are right without a full score, or wrong with one"
    empty = pc.equal(pc.utf8_trim_whitespace(side.rows["prediction"]), "")
    if odd := pc.sum(pc.and_(empty, pc.greater(side.rows["score"], 0))).as_py():
        yield f"{odd} of the {name}'s rows have a score for a reply without text"


def _unbound(name: str, side: Side) -> Iterator[str]:
    """Rows that are not the ones that the summary was made of, or were answered under other
    conditions.

    A result from before summaries had `rows_sha256`, and rows their fingerprint, is bound by the
    look at which it was accepted: who was right about which item is hashed there.
    """
    stated, given = side.stated.rows_sha256, sorted(set(side.fingerprints))
    if stated is None and side.accepted and given == [""]:
        return
    if stated != side.rows_sha256:
        yield (
            f"the {name}'s summary is of rows with the hash {_short(stated)}, and these have"
            f" {_short(side.rows_sha256)}"
        )
    expected = sha256_text(json.dumps(side.stated.fingerprint, sort_keys=True))[:16]
    if given != [expected]:
        found = ", ".join(_short(each or None) for each in given[:3])
        yield f"the {name}'s rows carry the fingerprint {found}, and its summary's is {expected}"


def _other_items(inputs: Inputs) -> Iterator[str]:
    """Both sides against the items of data/benchmark/val: their ids, their answers, and the hash
    that a summary states of them.
    """
    if not inputs.items:
        yield "there are no validation items to compare with in data/benchmark/val"
        return
    built = {(item["benchmark"], key): item["answer"] for key, item in inputs.items.items()}
    for name, side in (("candidate", inputs.candidate), ("incumbent", inputs.incumbent)):
        answered = dict.fromkeys(
            zip(
                *(side.rows[column].to_pylist() for column in ("benchmark", "item_id", "gold")),
                strict=True,
            )
        )
        if foreign := [item for task, item, _ in answered if (task, item) not in built]:
            yield (
                f"{len(foreign)} items of the {name} are not in data/benchmark/val"
                f" ({_short(foreign[0])})"
            )
        if changed := [
            item for task, item, gold in answered if built.get((task, item), gold) != gold
        ]:
            yield (
                f"{len(changed)} rows of the {name} have another answer key than data/benchmark/val"
                f" ({_short(changed[0])})"
            )
        yield from _other_hash(name, side)


def _other_hash(name: str, side: Side) -> Iterator[str]:
    stated, actual = side.stated.items_sha256, ids_sha256(side.rows["item_id"].to_pylist())
    if stated != actual:
        yield (
            f"items_sha256 is {_short(stated)} in the {name}'s summary, and its rows give"
            f" {_short(actual)}"
        )


def _differences(candidate: Side, incumbent: Side) -> Iterator[str]:
    """Compared key by key, unknown keys too: a condition that is not known to be harmless
    counts.
    """
    both = [side.stated.fingerprint for side in (candidate, incumbent)]
    for name, found in zip(("candidate", "incumbent"), both, strict=True):
        if not found:
            yield f"the {name}'s fingerprint is missing"
            continue
        if absent := [key for key in STATED if key not in found]:
            yield f"the {name}'s fingerprint does not state {', '.join(absent)}"
        if not any(found.get(key) for key in RULERS):
            yield f"the {name}'s fingerprint does not say how answers were scored"
    left, right = map(flatten, both)
    for key in sorted(left.keys() | right.keys()):
        if key not in THE_MODEL and (
            key not in left or key not in right or not _same(left[key], right[key])
        ):
            yield (
                f"{key} is {_short(left.get(key))} for the candidate and {_short(right.get(key))}"
                " for the incumbent"
            )


def _same(left: Any, right: Any) -> bool:
    """Equal, and of one type: true is not 1, and NaN is equal to nothing."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _other_base(inputs: Inputs) -> str:
    """How the base models differ, or that it is not known; empty where both sides stand on one."""
    bases = [
        side.stated.fingerprint.get("base_sha256") for side in (inputs.candidate, inputs.incumbent)
    ]
    if not all(isinstance(base, str) and base for base in bases):
        return "a base model is not known by its hash"
    return (
        ""
        if bases[0] == bases[1]
        else (
            f"the base model is another one ({_short(bases[0])}, the incumbent's"
            f" {_short(bases[1])})"
        )
    )


def _unanswered(name: str, side: Side, limit: float) -> Iterator[str]:
    """By the summary: replies without text (a call of a tool, thoughts alone, a refusal), and
    replies that another model signed.
    """
    n = len(side.rows)
    for who, told in (
        (name, side.stated),
        (f"judge of the {name}'s answers", side.stated.engine_judge or Oddities()),
    ):
        if told.unanswered and told.unanswered.n > limit * n:
            yield (
                f"{told.unanswered.n} of the {n} replies of the {who} hold no text, more than"
                f" {limit:.0%}"
            )
        if told.answered_as:
            yield (
                f"replies of the {who} are signed by another model than the one asked"
                f" ({str(told.answered_as)[:200]})"
            )


def truncated(rows: pa.Table) -> float:
    """The share of answers that were cut off at the output limit."""
    return float(pc.mean(rows["truncated"]).as_py())


def _share(rows: pa.Table) -> str:
    return f"{truncated(rows):.1%} of the candidate's answers were cut off"


def _truncated(side: Side, limit: float) -> Iterator[str]:
    if truncated(side.rows) > limit:
        yield f"{_share(side.rows)}, more than {limit:.0%}"


def _contaminated(inputs: Inputs, limit: float) -> Iterator[str]:
    """The share of training rows that overlapped with benchmark items before they were taken out,
    and whether the search for them works.

    The search has to have found what was planted of every task, and the control that belongs to
    none.
    """
    found = inputs.data.contamination
    if found is None:
        yield "the data report does not say how many training rows overlap with the benchmark"
    elif found.fraction > limit:
        yield (
            f"{found.fraction:.1%} of the training rows overlapped with the benchmark, more than"
            f" {limit:.0%}"
        )
    planted = inputs.data.positive_control
    if missed := sorted(
        f"{name}.{key}"
        for name, results in planted.items()
        for key, value in results.items()
        if value is False
    ):
        yield f"the search for overlaps missed rows that were planted for it ({', '.join(missed)})"
    tried = {name for name, results in planted.items() if any(results.values())}
    if untried := sorted({*inputs.benchmark.tasks, CONTROL} - tried):
        yield f"the search for overlaps was not tried on planted rows of {', '.join(untried)}"


def _short(value: Any) -> str:
    text = "missing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
