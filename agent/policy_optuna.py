"""The policy without a language model: Optuna's TPE over the declared space, with the finished experiments as its trials.

TPE (Bergstra et al. 2011, NeurIPS 24) proposes one variable at a time here, so that a difference can be put down to it; which variable comes
next is drawn with a seed among those that were tried least. Equal history and equal seed give an equal proposal, also after a kill.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from agent import gates
from agent.citations import SITUATION, UNVERIFIED, words
from agent.gates import Known, Refusal
from agent.gates.priorities import made_up, variant
from agent.gates.quotes import FEWEST, MOST
from agent.proposal import Change, Option, Pitfall, Proposal, Quote
from stages.common.files import sha256_text
from stages.common.schema.loop import Dimension

TRIES = 24
"""Draws of one variable's value before the next variable is taken."""
STARTUP = 4
"""Trials below which TPE draws at random."""


def propose(known: Known, gain: float = 0.01) -> tuple[Proposal | None, list[Refusal]]:
    """Options that pass the gates, and the reasons for which others did not; None where less than two variables can move.

    Args:
        gain: the smallest gain worth having: the success gate is that much above the present accuracy.
    """
    dice = random.Random(f"{known.agent.seed} {len(known.tried)}")
    order = sorted(known.agent.space, key=lambda key: (times_tried(known, key), dice.random()))
    chosen: list[Change] = []
    refused: list[Refusal] = []
    first = _standing(known)
    wanted = known.agent.options - len(first)
    if made_up(known.agent.reported):  # the data come before any parameter
        order.sort(key=lambda key: not key.startswith("data."))
    for key in order:
        if len(chosen) == wanted:
            break
        for value in draws(known, key, known.agent.space[key]):
            change = Change(key, known.params[key], value)
            trial = _proposal(known, [*chosen, change], first, gain)
            problems = [each for each in gates.check(trial, known) if each.option == option_name(change)]
            if not problems:
                chosen.append(change)
                break
            refused += problems if problems[0] not in refused else []
    if len(chosen) + len(first) < 2 or not chosen:
        return None, refused
    proposal = _proposal(known, chosen, first, gain)
    left = gates.check(proposal, known)
    return proposal, [*refused, *left]


def times_tried(known: Known, key: str) -> int:
    """Experiments whose only difference from the present parameters is this one."""
    return sum(set(each.differing) == {key} for each in known.tried)


def draws(known: Known, key: str, dimension: Dimension) -> list[Any]:
    """Values to try for a variable, each once, in the order in which TPE gives them; none where it cannot move."""
    import optuna

    present = known.params.get(key)
    window = allowed(present, dimension, known.agent.max_ratio)
    if window is None:
        return []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seed = int(sha256_text(f"{known.agent.seed} {key} {len(known.tried)}")[:8], 16)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP))
    for each in known.tried:
        value = each.differing.get(key, present)
        distribution = _covering(dimension, value)
        if each.accuracy is not None and distribution is not None:
            study.add_trial(optuna.trial.create_trial(params={key: value}, distributions={key: distribution}, value=each.accuracy))
    found: list[Any] = []
    for _ in range(TRIES):
        value = _suggest(study.ask(), key, dimension, window)
        if value != present and value not in found and not _too_close(known, key, value):
            found.append(value)
    return found


def _too_close(known: Known, key: str, value: Any) -> bool:
    """Whether a step says nothing that the present state, or a tried experiment that differs in this variable alone, has not said."""
    before = [known.params.get(key), *(each.differing[key] for each in known.tried if set(each.differing) == {key})]
    return any(gates.repeat.distance(value, each) < known.agent.near / 2 for each in before)


def allowed(present: Any, dimension: Dimension, most: float) -> tuple[float, float] | list[Any] | None:
    """Where a variable may go in one step: a range, or choices; None where nowhere."""
    if dimension.kind == "choice":
        steps = [each for each in dimension.choices if each != present and _near(present, each, most)]
        return steps or None
    if isinstance(present, bool) or not isinstance(present, int | float):
        return None
    if present > 0:
        low, high = max(dimension.low, present / most), min(dimension.high, present * most)
    else:
        low, high = dimension.low, min(dimension.high, dimension.first)
    return (low, high) if low < high else None


def _near(present: Any, value: Any, most: float) -> bool:
    numeric = all(isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in (present, value))
    return not numeric or 1 / most <= value / present <= most


def _covering(dimension: Dimension, value: Any) -> Any:
    """A distribution that holds a value that was tried; None where the value means off or all, or is no choice."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if dimension.kind == "choice":
        return CategoricalDistribution(dimension.choices) if value in dimension.choices else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return FloatDistribution(min(dimension.low, value), max(dimension.high, value), log=dimension.log)


def _suggest(trial: Any, key: str, dimension: Dimension, window: tuple[float, float] | list[Any]) -> Any:
    if isinstance(window, list):
        value = trial.suggest_categorical(key, dimension.choices)
        return value if value in window else window[trial.number % len(window)]
    value = trial.suggest_float(key, window[0], window[1], log=dimension.log)
    if dimension.kind == "int":
        return round(value)
    return float(f"{value:.{dimension.digits - 1}e}")


def option_name(change: Change) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", f"{change.key.rpartition('.')[2]} {change.after:g}".lower() if isinstance(change.after, float)
                  else f"{change.key.rpartition('.')[2]} {change.after}".lower())  # fmt: skip
    return text.strip("-")[:40].strip("-")


def _standing(known: Known) -> list[Option]:
    """Options that come before any parameter and that only a person can take: nothing changes by itself."""
    there, options = known.situation, []
    tail = f"{there.model}, {there.rows} training rows, accuracy {_shown(there.accuracy)}, {there.hardware} {SITUATION}."
    quotes = tuple(_own_quotes(known, "model.name"))
    success = min(1.0, (there.accuracy or 0.0) + 0.01)
    if problem := variant(known):
        options.append(Option("other-variant", "model_variant", (), f"{problem} {SITUATION}. {tail}", quotes, f"A model that fits the training {UNVERIFIED}.",
                              (Pitfall("accuracy", "flat", 0),), success, "", f"the present variant is meant {UNVERIFIED}"))  # fmt: skip
    if made_up(known.agent.reported):
        options.append(Option("audit-data", "data_quality", (), f"People report: the answers are made up or wrong {SITUATION}. Read a sample of rows first {UNVERIFIED}. {tail}",
                              quotes, f"Errors in the rows that the answers repeat {UNVERIFIED}.", (Pitfall("accuracy", "flat", 0),), success, "",
                              f"the rows are right {UNVERIFIED}"))  # fmt: skip
    return options


def _shown(accuracy: float | None) -> str:
    return "unknown" if accuracy is None else f"{accuracy:.4f}"


def _proposal(known: Known, changes: Sequence[Change], first: Sequence[Option], gain: float) -> Proposal:
    """The options as an object of the same kind as a language model's; each names the next as its failure plan."""
    options = [*first, *(_option(known, change, gain) for change in changes)]
    names = [option.name for option in options]
    if len(options) == 1:  # while the second is still looked for
        options, names = [*options, _placeholder(options[0])], [*names, "next"]
    linked = tuple(_linked(option, names[(k + 1) % len(names)]) for k, option in enumerate(options))
    there = known.situation
    verified = f"The model is {there.model}, which has {'a' if there.chat else 'no'} chat template of its own {SITUATION}."
    return Proposal(verified, linked, "optuna")


def _placeholder(option: Option) -> Option:
    from dataclasses import replace

    return replace(option, name="next", changes=())


def _linked(option: Option, other: str) -> Option:
    from dataclasses import replace

    return replace(option, instead=other)


def _option(known: Known, change: Change, gain: float) -> Option:
    there = known.situation
    count = sum(change.key in each.differing for each in known.tried)
    why = (
        f"{change.in_words()}, drawn by TPE from {len(known.tried)} comparable experiments, may do better {UNVERIFIED}. "
        f"{there.model}, fine-tuned on {there.rows} training rows, has an accuracy of {_shown(there.accuracy)} with {there.hardware} {SITUATION}."
    )
    different = ""
    found, far = gates.repeat.nearest(Option("", "", (change,), "", (), "", (), 0, "", ""), known)
    if found is not None and far < known.agent.near:
        different = f"A step of its own from [experiment: {found.folder}]: TPE looks closer where it expects the most {UNVERIFIED}."
    success = 1.0 if there.accuracy is None else min(1.0, round(there.accuracy + gain, 4))
    return Option(
        option_name(change), "data_quality" if change.key.startswith("data.") else "parameter", (change,), why,
        tuple(_evidence(known, change.key)), f"An accuracy of at least {success:g} instead of {_shown(there.accuracy)} {UNVERIFIED}.",
        (Pitfall("training loss", "up", 1),), success, "", f"the accuracy is not above {_shown(there.accuracy)} {SITUATION}", different=different,
        effort="low", risk="low" if count else "medium",
    )  # fmt: skip


def _evidence(known: Known, key: str) -> list[Quote]:
    """What the installed packages say about a parameter, the present value, and the newest experiment that moved it."""
    name = key.rpartition(".")[2]
    found = []
    for citation, text in known.sources.items():
        if citation.startswith("[lib:") and citation.rstrip("]").endswith(f".{name}") and (quote := _quotable(text)):
            found.append(Quote(quote, citation, "parameter"))
            break
    else:
        for citation, text in known.sources.items():
            if citation.startswith("[lib:") and (quote := _quotable(text)):
                found.append(Quote(quote, citation, "framework"))
                break
    found += _own_quotes(known, key)
    mine = [each.folder for each in known.tried if key in each.differing and f"[experiment: {each.folder}]" in known.sources]
    for folder in mine[-1:]:
        text = " ".join(known.sources[f"[experiment: {folder}]"].split()[:12])
        found.append(Quote(text, f"[experiment: {folder}]", "ours"))
    return found


def _own_quotes(known: Known, key: str) -> list[Quote]:
    lines = known.sources.get(SITUATION, "").splitlines()
    picked = [line for line in lines if line.startswith(f"{key} is ")][:1] + [line for line in lines if line.startswith("The model is")][:1]
    return [
        Quote(" ".join(line.split()[:MOST]), SITUATION, "model" if line.startswith("The model") else "ours")
        for line in picked
        if words(line) >= FEWEST
    ]


def _quotable(text: str) -> str:
    """The first sentence of a documentation, after its signature, if it is long enough to quote."""
    body = " ".join(text.partition("\n")[2].split())
    sentence = re.split(r"(?<=[.!?]) ", body)[0]
    chosen = sentence if words(sentence) >= FEWEST else body
    return " ".join(chosen.split()[:MOST]) if words(chosen) >= FEWEST else ""
