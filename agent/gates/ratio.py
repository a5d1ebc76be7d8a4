"""No number moves by more than the allowed factor in one experiment, unless a quoted source
recommends the value that it jumps to.

The factor is of the present value, whatever a proposal calls it, and of all changes of an
experiment together.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from agent.gates.citations import holds, normal, own, readings_at, tag
from agent.gates.known import Known, Refusal
from agent.gates.proposal import Change, Option, Proposal

_ADVICE = re.compile(
    r"\b(recommend\w*|advi[sc]e\w*|suggest\w*|should|usual\w*|typical\w*|common\w*|works?"
    r" (well|best)|best|good|optimal|prefer\w*|"
    r"we (use|used|train|trained|set|found)|start(ing)? (with|at|from)|try|sweet spot|chosen|such"
    r" as)\b",
    re.IGNORECASE,
)


def check(proposal: Proposal, known: Known) -> list[Refusal]:
    refused = []
    for option in proposal.options:
        real = [
            replace(each, before=known.params[each.key]) if each.key in known.params else each
            for each in option.changes
        ]
        for change, present in zip(option.changes, real, strict=True):
            if isinstance(change.after, str) and (
                _is_number(change.before) or _is_number(present.before)
            ):
                reason = (
                    f"{change.key} is a number, and {change.after[:40]!r} is a text; write the"
                    " number itself"
                )
                refused.append(Refusal("ratio", option.name, reason))
                continue
            worse = next(
                (each for each in (present, change) if each.numeric and not allowed(each, known)),
                None,
            )
            if worse and not _quoted(worse, option, known):
                refused.append(Refusal("ratio", option.name, _reason(worse, known.agent.max_ratio)))
        if reason := _together(real, option, known):
            refused.append(Refusal("ratio", option.name, reason))
    return refused


def _together(changes: list[Change], option: Option, known: Known) -> str:
    """Why the changes of one option are too much at once, each allowed by itself; "" if they are
    not.

    The alpha of LoRA counts by its ratio to the rank, and accumulation by the whole batch, since
    they move together.
    """
    most = math.log(known.agent.max_ratio) * (1 + 1e-9)
    logs = {
        each.key: math.log(each.ratio)
        for each in changes
        if each.ratio and not _quoted(each, option, known)
    }
    if len(logs) < 2 or any(abs(each) > most for each in logs.values()):
        return ""
    rank, alpha = (logs.get(f"train.{name}") for name in ("lora_rank", "lora_alpha"))
    if rank is not None and alpha is not None:
        logs["train.lora_alpha"] = alpha - rank
    batch, more = (
        logs.get(f"train.{name}")
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    if batch is not None and more is not None:
        logs["train.per_device_train_batch_size"] = batch + more
        del logs["train.gradient_accumulation_steps"]
    whole = sum(abs(each) for each in logs.values())
    if whole <= most:
        return ""
    return (
        f"{len(changes)} parameters move by a factor of {math.exp(whole):.3g} together, more than"
        f" {known.agent.max_ratio:g}: it would not show which of them did it; split it into"
        " experiments"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def allowed(change: Change, known: Known) -> bool:
    """Within the factor; from or to a value that means off or all (0, -1), within the first step
    that conf/agent declares for it.
    """
    if change.before == change.after:
        return True
    if change.ratio is not None:
        slack = 1 + 1e-9
        return 1 / (known.agent.max_ratio * slack) <= change.ratio <= known.agent.max_ratio * slack
    declared = known.agent.space.get(change.key)
    return (
        declared is not None
        and declared.first > 0
        and max(change.before or 0, change.after) <= declared.first * (1 + 1e-9)
    )


def _quoted(change: Change, option: Option, known: Known) -> bool:
    """A quote that stands in its source, names the parameter, and recommends that very value; a
    default recommends nothing.
    """
    name = change.key.rpartition(".")[2]
    for quote in option.evidence:
        citation = tag(quote.citation)
        if own(citation) or not holds(known.sources.get(citation, ""), quote.text):
            continue
        names_it = (
            normal(name) in normal(quote.text)
            or normal(name.replace("_", " ")) in normal(quote.text)
            or name in quote.citation
        )
        if names_it and _recommends(quote.text, change.after):
            return True
    return False


def _recommends(text: str, value: float) -> bool:
    """Whether a text calls a value good, rather than showing it in a signature or as a documented
    default.
    """
    if not _ADVICE.search(text):
        return False
    for start, end, values in readings_at(text):
        around = f"{text[max(0, start - 30) : start]}|{text[end : end + 16]}".lower()
        if "default" not in around and any(
            math.isclose(each, value, rel_tol=1e-9) for each in values
        ):
            return True
    return False


def _reason(change: Change, most: float) -> str:
    if change.ratio is None:
        return (
            f"{change.key} from {change.before} to {change.after} switches something on or off; "
            f"quote a source that names {change.after}, "
            f"or declare agent.space.{change.key}.first"
        )
    low, high = change.before / most, change.before * most
    return (
        f"{change.key} from {change.before} to {change.after} is a factor of {change.ratio:.3g},"
        f" outside 1/{most:g} to {most:g}; stay within {low:.3g} to {high:.3g}, or quote a source"
        f" that names {change.after}"
    )
