"""A situation, its sources and a good proposal, from which each test breaks one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.gates import Known, Refusal, Situation, check
from agent.gates.proposal import Change, Option, Pitfall, Proposal, Quote
from stages.common.schema import Agent
from stages.common.schema.loop import Dimension

RATE = "[lib: transformers==5.6.0 transformers.training_args.TrainingArguments.learning_rate]"
RANK = "[lib: peft==0.18.1 peft.tuners.lora.config.LoraConfig.r]"
_ARGUMENTS = "[lib: transformers==5.6.0 transformers.training_args.TrainingArguments"
EPOCHS = f"{_ARGUMENTS}.num_train_epochs]"
SCHEDULE = f"{_ARGUMENTS}.lr_scheduler_type]"
DROPOUT = "[lib: peft==0.18.1 peft.tuners.lora.config.LoraConfig.lora_dropout]"
CARD = "[source](https://huggingface.co/acme/tiny)"
STATE = (
    "The model is acme/tiny, fine-tuned on 610 training rows with 2 CPU cores.\nThe present"
    " accuracy, of experiments/0001-start, is 0.6620 (66.2 %) on 400 validation"
    " items.\ntrain.learning_rate is 0.001 in the present configuration.\ntrain.lora_rank is 16 in"
    " the present configuration."
)
SOURCES = {
    "[situation]": STATE,
    RATE: (
        "learning_rate: float = 5e-05\nThe initial learning rate for the optimizer. A rate of 2e-4"
        " is usual for adapters."
    ),
    RANK: (
        "r: int = 8\nLora attention dimension (the rank). A larger rank than 16 such as 32 holds"
        " more of the task."
    ),
    EPOCHS: "num_train_epochs: float = 3.0\nThe total number of training epochs to perform.",
    SCHEDULE: (
        "lr_scheduler_type: str = 'linear'\nThe scheduler of the learning rate to use, by its name."
    ),
    DROPOUT: (
        "lora_dropout: float = 0.0\nThe dropout probability for Lora layers, against overfitting."
    ),
    CARD: (
        "A tiny instruct model with 12 layers. Its authors advise a learning rate of 5e-4 for short"
        " tasks."
    ),
    "[experiment: 0001-start]": (
        "Experiment 0001-start changed nothing: a starting point and was KEPT: accuracy 0.662."
    ),
}
PARAMS: dict[str, Any] = {
    "train.learning_rate": 0.001,
    "train.lora_rank": 16,
    "train.lora_alpha": 32,
    "train.lora_dropout": 0.0,
    "train.weight_decay": 0.0,
    "train.num_train_epochs": 1.0,
    "train.max_steps": -1,
    "train.per_device_train_batch_size": 8,
    "train.gradient_accumulation_steps": 1,
    "train.lr_scheduler_type": "cosine",
    "train.stage": "sft",
    "train.name": "lora",
    "train.extra": {},
    "data.max_rows": 0,
    "data.sources.mine.count": 330,
    "data.ngram": 13,
    "model.name": "acme/tiny",
    "model.repo": "acme/tiny",
    "benchmark.seed": 1001,
}
AGENT = Agent(
    "test",
    "llm",
    timeout_h=24.0,
    space={"train.lora_dropout": Dimension("float", 0.01, 0.3, first=0.1)},
)
ANGLES = {
    CARD: frozenset({"model"}),
    RATE: frozenset({"framework"}),
    RANK: frozenset({"framework"}),
}
KNOWN = Known(
    params=PARAMS,
    sources=SOURCES,
    situation=Situation("acme/tiny", 610, 0.662, "2 CPU cores", True, STATE, 400.0, 300.0),
    agent=AGENT,
    mode="web",
    angles=ANGLES,
    arguments=frozenset({"learning_rate", "neftune_noise_alpha", "lora_rank"}),
)

HALF = Option(
    "half-rate",
    "parameter",
    (Change("train.learning_rate", 0.001, 0.0005),),
    "acme/tiny on 610 rows reaches 0.662 with 2 CPU cores [situation]. Its authors advise a rate"
    f" of 5e-4 {CARD}.",
    (
        Quote("Its authors advise a learning rate of 5e-4", CARD, "model"),
        Quote("The initial learning rate for the optimizer.", RATE, "framework"),
    ),
    "The loss falls more steadily and accuracy rises by two points [unverified].",
    (Pitfall("training loss", "up", 20),),
    0.68,
    "rank-32",
    "the loss is higher at the end",
    disagreement=f"One source says 2e-4 {RATE}, the card 5e-4 {CARD}.",
)
WIDER = Option(
    "rank-32",
    "parameter",
    (Change("train.lora_rank", 16, 32),),
    "acme/tiny on 610 rows reaches 0.662 with 2 CPU cores [situation]. A rank of 32 holds more"
    f" {RANK}.",
    (
        Quote("A larger rank than 16 such as 32 holds more", RANK, "framework"),
        Quote("A tiny instruct model with 12 layers.", CARD, "model"),
    ),
    "More capacity for the second task [unverified].",
    (Pitfall("validation accuracy", "down", 77),),
    0.675,
    "half-rate",
    "accuracy falls",
)
GOOD = Proposal(f"The model has 12 layers and is an instruct model {CARD}.", (HALF, WIDER), "llm")


def broken(part: int = 0, **changes: Any) -> Proposal:
    """The good proposal with something of one option changed."""
    options = list(GOOD.options)
    options[part] = replace(options[part], **changes)
    return replace(GOOD, options=tuple(options))


def moved(key: str, before: Any, after: Any, **more: Any) -> Proposal:
    """The good proposal whose first option makes another change."""
    return broken(changes=(Change(key, before, after),), **more)


def refusals(proposal: Proposal, known: Known = KNOWN) -> list[Refusal]:
    return check(proposal, known)


def reply(proposal: Proposal) -> dict[str, Any]:
    """A proposal as a language model would write it."""
    return {
        "verified": proposal.verified,
        "options": [
            {
                "name": each.name,
                "kind": each.kind,
                "why": each.why,
                "several": each.several,
                "different": each.different,
                "changes": [
                    {"key": c.key, "before": c.before, "after": c.after} for c in each.changes
                ],
                "evidence": [
                    {"quote": q.text, "citation": q.citation, "about": q.about}
                    for q in each.evidence
                ],
                "disagreement": each.disagreement,
                "expected": each.expected,
                "effort": each.effort,
                "risk": each.risk,
                "pitfalls": [
                    {"metric": p.metric, "direction": p.direction, "step": p.step}
                    for p in each.pitfalls
                ],
                "success": {"metric": "accuracy", "at_least": each.at_least},
                "failure_plan": {"option": each.instead, "when": each.when},
            }
            for each in proposal.options
        ],
    }
