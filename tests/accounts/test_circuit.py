from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from accounts.circuit import (
    ALIKE_WINDOW,
    HEALTHY,
    PROBE_PATIENCE,
    TRANSITIONS,
    WINDOW,
    Circuit,
    CircuitSettings,
    CircuitState,
    IllegalStep,
    Step,
    admit,
    advance,
    common_failure,
    failed,
    least_bad,
    pardoned,
    released,
    reset,
    succeeded,
)
from accounts.circuit import opened as opened_by_hand
from tests.accounts.cast import NOW

SETTINGS = CircuitSettings(failures=3, ejection=10.0, longest_ejection=60.0)
CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN


def turn(circuit, works, now, kind="server_error"):
    """A short turn: admitted and reported at `now`."""
    circuit = admit(circuit, now)
    return succeeded(circuit, now, now, SETTINGS) if works else failed(circuit, kind, now, now, SETTINGS)


def turns(circuit, outcomes, now=NOW):
    for works in outcomes:
        circuit = turn(circuit, works, now)
    return circuit


def opened(now=NOW):
    return turns(HEALTHY, [False] * 3, now)


class TestTable:
    def test_every_pair_is_either_in_the_table_or_refused_by_name(self):
        for state, step in product(CircuitState, Step):
            if (state, step) in TRANSITIONS:
                assert advance(state, step) is TRANSITIONS[state, step]
            else:
                with pytest.raises(IllegalStep, match=f"that is {state} cannot {step}"):
                    advance(state, step)

    @pytest.mark.parametrize(
        "values",
        [
            {"until": NOW},
            {"state": OPEN},
            {"state": HALF_OPEN, "until": NOW},
            {"probes": (NOW,)},
            {"state": OPEN, "until": NOW, "good_probes": 1},
        ],
    )
    def test_a_circuit_that_cannot_be_is_refused(self, values):
        with pytest.raises(ValueError, match="A circuit that is"):
            Circuit(**values)

    @pytest.mark.parametrize(
        "values",
        [
            {"failures": 0},
            {"ejection": 0.0},
            {"ejection": 20.0, "longest_ejection": 10.0},
            {"longest_ejection": float("inf")},
            {"ejection": float("nan")},
        ],
    )
    def test_settings_that_cannot_work_are_refused(self, values):
        with pytest.raises(ValueError, match="cannot be"):
            CircuitSettings(**values)


class TestTripping:
    def test_failures_in_a_row_eject_the_account(self):
        circuit = turns(HEALTHY, [False] * 2)
        assert circuit.admits(NOW)
        circuit = turn(circuit, False, NOW)
        assert (circuit.state, circuit.until) == (OPEN, NOW + 10)
        assert not circuit.admits(NOW)

    def test_a_success_between_them_starts_the_count_again(self):
        assert turns(HEALTHY, [False, False, True, False, False]).state is CLOSED

    def test_failures_in_a_row_count_however_slowly_they_come(self):
        circuit = HEALTHY
        for number in range(3):
            circuit = turn(circuit, False, NOW + number * 10 * WINDOW)
        assert circuit.state is OPEN

    def test_half_of_the_recent_outcomes_failing_ejects_it_although_none_are_in_a_row(self):
        circuit = turns(HEALTHY, [False, True] * 5)
        assert circuit.state is CLOSED
        assert turn(circuit, False, NOW).state is OPEN

    def test_failures_that_are_older_than_the_window_do_not_count_together(self):
        circuit = turns(HEALTHY, [False, True] * 5)
        assert turn(circuit, False, NOW + WINDOW).state is CLOSED

    def test_a_few_failures_among_many_successes_do_not_eject_it(self):
        circuit = turns(HEALTHY, [False, True, True] * 40)
        assert circuit.state is CLOSED
        assert len(circuit.outcomes) == 12

    def test_a_single_failure_is_enough_where_that_is_set(self):
        strict = CircuitSettings(failures=1)
        assert failed(HEALTHY, "server_error", NOW, NOW, strict).state is OPEN

    def test_turns_that_were_under_way_when_it_opened_change_nothing(self):
        circuit = opened(NOW + 5)
        late = failed(circuit, "server_error", NOW, NOW + 6, SETTINGS)
        assert (late.state, late.until, late.ejections) == (OPEN, NOW + 15, 1)
        assert succeeded(circuit, NOW, NOW + 6, SETTINGS).state is OPEN

    def test_turns_from_before_it_closed_change_nothing(self):
        circuit = turn(turn(opened(), True, NOW + 10), True, NOW + 11)
        circuit = turns(circuit, [False, False], NOW + 12)
        assert failed(circuit, "server_error", NOW, NOW + 12, SETTINGS).state is CLOSED
        assert turn(succeeded(circuit, NOW, NOW + 12, SETTINGS), False, NOW + 12).state is OPEN


class TestEjection:
    def test_each_ejection_in_a_row_is_longer_up_to_the_longest(self):
        circuit, lengths = opened(), []
        for _ in range(8):
            lengths.append(circuit.until - circuit.since)
            circuit = turn(circuit, False, circuit.until)
        assert lengths == [10, 20, 30, 40, 50, 60, 60, 60]

    def test_no_ejection_is_longer_than_the_longest_although_the_next_step_would_be(self):
        uneven = CircuitSettings(failures=1, ejection=25.0, longest_ejection=60.0)
        circuit, lengths = failed(HEALTHY, "server_error", NOW, NOW, uneven), []
        for _ in range(4):
            lengths.append(circuit.until - circuit.since)
            now = circuit.until
            circuit = failed(admit(circuit, now), "server_error", now, now, uneven)
        assert lengths == [25, 50, 60, 60]

    def test_good_time_makes_the_next_one_shorter(self):
        circuit = opened()
        for _ in range(3):
            circuit = turn(circuit, False, circuit.until)
        assert circuit.ejections == 4
        closed = turns(circuit, [True, True], circuit.until)
        soon = turns(closed, [False] * 3, closed.since + 59)
        assert soon.ejections == 5
        later = turns(closed, [False] * 3, closed.since + 2 * 60)
        assert later.ejections == 3
        much_later = turns(closed, [False] * 3, closed.since + 100 * 60)
        assert much_later.until - much_later.since == 10

    def test_bad_years_are_forgotten_after_as_many_good_hours_as_anybody_can_wait_for(self):
        circuit = opened()
        for _ in range(1000):
            circuit = turn(circuit, False, circuit.until)
        assert circuit.ejections == 6

    def test_it_says_how_long_it_still_lasts(self):
        assert opened().shut_for(NOW + 4) == 6
        assert opened().shut_for(NOW + 11) == 0
        assert HEALTHY.shut_for(NOW) == 0


class TestProbes:
    def test_one_probe_at_a_time_is_let_in_after_the_ejection(self):
        circuit = opened()
        assert not circuit.admits(NOW + 9.9)
        assert circuit.admits(NOW + 10)
        circuit = admit(circuit, NOW + 10)
        assert circuit.state is HALF_OPEN
        assert not circuit.admits(NOW + 11)

    def test_two_good_probes_close_it(self):
        circuit = turn(opened(), True, NOW + 10)
        assert circuit.state is HALF_OPEN
        assert circuit.admits(NOW + 11)
        assert turn(circuit, True, NOW + 11).state is CLOSED

    def test_a_failed_probe_ejects_it_again_for_longer(self):
        circuit = turn(turn(opened(), True, NOW + 10), False, NOW + 11)
        assert (circuit.state, circuit.until) == (OPEN, NOW + 11 + 20)
        assert turn(circuit, True, NOW + 31).state is HALF_OPEN

    def test_a_probe_that_says_nothing_makes_room_for_the_next(self):
        circuit = admit(opened(), NOW + 10)
        circuit = released(circuit, NOW + 10)
        assert circuit.state is HALF_OPEN
        assert circuit.admits(NOW + 11)

    def test_a_probe_that_never_reports_does_not_keep_it_shut_for_ever(self):
        circuit = admit(opened(), NOW + 10)
        assert not circuit.admits(NOW + 10 + PROBE_PATIENCE - 1)
        assert circuit.admits(NOW + 10 + PROBE_PATIENCE)
        circuit = admit(circuit, NOW + 10 + PROBE_PATIENCE)
        assert circuit.probes == (NOW + 10 + PROBE_PATIENCE,)

    def test_turns_that_are_no_probes_say_nothing(self):
        circuit = admit(opened(), NOW + 10)
        assert released(circuit, NOW) == circuit
        assert failed(circuit, "server_error", NOW, NOW + 11, SETTINGS).state is HALF_OPEN
        assert succeeded(circuit, NOW, NOW + 11, SETTINGS).good_probes == 0


class TestLastResort:
    """Turns that are tried although the ejection is not over."""

    def test_its_success_is_a_good_probe_before_its_time(self):
        circuit = turn(opened(), True, NOW + 1)
        assert (circuit.state, circuit.good_probes, circuit.until) == (HALF_OPEN, 1, None)
        assert turn(circuit, True, NOW + 2).state is CLOSED

    @pytest.mark.parametrize(
        ("ejections", "tries"),
        [
            (1, [1.0]),
            (1, [0.5, 1.0]),
            (1, [1.0, 2.0, 3.0, 9.9]),
            (3, [1.0, 2.0]),
            (6, [1.0, 30.0, 59.0]),
        ],
    )
    def test_its_failures_make_the_ejection_no_longer(self, ejections, tries):
        circuit = opened()
        for _ in range(ejections - 1):
            circuit = turn(circuit, False, circuit.until)
        ejected = circuit
        for seconds in tries:
            circuit = turn(circuit, False, ejected.since + seconds)
        assert (circuit.state, circuit.until, circuit.ejections) == (OPEN, ejected.until, ejections)
        assert circuit.reported_at == ejected.since + tries[-1]
        probed = turn(circuit, False, circuit.until)
        assert probed.ejections == min(ejections + 1, 6)

    def test_failures_that_overlap_and_are_told_late_make_it_no_longer_either(self):
        circuit = admit(admit(opened(), NOW + 1), NOW + 2)
        circuit = admit(circuit, NOW + 10)
        for began in (NOW + 1, NOW + 2):
            circuit = failed(circuit, "server_error", began, NOW + 11, SETTINGS)
        assert (circuit.state, circuit.probes, circuit.ejections) == (HALF_OPEN, (NOW + 10,), 1)

    def test_in_a_circuit_under_probe_it_is_a_probe_too(self):
        circuit = admit(admit(opened(), NOW + 10), NOW + 11)
        assert circuit.probes == (NOW + 10, NOW + 11)
        circuit = succeeded(circuit, NOW + 11, NOW + 12, SETTINGS)
        assert not circuit.admits(NOW + 12)
        assert succeeded(circuit, NOW + 10, NOW + 12, SETTINGS).state is CLOSED


class TestPool:
    def test_the_least_bad_account_is_under_probe_or_the_first_to_be_let_in(self):
        once, twice = opened(), turn(opened(), False, NOW + 10)
        probed = admit(opened(), NOW + 10)
        assert least_bad({1: twice, 2: once}) == 2
        assert least_bad({1: twice, 2: once, 3: probed}) == 3
        assert least_bad({2: once, 1: once}) == 1

    def test_who_has_failed_since_its_ejection_comes_after_those_that_have_not(self):
        soon, late = opened(), opened(NOW + 5)
        assert least_bad({1: soon, 2: late}) == 1
        soon = turn(soon, False, NOW + 6)
        assert least_bad({1: soon, 2: late}) == 2
        late = turn(late, False, NOW + 7)
        assert least_bad({1: soon, 2: late}) == 1
        assert least_bad({1: succeeded(soon, NOW, NOW + 8, SETTINGS), 2: opened(NOW + 6)}) == 1

    def test_of_no_accounts_none_is_the_least_bad(self):
        with pytest.raises(ValueError, match="no account at all"):
            least_bad({})

    def test_accounts_fail_alike_when_the_newest_word_of_all_is_the_same_failure(self):
        bad = turn(HEALTHY, False, NOW)
        assert common_failure([bad, bad], NOW) == "server_error"
        assert common_failure([bad, turn(HEALTHY, False, NOW, "no_start")], NOW) is None
        assert common_failure([bad, turn(bad, True, NOW)], NOW) is None
        assert common_failure([bad, HEALTHY], NOW) is None
        assert common_failure([bad, bad], NOW + ALIKE_WINDOW + 1) is None

    def test_one_account_alone_does_not_fail_alike(self):
        assert common_failure([turn(HEALTHY, False, NOW)], NOW) is None
        assert common_failure([], NOW) is None

    def test_working_accounts_are_not_failing_alike(self):
        works = turn(HEALTHY, True, NOW)
        assert common_failure([works, works], NOW) is None

    def test_a_pardon_takes_back_the_ejection_and_what_led_to_it(self):
        circuit = pardoned(turn(opened(), False, NOW + 10), NOW + 11)
        assert (circuit.state, circuit.ejections, circuit.consecutive) == (CLOSED, 1, 0)
        assert pardoned(admit(opened(), NOW + 10), NOW + 11).state is CLOSED
        assert pardoned(turns(HEALTHY, [False] * 2), NOW) == replace(HEALTHY, reported_at=NOW, failed_as="server_error")


class TestByHand:
    def test_somebody_may_open_it_for_as_long_as_any_ejection_lasts(self):
        circuit = opened_by_hand(turn(HEALTHY, False, NOW), NOW, SETTINGS)
        assert (circuit.state, circuit.until, circuit.failed_as) == (OPEN, NOW + 60, None)
        assert opened_by_hand(admit(opened(), NOW + 10), NOW + 11, SETTINGS).until == NOW + 71

    def test_one_that_is_open_cannot_be_opened(self):
        with pytest.raises(IllegalStep):
            opened_by_hand(opened(), NOW, SETTINGS)

    def test_a_reset_forgets_everything(self):
        for circuit in (opened(), admit(opened(), NOW + 10)):
            assert reset(circuit, NOW + 11) == Circuit(since=NOW + 11)

    def test_one_that_is_closed_cannot_be_reset(self):
        with pytest.raises(IllegalStep):
            reset(HEALTHY, NOW)


class TestElsewhere:
    def test_a_probe_of_another_process_keeps_it_shut_until_it_is_taken_to_be_lost(self):
        circuit = Circuit(state=HALF_OPEN, probed_elsewhere=NOW)
        assert not circuit.admits(NOW + PROBE_PATIENCE - 1)
        assert circuit.admits(NOW + PROBE_PATIENCE)

    def test_it_is_forgotten_with_the_next_change(self):
        circuit = admit(Circuit(state=HALF_OPEN, probed_elsewhere=NOW, good_probes=1), NOW + 1)
        for after in (
            succeeded(circuit, NOW + 1, NOW + 2, SETTINGS),
            failed(circuit, "server_error", NOW + 1, NOW + 2, SETTINGS),
            pardoned(circuit, NOW + 2),
        ):
            assert after.state is not HALF_OPEN
            assert after.probed_elsewhere is None

    def test_a_closed_one_has_none(self):
        with pytest.raises(ValueError, match="cannot have probes"):
            Circuit(probed_elsewhere=NOW)


class CircuitMachine(RuleBasedStateMachine):
    """Turns come and go in any order; what must hold is written down without the code's own means."""

    @initialize(failures=st.integers(1, 4), ejection=st.sampled_from([1.0, 7.0]))
    def begin(self, failures, ejection):
        self.settings = CircuitSettings(failures, ejection, 30.0)
        self.circuit = HEALTHY
        self.now = NOW
        self.running = []
        self.good_since_open = 0
        self.states = [CLOSED]

    def change(self, circuit):
        if circuit.state is not self.circuit.state:
            self.states.append(circuit.state)
        if circuit.state is OPEN:
            self.good_since_open = 0
        self.circuit = circuit

    def take(self, data):
        return self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 40.0, 400.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.circuit.admits(self.now))
    @rule()
    def a_turn_is_given_to_it(self):
        probes = [began for began in self.running if began >= self.circuit.since]
        if self.circuit.state is HALF_OPEN:
            assert all(self.now - began >= PROBE_PATIENCE for began in probes)
        self.let_in()

    @precondition(lambda self: not self.circuit.admits(self.now))
    @rule()
    def it_is_the_last_resort(self):
        self.let_in()

    def let_in(self):
        self.running.append(self.now)
        self.change(admit(self.circuit, self.now))
        # Two turns never begin in the same instant here, so that each can be told apart.
        self.now += 0.001

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_turn_succeeds(self, data):
        before, began = self.circuit, self.take(data)
        last_resort = before.state is OPEN and began > before.since
        good = began in before.probes or last_resort
        self.change(succeeded(before, began, self.now, self.settings))
        self.good_since_open += good
        assert before.state is not OPEN or self.circuit.state is (HALF_OPEN if last_resort else OPEN)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_turn_fails(self, data):
        before, began = self.circuit, self.take(data)
        self.change(failed(self.circuit, "server_error", began, self.now, self.settings))
        if began < before.since:
            assert self.circuit.state is before.state
        if before.state is OPEN:
            assert (self.circuit.until, self.circuit.ejections) == (before.until, before.ejections)
        assert self.circuit.state in (before.state, OPEN)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_turn_says_nothing(self, data):
        before = self.circuit
        self.change(released(self.circuit, self.take(data)))
        assert (self.circuit.state, self.circuit.failed_as) == (before.state, before.failed_as)

    @rule()
    def it_is_pardoned(self):
        self.good_since_open = 2
        self.change(pardoned(self.circuit, self.now))
        assert self.circuit.admits(self.now)

    @invariant()
    def every_change_is_in_the_table(self):
        allowed = {(before, after) for (before, _), after in TRANSITIONS.items()}
        assert set(pairwise(self.states)) <= allowed

    @invariant()
    def it_closes_after_two_good_probes_only(self):
        if self.circuit.state is CLOSED and len(self.states) > 1:
            assert self.good_since_open >= 2

    @invariant()
    def it_is_never_shut_for_longer_than_allowed(self):
        assert self.circuit.shut_for(self.now) <= self.settings.longest_ejection
        assert self.circuit.admits(self.now + max(self.settings.longest_ejection, PROBE_PATIENCE))

    @invariant()
    def it_remembers_no_more_than_it_needs(self):
        assert len(self.circuit.outcomes) <= 4 * self.settings.failures
        assert self.circuit.consecutive < self.settings.failures


TestCircuitMachine = CircuitMachine.TestCase
TestCircuitMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
