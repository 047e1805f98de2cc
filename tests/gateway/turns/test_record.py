"""What is known of a turn while it runs."""

from __future__ import annotations

import pytest

from gateway.clock import Clock
from gateway.turns.turn import IllegalStep, Phase, Step
from tests.support.records import record


class Hand:
    """A clock's hand that is moved by the test."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_each_phase_keeps_when_it_was_first_reached() -> None:
    hand = Hand(100.0)
    turn = record(clock=Clock(wall=hand), at=100.0)
    for moment, step in enumerate((Step.ADMIT, Step.ROUTE, Step.REROUTE, Step.ROUTE, Step.SEND)):
        hand.now = 100.0 + moment
        turn.step(step)
    assert turn.phases == {Phase.ADMITTED: 0, Phase.ROUTED: 1000, Phase.SENT: 4000}
    assert turn.phase is Phase.SENT


def test_a_clock_that_is_set_back_gives_no_negative_time() -> None:
    hand = Hand(100.0)
    turn = record(clock=Clock(wall=hand), at=100.0)
    hand.now = 40.0
    turn.step(Step.ADMIT)
    assert turn.phases == {Phase.ADMITTED: 0}


def test_an_illegal_step_changes_nothing() -> None:
    turn = record()
    with pytest.raises(IllegalStep):
        turn.step(Step.SEND)
    assert (turn.phase, turn.phases) == (Phase.RECEIVED, {})
