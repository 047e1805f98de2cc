from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from accounts.circuit import HEALTHY, CircuitSettings, CircuitState
from accounts.circuits import UNTOUCHED, CircuitChange, Circuits, SharedCircuit, restored, shared
from tests.accounts.cast import NOW

SETTINGS = CircuitSettings(failures=3, ejection=10.0, longest_ejection=60.0)
CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
TURN = UUID(int=1)
RESET = SharedCircuit(version=9, since=NOW + 5)


def fail(circuits, account, times=3, now=NOW, by=TURN):
    for _ in range(times):
        circuits.admit(account, now, by)
        circuits.failed(account, "server_error", now, now, {account}, by)


class Shelf:
    """The stored circuits: a change is taken if it is the next version."""

    def __init__(self):
        self.stored = {}

    def save(self, change):
        if self.stored.get(change.account, UNTOUCHED).version != change.circuit.version - 1:
            return False
        self.stored[change.account] = change.circuit
        return True

    def flush(self, circuits):
        for change in circuits.take_unsaved():
            if self.save(change):
                circuits.saved(change)

    def tell(self, circuits, now=NOW):
        for account, stored in self.stored.items():
            circuits.learn(account, stored, now)


class TestCircuits:
    def fail(self, circuits, account, pool, times=1, kind="server_error", now=NOW):
        changes = {}
        for _ in range(times):
            circuits.admit(account, now)
            changes |= circuits.failed(account, kind, now, now, pool)
        return changes

    def test_an_account_that_fails_among_others_is_ejected_and_that_is_told_once(self):
        circuits = Circuits(SETTINGS)
        circuits.admit(2, NOW)
        assert circuits.succeeded(2, NOW, NOW) == {}
        assert self.fail(circuits, 1, {1, 2}, times=3) == {1: OPEN}
        assert circuits.failed(1, "server_error", NOW - 1, NOW, {1, 2}) == {}
        assert repr(circuits) == "<Circuits 1 closed, 1 open | 1 unsaved>"

    def test_its_way_back_is_told_step_by_step(self):
        circuits = Circuits(SETTINGS)
        self.fail(circuits, 1, {1}, times=3)
        assert circuits.admit(1, NOW + 10) == {1: HALF_OPEN}
        circuits.released(1, NOW + 10)
        for step, told in ((11, {}), (12, {1: CLOSED})):
            circuits.admit(1, NOW + step)
            assert circuits.succeeded(1, NOW + step, NOW + step) == told

    def test_trouble_of_the_upstream_ejects_nobody(self):
        circuits = Circuits(SETTINGS)
        for _ in range(20):
            for account in (1, 2, 3):
                self.fail(circuits, account, {1, 2, 3})
        assert repr(circuits) == "<Circuits 3 closed | 0 unsaved>"

    def test_who_was_ejected_before_the_others_failed_alike_is_pardoned(self):
        circuits = Circuits(SETTINGS)
        assert self.fail(circuits, 1, {1, 2}, times=3) == {1: OPEN}
        assert self.fail(circuits, 2, {1, 2}) == {1: CLOSED}

    def test_failing_differently_is_the_accounts_own_fault(self):
        circuits = Circuits(SETTINGS)
        assert self.fail(circuits, 1, {1, 2}, times=3) == {1: OPEN}
        assert self.fail(circuits, 2, {1, 2}, times=3, kind="forbidden") == {2: OPEN}

    def test_an_account_that_nobody_asked_is_a_way_out(self):
        circuits = Circuits(SETTINGS)
        self.fail(circuits, 1, {1, 2, 3}, times=3)
        self.fail(circuits, 2, {1, 2, 3}, times=3)
        assert not circuits.get(1).admits(NOW)
        assert circuits.get(3) == HEALTHY

    def test_accounts_that_left_the_pool_are_forgotten(self):
        circuits = Circuits()
        assert repr(circuits) == "<Circuits untried | 0 unsaved>"
        circuits.admit(1, NOW)
        circuits.admit(2, NOW)
        circuits.keep({2})
        assert repr(circuits) == "<Circuits 1 closed | 0 unsaved>"


class TestSharing:
    def both(self):
        return Shelf(), Circuits(SETTINGS, "here"), Circuits(SETTINGS, "there")

    def test_only_a_change_is_told_and_who_caused_it(self):
        circuits = Circuits(SETTINGS, "here")
        fail(circuits, 1, times=2)
        assert not circuits.has_unsaved
        fail(circuits, 1, times=1)
        assert circuits.has_unsaved
        (change,) = circuits.take_unsaved()
        assert change == CircuitChange(1, shared(circuits.get(1), 1, "here"), TURN)
        assert (change.circuit.state, change.circuit.failed_as) == (OPEN, "server_error")
        assert circuits.take_unsaved() == []

    def test_another_process_takes_over_what_is_stored(self):
        shelf, here, there = self.both()
        fail(here, 1)
        shelf.flush(here)
        shelf.tell(there)
        assert there.get(1).until == here.get(1).until
        assert not there.get(1).admits(NOW)
        assert there.get(1).failed_as == "server_error"
        assert there.take_unsaved() == []

    def test_a_probe_here_keeps_the_others_from_probing(self):
        shelf, here, there = self.both()
        fail(here, 1)
        here.admit(1, NOW + 10)
        shelf.flush(here)
        shelf.tell(there)
        assert not there.get(1).admits(NOW + 11)
        here.succeeded(1, NOW + 10, NOW + 11)
        shelf.flush(here)
        shelf.tell(there)
        assert there.get(1).admits(NOW + 11)
        there.admit(1, NOW + 12)
        assert there.succeeded(1, NOW + 12, NOW + 13) == {1: CLOSED}

    def test_a_probe_that_said_nothing_is_told_too(self):
        shelf, here, there = self.both()
        fail(here, 1)
        here.admit(1, NOW + 10)
        shelf.flush(here)
        here.released(1, NOW + 10)
        shelf.flush(here)
        shelf.tell(there)
        assert there.get(1).admits(NOW + 11)

    def test_own_probes_survive_what_others_tell(self):
        shelf, here, there = self.both()
        fail(here, 1)
        shelf.flush(here)
        shelf.tell(there)
        here.admit(1, NOW + 10)
        there.admit(1, NOW + 10.1)
        shelf.flush(here)
        shelf.flush(there)
        shelf.tell(there)
        assert (there.get(1).probes, there.get(1).probed_elsewhere) == ((NOW + 10.1,), NOW + 10)
        assert there.failed(1, "server_error", NOW + 10.1, NOW + 11, {1}) == {1: OPEN}

    def test_of_two_changes_at_once_the_first_one_written_counts(self):
        shelf, here, there = self.both()
        fail(here, 1)
        fail(there, 1, now=NOW + 1)
        shelf.flush(here)
        shelf.flush(there)
        assert there.get(1).until == NOW + 11
        shelf.tell(there)
        assert there.get(1).until == NOW + 10
        assert not there.has_unsaved

    def test_what_a_process_wrote_itself_does_not_undo_what_it_has_learned_since(self):
        shelf, here, _ = self.both()
        fail(here, 1)
        (change,) = here.take_unsaved()
        shelf.save(change)
        here.admit(1, NOW + 10)
        shelf.tell(here)
        assert here.get(1).state is HALF_OPEN
        shelf.flush(here)
        assert shelf.stored[1].state is HALF_OPEN

    def test_an_operators_word_is_heard_and_an_older_one_is_not(self):
        _, here, _ = self.both()
        fail(here, 1)
        here.learn(1, RESET, NOW + 5)
        assert here.get(1).admits(NOW + 5)
        assert not here.has_unsaved
        here.learn(1, SharedCircuit(version=9, state=OPEN, until=NOW + 99), NOW + 5)
        assert here.get(1).admits(NOW + 5)

    def test_a_turn_from_before_an_ejection_was_heard_of_does_not_end_it(self):
        shelf, here, there = self.both()
        fail(here, 1)
        shelf.flush(here)
        there.admit(1, NOW + 1)
        shelf.tell(there, NOW + 2)
        assert there.succeeded(1, NOW + 1, NOW + 3) == {}
        assert there.get(1).shut_for(NOW + 3) == 7

    def test_the_last_resort_ends_an_ejection_that_was_heard_of(self):
        shelf, here, there = self.both()
        fail(here, 1)
        shelf.flush(here)
        shelf.tell(there, NOW + 2)
        there.admit(1, NOW + 3)
        assert there.succeeded(1, NOW + 3, NOW + 4) == {1: HALF_OPEN}

    def test_a_process_that_starts_again_finds_its_circuits_as_they_were(self):
        shelf, here, _ = self.both()
        fail(here, 1)
        shelf.flush(here)
        again = Circuits(SETTINGS, "here")
        shelf.tell(again)
        assert again.get(1).shut_for(NOW) == 10

    def test_what_cannot_be_stored_now_is_taken_again(self):
        circuits = Circuits(SETTINGS, "here")
        fail(circuits, 1)
        (change,) = circuits.take_unsaved()
        circuits.put_back(change)
        assert circuits.take_unsaved() == [change]

    def test_an_account_that_left_has_nothing_to_be_stored(self):
        circuits = Circuits(SETTINGS, "here")
        fail(circuits, 1)
        circuits.keep({2})
        assert not circuits.has_unsaved

    def test_an_account_that_left_while_it_was_stored_is_learned_anew_when_it_is_back(self):
        circuits = Circuits(SETTINGS, "here")
        fail(circuits, 1)
        (change,) = circuits.take_unsaved()
        circuits.keep({2})
        circuits.saved(change)
        circuits.learn(1, change.circuit, NOW)
        assert circuits.get(1).state is OPEN

    def test_a_circuit_comes_back_as_it_was_stored(self):
        circuits = Circuits(SETTINGS, "here")
        fail(circuits, 1)
        circuits.admit(1, NOW + 10)
        circuit = circuits.get(1)
        assert restored(shared(circuit, 1, "here")).probed_elsewhere == NOW + 10
        assert restored(UNTOUCHED) == HEALTHY


class SharingMachine(RuleBasedStateMachine):
    """Three processes fail, probe, write and read in any order, and an operator resets now and then."""

    def __init__(self):
        super().__init__()
        self.shelf = Shelf()
        self.now = NOW
        self.processes = [Circuits(CircuitSettings(2, 5.0, 20.0), f"process-{number}") for number in range(3)]
        self.running = []
        self.versions = []

    @rule(process=st.integers(0, 2), seconds=st.sampled_from([0.0, 1.0, 6.0, 400.0]))
    def begin(self, process, seconds):
        self.now += seconds
        circuits = self.processes[process]
        if circuits.get(1).admits(self.now):
            circuits.admit(1, self.now)
            self.running.append((process, self.now))

    @rule(which=st.integers(0, 5), what=st.sampled_from(["works", "fails", "nothing"]))
    def end(self, which, what):
        if not self.running:
            return
        process, began = self.running.pop(which % len(self.running))
        circuits = self.processes[process]
        if what == "works":
            shut = circuits.get(1).shut_for(self.now) > 0
            changed = circuits.succeeded(1, began, self.now)
            assert not (shut and changed), "a turn that was no last resort ended an ejection"
        elif what == "fails":
            circuits.failed(1, "server_error", began, self.now, {1})
        else:
            circuits.released(1, began)

    @rule(process=st.integers(0, 2))
    def write(self, process):
        self.shelf.flush(self.processes[process])

    @rule(process=st.integers(0, 2))
    def read(self, process):
        self.shelf.tell(self.processes[process], self.now)

    @rule()
    def operator_resets(self):
        version = self.shelf.stored.get(1, UNTOUCHED).version + 1
        self.shelf.stored[1] = SharedCircuit(version=version, since=self.now)

    @invariant()
    def versions_only_rise(self):
        self.versions.append(self.shelf.stored.get(1, UNTOUCHED).version)
        assert self.versions == sorted(self.versions)

    def teardown(self):
        """Once all is written and read, all agree."""
        for circuits in self.processes * 2:
            self.shelf.tell(circuits, self.now)
            self.shelf.flush(circuits)
        for circuits in self.processes:
            self.shelf.tell(circuits, self.now)
            assert not circuits.has_unsaved
            told, stored = circuits.get(1), self.shelf.stored.get(1, UNTOUCHED)
            assert (told.state, told.until, told.ejections) == (stored.state, stored.until, stored.ejections)


SharingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSharingMachine = SharingMachine.TestCase
