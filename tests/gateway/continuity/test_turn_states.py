"""Who issued a turn state."""

from gateway.continuity import turn_states
from gateway.continuity.turn_states import TurnStates


def test_the_issuer_of_a_turn_state_is_known_and_of_any_other_is_not() -> None:
    states = TurnStates()
    states.issued("a", 1)
    states.issued("b", 2)
    assert (states.issuer("a"), states.issuer("b"), states.issuer("c")) == (1, 2, None)


def test_the_last_issuer_counts() -> None:
    states = TurnStates()
    states.issued("a", 1)
    states.issued("a", 2)
    assert states.issuer("a") == 2


def test_the_oldest_turn_state_is_forgotten_when_there_are_too_many() -> None:
    states = TurnStates()
    for number in range(turn_states.MAX_TURN_STATES + 1):
        states.issued(str(number), 1)
    assert states.issuer("0") is None
    assert states.issuer("1") == 1
