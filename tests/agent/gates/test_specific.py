"""An option is about what is there, and changes one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.gates import specific
from agent.gates.proposal import Change
from tests.agent.scenes import GOOD, HALF, KNOWN, broken, moved


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("acme/tiny", "the model (acme/tiny)"),
        ("610", "the training rows (610)"),
        ("0.662", "the present accuracy (0.662)"),
        ("2 CPU cores", "the hardware (2 CPU cores)"),
    ],
)
def test_model_rows_accuracy_and_hardware_are_named(gone: str, named: str) -> None:
    found = specific.check(broken(why=HALF.why.replace(gone, "it")), KNOWN)
    assert [each.reason for each in found] == [f"its why and expected name neither of: {named}"]


def test_the_accuracy_may_be_a_percentage() -> None:
    assert specific.check(broken(why=HALF.why.replace("0.662", "66.2 %")), KNOWN) == []


def test_before_is_what_the_parameter_is() -> None:
    assert (
        "train.learning_rate is 0.001 now, not 0.002"
        in specific.check(moved("train.learning_rate", 0.002, 0.001), KNOWN)[0].reason
    )


def test_one_variable_unless_it_says_why() -> None:
    two = (*HALF.changes, Change("train.lora_alpha", 32, 64))
    assert "changes 2 parameters" in specific.check(broken(changes=two), KNOWN)[0].reason
    assert (
        specific.check(
            broken(changes=two, several="Both, learning_rate and lora_alpha, scale the update."),
            KNOWN,
        )
        == []
    )
    assert (
        "why train.learning_rate changes too"
        in specific.check(broken(changes=two, several="Lora alpha helps."), KNOWN)[0].reason
    )
    assert (
        "changed twice"
        in specific.check(broken(changes=(*HALF.changes, *HALF.changes), several="x"), KNOWN)[
            0
        ].reason
    )


def test_the_model_and_its_training_were_looked_up_before() -> None:
    for said in ("", "It is an instruct model.", "It is an instruct model [unverified]."):
        assert (
            "`verified` names no source"
            in specific.check(replace(GOOD, verified=said), KNOWN)[0].reason
        )


def test_two_or_three_options_with_names_of_their_own() -> None:
    assert specific.check(GOOD, KNOWN) == []
    for options in (
        (HALF,),
        (HALF, HALF),
        (HALF, *(replace(HALF, name=f"n{k}") for k in range(3))),
    ):
        assert any(
            each.option == "" for each in specific.check(replace(GOOD, options=options), KNOWN)
        )


def test_a_value_that_is_not_set_has_no_before_to_take_a_step_from() -> None:
    found = [
        each.reason
        for each in specific.check(moved("train.extra.neftune_noise_alpha", 5, 10), KNOWN)
    ]
    assert found == ["train.extra.neftune_noise_alpha is not set now, not 5"]
    assert specific.check(moved("train.extra.neftune_noise_alpha", None, 10), KNOWN) == []
