"""What is proposed: two or three ranked options, the same object whoever proposes, and the schema a
language model's reply must fit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

KINDS = ("parameter", "data_quality", "model_variant")
ABOUT = ("model", "framework", "problem", "parameter", "ours")
LEVELS = ("low", "medium", "high")
METRIC = "accuracy"
"""The primary metric: strict accuracy on the validation items, 0 to 1."""


@dataclass(frozen=True)
class Change:
    """One parameter, from what it is to what it is to be."""

    key: str
    before: Any
    after: Any

    @property
    def ratio(self) -> float | None:
        """after / before; None where one of them is no positive number, since 0 and -1 mean off or
        all.
        """
        if any(
            isinstance(each, bool) or not isinstance(each, int | float) or each <= 0
            for each in (self.before, self.after)
        ):
            return None
        return float(self.after) / float(self.before)

    @property
    def numeric(self) -> bool:
        """A number comes out, and one was there, or nothing."""
        given = [each for each in (self.before, self.after) if each is not None]
        return self.after is not None and all(
            isinstance(each, int | float) and not isinstance(each, bool) for each in given
        )

    @property
    def override(self) -> str:
        return f"{self.key}={hydra_value(self.after)}"

    def in_words(self) -> str:
        ratio = f" ({_times(self.ratio)})" if self.ratio is not None else ""
        return f"{self.key}: {self.before} → {self.after}{ratio}"


def _times(ratio: float) -> str:
    return f"a {1 / ratio:.3g}th" if ratio < 0.5 else f"{ratio:.3g} times"


def hydra_value(value: Any) -> str:
    """A scalar as an override's right side; a text that could be read as anything else is
    quoted.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if re.fullmatch(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*", text) and text.lower() not in (
        "true",
        "false",
        "null",
        "nan",
        "inf",
        "yes",
        "no",
        "on",
        "off",
    ):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class Quote:
    """5 to 30 words of a source, as they stand there."""

    text: str
    citation: str
    about: str = "framework"


@dataclass(frozen=True)
class Pitfall:
    """How a failure would show: which metric goes which way (up, down, flat), and by which step."""

    metric: str
    direction: str
    step: int


@dataclass(frozen=True)
class Option:
    """One experiment that could be next; a drawn one has no argument, so that most texts are empty.

    Attributes:
        kind: a parameter of training or data; the quality of the data; the variant of the model.
        several: why more than one variable changes ("" where one does).
        different: what sets it apart from an experiment that was close to it ("" where none was).
        disagreement: where sources disagree, what each says, and that the conservative value is
            taken.
        at_least: of METRIC, for a success.
        instead: the option to turn to where this one fails, and `when` that is seen.
    """

    name: str
    kind: str
    changes: tuple[Change, ...]
    why: str
    evidence: tuple[Quote, ...] = ()
    expected: str = ""
    pitfalls: tuple[Pitfall, ...] = ()
    at_least: float = math.nan
    instead: str = ""
    when: str = ""
    several: str = ""
    different: str = ""
    disagreement: str = ""
    effort: str = "low"
    risk: str = "low"

    @property
    def overrides(self) -> list[str]:
        return [change.override for change in self.changes]

    def prose(self) -> dict[str, str]:
        """The texts in which a claim needs a source, by name."""
        texts = {
            "why": self.why,
            "several": self.several,
            "different": self.different,
            "disagreement": self.disagreement,
        }
        return {
            name: text
            for name, text in {**texts, "expected": self.expected, "when": self.when}.items()
            if text.strip()
        }


@dataclass(frozen=True)
class Proposal:
    """Ranked options, the first one first, and what was verified of the model and its training
    before.
    """

    verified: str
    options: tuple[Option, ...]
    policy: str = ""

    @property
    def argued(self) -> bool:
        """Whether somebody argues for it. Optuna only draws; whoever is unknown has to argue."""
        return self.policy != "optuna"


def from_json(value: dict[str, Any], policy: str) -> Proposal:
    """A reply that fits SCHEMA, as a Proposal."""
    return Proposal(
        verified=str(value["verified"]),
        options=tuple(_option(each) for each in value["options"]),
        policy=policy,
    )


def _option(value: dict[str, Any]) -> Option:
    return Option(
        name=value["name"],
        kind=value["kind"],
        changes=tuple(
            Change(each["key"], each["before"], each["after"]) for each in value["changes"]
        ),
        why=value["why"],
        evidence=tuple(
            Quote(each["quote"], each["citation"], each["about"]) for each in value["evidence"]
        ),
        expected=value["expected"],
        pitfalls=tuple(
            Pitfall(each["metric"], each["direction"], each["step"]) for each in value["pitfalls"]
        ),
        at_least=(
            float(value["success"]["at_least"])
            if value["success"]["metric"] == METRIC
            else math.nan
        ),
        instead=value["failure_plan"]["option"],
        when=value["failure_plan"]["when"],
        several=value["several"],
        different=value["different"],
        disagreement=value["disagreement"],
        effort=value["effort"],
        risk=value["risk"],
    )


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(about: str, limit: int = 1500) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit, "description": about}


_SCALAR = {"type": ["string", "number", "boolean", "null"]}
SCHEMA: dict[str, Any] = _object(
    verified=_text(
        "What you checked of the model's architecture, its variant and its training set-up, each"
        " sentence with its citation."
    ),
    options={
        "type": "array",
        "minItems": 2,
        "maxItems": 3,
        "items": _object(
            name={"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,39}$"},
            kind={"type": "string", "enum": list(KINDS)},
            changes={
                "type": "array",
                "maxItems": 4,
                "items": _object(
                    key={"type": "string", "maxLength": 100}, before=_SCALAR, after=_SCALAR
                ),
            },
            why=_text(
                "Names the model, the number of training rows, the present accuracy and the"
                " hardware."
            ),
            several=_text("Why more than one variable changes; empty where one does."),
            different=_text(
                "What sets it apart from close experiments; empty where none is close."
            ),
            evidence={
                "type": "array",
                "maxItems": 8,
                "items": _object(
                    quote=_text("5 to 30 words, exactly as in the source", 400),
                    citation=_text("as shown above it", 400),
                    about={"type": "string", "enum": list(ABOUT)},
                ),
            },
            disagreement=_text(
                "Where sources disagree: what each says, and the conservative value that is taken;"
                " empty where they agree."
            ),
            expected=_text("The effect on accuracy that you expect, and why."),
            pitfalls={
                "type": "array",
                "minItems": 1,
                "maxItems": 4,
                "items": _object(
                    metric={"type": "string", "maxLength": 60},
                    direction={"type": "string", "enum": ["up", "down", "flat"]},
                    step={"type": "integer", "minimum": 0},
                ),
            },
            effort={"type": "string", "enum": list(LEVELS)},
            risk={"type": "string", "enum": list(LEVELS)},
            success=_object(
                metric={"type": "string", "maxLength": 60}, at_least={"type": "number"}
            ),
            failure_plan=_object(
                option=_text("the name of another option", 40), when=_text("what is seen then", 400)
            ),
        ),
    },
)
"""What a language model's reply has to fit; the gates check what it says."""
