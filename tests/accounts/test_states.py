import pytest

from accounts.states import State, state_at


def test_a_limit_counts_until_its_end_and_not_at_it():
    assert state_at(State.LIMITED, 100.0, 99.9) is State.LIMITED
    assert state_at(State.LIMITED, 100.0, 100.0) is State.ACTIVE


def test_a_limit_without_an_end_lasts():
    assert state_at(State.LIMITED, None, 1e12) is State.LIMITED


@pytest.mark.parametrize("state", [State.PAUSED, State.NEEDS_LOGIN, State.DISABLED, State.ACTIVE])
def test_no_other_state_ends_by_itself(state):
    assert state_at(state, 100.0, 200.0) is state
