"""The policy without a language model: Optuna's TPE over the declared space, with the finished
experiments as its trials.

TPE (Bergstra et al. 2011, NeurIPS 24) proposes one variable at a time here, so that a difference
can be put down to it. Which variable comes next is drawn with a seed among those that were tried
least. Equal history and equal seed give an equal proposal, also after a kill. It argues for
nothing, so the gates for arguments do not ask it.
"""

from __future__ import annotations

import itertools
import random
import re
import warnings
from collections.abc import Sequence
from typing import Any

from agent import gates
from agent.gates import Known, Refusal
from agent.gates.permissions import unread
from agent.gates.priorities import QUALITY, made_up, variant
from agent.gates.proposal import Change, Option, Proposal
from stages.common.files import sha256_text
from stages.common.schema.loop import Dimension

POLICY = "optuna"
DRAWS = 3
"""Values of one variable that TPE gives, before what it did not draw."""
CARE = (
    ("audit-data", "audit a sample of 50 rows for correctness"),
    ("check-names", "check entity names and facts in the rows against the expected outputs"),
    ("add-context", "add grounding context, such as a product catalog, to each row"),
)
"""What a person can do about rows that teach wrong facts, in turn: no parameter does it."""
TRIES = 24
"""Steps of one variable, or of two, that are shown to the gates before others are taken."""
STARTUP = 4
"""Trials below which TPE draws at random."""


def propose(known: Known, gain: float = 0.01) -> tuple[Proposal | None, list[Refusal]]:
    """Options that pass the gates, and the reasons for which others did not; None if nothing is
    left to move.

    Steps of one variable come first; if none is left, a step of two.

    Args:
        gain: the smallest gain worth having: the success gate is that much above the present
            accuracy.
    """
    dice = random.Random(f"{known.agent.seed} {len(known.tried)}")
    weight = importance(known)
    order = sorted(
        known.agent.space,
        key=lambda key: (times_tried(known, key) > 0, -weight.get(key, 0.0), dice.random()),
    )
    if made_up(known.agent.reported):  # the data come before any parameter
        order.sort(key=lambda key: not QUALITY.fullmatch(key))
    first = standing(known)
    values = {key: draws(known, key, known.agent.space[key]) for key in order}
    refused: list[Refusal] = []
    chosen: list[Option] = []
    wanted = max(1, known.agent.options - len(first))
    for key in order:
        if len(chosen) < wanted:
            chosen += _passing(known, (key,), values, gain, refused)
    for pair in itertools.combinations(order, 2):
        if not chosen:
            chosen += _passing(known, pair, values, gain, refused)
    if not chosen:
        return None, refused
    return Proposal("", (*first, *chosen), POLICY), refused


def _passing(
    known: Known,
    keys: tuple[str, ...],
    values: dict[str, list[Any]],
    gain: float,
    refused: list[Refusal],
) -> list[Option]:
    """The first step of these variables that passes the gates, if any; what is said against others
    goes into `refused`.
    """
    for drawn in itertools.islice(itertools.product(*(values[key] for key in keys)), TRIES):
        if len(keys) == 1 and _said(known, keys[0], drawn[0]):
            continue
        step = option(known, dict(zip(keys, drawn, strict=True)), gain)
        problems = [
            each
            for each in gates.check(Proposal("", (step,), POLICY), known)
            if each.option == step.name
        ]
        if not problems:
            return [step]
        refused += [each for each in problems[:1] if each not in refused]
    return []


def option(known: Known, values: dict[str, Any], gain: float) -> Option:
    """A step to these values, without an argument: what was drawn, and what would be a success."""
    changes = tuple(Change(key, known.params[key], value) for key, value in values.items())
    accuracy = known.situation.accuracy
    success = 1.0 if accuracy is None else min(1.0, round(accuracy + gain, 4))
    steps = ", ".join(change.in_words() for change in changes)
    return Option(
        name=option_name(changes),
        kind="data_quality" if all(QUALITY.fullmatch(key) for key in values) else "parameter",
        changes=changes,
        why=f"{steps}, drawn by TPE from {len(known.tried)} comparable experiments.",
        expected=f"An accuracy of at least {success:g} instead of {_shown(accuracy)}.",
        at_least=success,
    )


def standing(known: Known) -> list[Option]:
    """What only a person can do comes before any parameter: another variant of the model, care for
    the data.
    """
    found = []
    if problem := variant(known):
        found.append(Option("other-variant", "model_variant", (), f"{problem}."))
    if made_up(known.agent.reported):
        name, what = CARE[len(known.tried) % len(CARE)]
        found.append(
            Option(name, "data_quality", (), f"Made-up or wrong answers were reported: {what}.")
        )
    return found


def times_tried(known: Known, key: str) -> int:
    """Experiments whose only difference from the present parameters is this one."""
    return sum(set(each.differing) == {key} for each in known.tried)


def importance(known: Known) -> dict[str, float]:
    """How much of the best quarter's difference from the rest each variable accounts for
    (PED-ANOVA, Watanabe et al. 2023, IJCAI), 0 to 1.

    {} while there are fewer than STARTUP trials, or they tell nothing.
    """
    import optuna

    scored = [each for each in known.tried if each.accuracy is not None]
    if len(scored) < STARTUP or len({each.accuracy for each in scored}) < 2:
        return {}
    study = optuna.create_study(direction="maximize")
    for each in scored:
        params, distributions = {}, {}
        for key, dimension in known.agent.space.items():
            value = each.differing.get(key, known.params.get(key))
            if (distribution := _covering(dimension, value)) is not None:
                params[key], distributions[key] = value, distribution
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=distributions, value=each.accuracy
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluator is marked experimental
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (ValueError, RuntimeError):
            return {}


def draws(known: Known, key: str, dimension: Dimension) -> list[Any]:
    """Values to try for a variable, each once, in the order in which TPE gives them; none where it
    cannot move.
    """
    import optuna

    present = known.params.get(key)
    window = allowed(present, dimension, known.agent.max_ratio) if key in known.params else None
    if window is None or unread(key, known.params):
        return []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seed = int(sha256_text(f"{known.agent.seed} {key} {len(known.tried)}")[:8], 16)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP),
    )
    for each in known.tried:
        value = each.differing.get(key, present)
        distribution = _covering(dimension, value)
        if each.accuracy is not None and distribution is not None:
            study.add_trial(
                optuna.trial.create_trial(
                    params={key: value}, distributions={key: distribution}, value=each.accuracy
                )
            )
    found: list[Any] = []
    for _ in range(DRAWS):
        value = _suggest(study.ask(), key, dimension, window)
        found.append(value)
    # what TPE never drew
    found += (
        window
        if isinstance(window, list)
        else [_round(value, dimension) for value in _spread(*window)]
    )
    return [
        value
        for value in dict.fromkeys(found)
        if gates.repeat.distance(value, present) >= known.agent.near / 2 and value != present
    ]


def _said(known: Known, key: str, value: Any) -> bool:
    """Whether a tried experiment that differs in this variable alone has said what a step would
    say.
    """
    alone = [each.differing[key] for each in known.tried if set(each.differing) == {key}]
    return any(
        value == each or gates.repeat.distance(value, each) < known.agent.near / 2 for each in alone
    )


def _spread(low: float, high: float) -> list[float]:
    """Five values from the ends of a range to its middle, in equal ratios."""
    return [low * (high / low) ** part for part in (1.0, 0.0, 0.75, 0.25, 0.5)]


def allowed(
    present: Any, dimension: Dimension, most: float
) -> tuple[float, float] | list[Any] | None:
    """Where a variable may go in one step: a range, or choices; None where nowhere."""
    if dimension.kind == "choice":
        steps = [
            each for each in dimension.choices if each != present and _near(present, each, most)
        ]
        return steps or None
    if isinstance(present, bool) or not isinstance(present, int | float):
        return None
    if present > 0:
        low, high = max(dimension.low, present / most), min(dimension.high, present * most)
    else:
        low, high = dimension.low, min(dimension.high, dimension.first)
    return (low, high) if low < high else None


def _near(present: Any, value: Any, most: float) -> bool:
    numeric = all(
        isinstance(each, int | float) and not isinstance(each, bool) and each > 0
        for each in (present, value)
    )
    return not numeric or 1 / most <= value / present <= most


def _covering(dimension: Dimension, value: Any) -> Any:
    """A distribution that holds a value that was tried; None where the value means off or all, or
    is no choice.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if dimension.kind == "choice":
        return CategoricalDistribution(dimension.choices) if value in dimension.choices else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return FloatDistribution(
        min(dimension.low, value), max(dimension.high, value), log=dimension.log
    )


def _suggest(
    trial: Any, key: str, dimension: Dimension, window: tuple[float, float] | list[Any]
) -> Any:
    if isinstance(window, list):
        value = trial.suggest_categorical(key, dimension.choices)
        return value if value in window else window[trial.number % len(window)]
    return _round(trial.suggest_float(key, window[0], window[1], log=dimension.log), dimension)


def _round(value: float, dimension: Dimension) -> Any:
    return round(value) if dimension.kind == "int" else float(f"{value:.{dimension.digits - 1}e}")


def option_name(changes: Sequence[Change]) -> str:
    """A folder's name from what changes."""
    parts = [
        f"{each.key.rpartition('.')[2]}"
        f" {format(each.after, 'g') if isinstance(each.after, float) else each.after}"
        for each in changes
    ]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")[:40].strip("-")


def _shown(accuracy: float | None) -> str:
    return "unknown" if accuracy is None else f"{accuracy:.4f}"
