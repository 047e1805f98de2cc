from itertools import product

import pytest

from accounts.states import TRANSITIONS, IllegalTransition, State, What, state_at, transition


def test_a_limit_counts_until_its_end_and_not_at_it():
    assert state_at(State.LIMITED, 100.0, 99.9) is State.LIMITED
    assert state_at(State.LIMITED, 100.0, 100.0) is State.ACTIVE


def test_a_limit_without_an_end_lasts():
    assert state_at(State.LIMITED, None, 1e12) is State.LIMITED


@pytest.mark.parametrize("state", [State.PAUSED, State.NEEDS_LOGIN, State.DISABLED, State.ACTIVE])
def test_no_other_state_ends_by_itself(state):
    assert state_at(state, 100.0, 200.0) is state


def test_every_pair_of_states_is_either_in_the_table_or_refused_by_name():
    for before, after in product(State, State):
        if (before, after) in TRANSITIONS:
            assert transition(before, after) is TRANSITIONS[before, after]
        else:
            with pytest.raises(IllegalTransition, match=f"that is {before} cannot become {after}"):
                transition(before, after)


def test_what_the_operator_took_out_comes_back_by_the_operator_alone():
    ways_back = {
        (before, what) for (before, _), what in TRANSITIONS.items() if before in (State.PAUSED, State.DISABLED)
    }
    assert ways_back == {
        (State.PAUSED, What.RESUMED),
        (State.PAUSED, What.DISABLED),
        (State.DISABLED, What.ENABLED),
    }


def test_every_state_can_be_left_and_reached():
    assert {before for before, _ in TRANSITIONS} == {after for _, after in TRANSITIONS} == set(State)
