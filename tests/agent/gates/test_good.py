"""A good proposal passes every gate; without one that does, a gate that refuses everything would
look right.
"""

from __future__ import annotations

from agent.gates import GATES, clean
from tests.agent.scenes import GOOD, KNOWN, broken, refusals


def test_a_good_proposal_passes_every_gate() -> None:
    assert [str(each) for each in refusals(GOOD)] == []
    assert [option.name for option in clean(GOOD, [])] == ["half-rate", "rank-32"]


def test_what_is_said_against_one_option_leaves_the_other() -> None:
    proposal = broken(at_least=0.5)
    refused = refusals(proposal)
    assert {each.option for each in refused} == {"half-rate"}
    assert [option.name for option in clean(proposal, refused)] == ["rank-32"]


def test_gates_change_nothing_and_say_the_same_twice() -> None:
    proposal = broken(at_least=0.5, instead="x", why="Use 17 rows.")
    for gate in GATES.values():
        assert [str(each) for each in gate(proposal, KNOWN)] == [
            str(each) for each in gate(proposal, KNOWN)
        ]
