"""The arithmetic of admission against a model that is too simple to be wrong."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from gateway.turns.admission import AdmissionBook, Limits, State, Ticket, Verdict

ADA, BO, CY = 1, 2, 3


def book(turns: int = 2, size: int = 100) -> AdmissionBook:
    return AdmissionBook(Limits(turns, size))


def asked(
    under_test: AdmissionBook, client: int, size: int = 1, at: float = 0.0, key_limit: int | None = None
) -> Ticket:
    ticket = Ticket(client, size, at, key_limit)
    under_test.ask(ticket)
    return ticket


def test_places_are_granted_until_they_run_out_and_then_queued() -> None:
    full = book(turns=2)
    assert [full.ask(Ticket(ADA, 1, 0.0)) for _ in range(4)] == ["granted", "granted", "queued", "queued"]
    assert full.ask(Ticket(BO, 1, 0.0)) is Verdict.FULL


def test_bytes_run_out_like_places() -> None:
    full = book(turns=10, size=100)
    assert full.ask(Ticket(ADA, 60, 0.0)) is Verdict.GRANTED
    assert full.ask(Ticket(BO, 60, 0.0)) is Verdict.QUEUED
    assert full.ask(Ticket(CY, 60, 0.0)) is Verdict.FULL


@pytest.mark.parametrize(("size", "verdict"), [(100, Verdict.QUEUED), (101, Verdict.NEVER)])
def test_only_what_can_never_fit_is_refused_for_good(size: int, verdict: Verdict) -> None:
    full = book(size=100)
    asked(full, ADA, 50)
    assert full.ask(Ticket(BO, size, 0.0)) is verdict


def test_a_freed_place_goes_to_who_waits_before_any_newcomer() -> None:
    full = book(turns=1)
    first, waiting = asked(full, ADA), asked(full, BO)
    assert full.give_back(first, 1.0) == [waiting]
    assert full.ask(Ticket(CY, 1, 1.0)) is Verdict.QUEUED


def test_who_leaves_the_queue_makes_way_for_who_stood_behind() -> None:
    full = book(turns=2, size=100)
    asked(full, ADA, 50)
    large, small = asked(full, BO, 60), asked(full, BO, 40)
    assert (large.state, small.state) == (State.WAITING, State.WAITING)
    assert full.give_back(large, 1.0) == [small]


def test_a_key_at_its_own_limit_keeps_nobody_else_waiting() -> None:
    roomy = book(turns=10)
    asked(roomy, ADA, key_limit=1)
    assert asked(roomy, ADA, key_limit=1).state is State.WAITING
    assert asked(roomy, BO, key_limit=1).state is State.HELD


@pytest.mark.parametrize("state", [State.HELD, State.WAITING])
def test_giving_back_twice_is_an_error(state: State) -> None:
    full = book(turns=1)
    ticket = {each.state: each for each in (asked(full, ADA), asked(full, BO))}[state]
    full.give_back(ticket, 1.0)
    with pytest.raises(RuntimeError, match="twice"):
        full.give_back(ticket, 2.0)


def test_a_ticket_that_was_given_back_cannot_grow() -> None:
    full = book()
    ticket = asked(full, ADA)
    full.give_back(ticket, 1.0)
    with pytest.raises(RuntimeError, match="cannot grow"):
        full.grow(ticket, 5)


def test_a_body_that_grows_beyond_what_is_free_keeps_what_it_had() -> None:
    full = book(size=100)
    asked(full, ADA, 60)
    ticket = asked(full, BO, 10)
    assert full.grow(ticket, 41) is Verdict.FULL
    assert full.grow(ticket, 101) is Verdict.NEVER
    assert (ticket.size, full.held_bytes) == (10, 70)
    assert full.grow(ticket, 40) is Verdict.GRANTED
    assert (ticket.size, full.held_bytes) == (40, 100)


def test_a_body_that_grows_while_it_waits_is_charged_to_the_queue() -> None:
    full = book(turns=2, size=100)
    asked(full, ADA), asked(full, ADA)
    waiting = asked(full, BO, 10)
    asked(full, CY, 80)
    assert full.grow(waiting, 21) is Verdict.FULL
    assert full.grow(waiting, 20) is Verdict.GRANTED
    assert (waiting.size, full.held_bytes) == (20, 2)


def test_a_body_that_turned_out_smaller_keeps_its_charge() -> None:
    full = book(size=100)
    ticket = asked(full, ADA, 60)
    assert full.grow(ticket, 10) is Verdict.GRANTED
    assert full.held_bytes == 60


def test_the_time_to_come_back_follows_how_long_places_are_held_and_how_many_wait() -> None:
    full = book(turns=1, size=1000)
    assert full.retry_after() == 1
    now = 0.0
    for _ in range(100):
        ticket = asked(full, ADA, at=now)
        now += 20.0
        full.give_back(ticket, now)
    asked(full, ADA, at=now)
    assert full.retry_after() == 20
    asked(full, BO, at=now)
    assert full.retry_after() == 40


def test_turns_in_other_processes_count_against_the_limit_of_a_key() -> None:
    roomy = book(turns=10)
    roomy.learn({ADA: 1}, [ADA], 0.0)
    waiting = asked(roomy, ADA, key_limit=1)
    assert (waiting.state, roomy.held_by(ADA), roomy.waits_for_itself(waiting)) == (State.WAITING, 1, True)
    assert not roomy.waits_for_itself(asked(roomy, BO))
    assert roomy.learn({}, [ADA], 1.0) == [waiting]
    assert roomy.held_by(ADA) == 1


def test_of_turns_that_began_at_once_in_several_processes_the_last_ones_are_too_many() -> None:
    roomy = book(turns=10)
    first, second = asked(roomy, ADA, key_limit=2), asked(roomy, ADA, key_limit=2)
    free = asked(roomy, ADA)
    roomy.learn({ADA: 1}, [ADA], 0.0)
    assert [roomy.is_over_key_limit(each) for each in (first, second, free)] == [False, True, False]
    roomy.give_back(first, 1.0)
    roomy.give_back(free, 1.0)
    assert not roomy.is_over_key_limit(second)


def test_a_larger_part_of_the_limits_lets_those_in_who_wait() -> None:
    shared = book(turns=2)
    assert shared.allow(Limits(1, 100), 0.0) == []
    asked(shared, ADA)
    waiting = asked(shared, BO)
    assert waiting.state is State.WAITING
    assert shared.allow(Limits(2, 100), 1.0) == [waiting]


@pytest.mark.parametrize(("held_for", "told"), [(0.0, 1), (1000.0, 60)])
def test_the_usual_time_of_a_place_is_told_within_what_clients_wait(held_for: float, told: int) -> None:
    full = book()
    for _ in range(30):
        full.give_back(asked(full, ADA), held_for)
    assert full.mean_hold() == told


def test_the_book_says_what_it_holds() -> None:
    full = book(turns=1)
    asked(full, ADA, 7), asked(full, BO, 9)
    assert repr(full) == "<AdmissionBook 1 held (7 bytes), 1 waiting>"
    assert (full.held, full.waiting) == (1, 1)


class Admission(RuleBasedStateMachine):
    """Any clients in any order; the model is the list of who holds and the lists of who waits."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.held: set[Ticket] = set()
        self.lines: defaultdict[int, list[Ticket]] = defaultdict(list)
        self.given_back: list[Ticket] = []
        # For each ticket that waits: how often each other client was served since it came to the head of its line.
        self.passed: dict[Ticket, Counter[int]] = {}

    @initialize(turns=st.integers(1, 4), size=st.integers(10, 40), one_size=st.booleans(), limit=st.none() | st.just(1))
    def open(self, turns: int, size: int, one_size: bool, limit: int | None) -> None:
        self.limits = Limits(turns, size)
        self.book = AdmissionBook(self.limits)
        self.one_size = one_size
        self.key_limit = limit

    def fits(self, ticket: Ticket) -> bool:
        room = len(self.held) < self.limits.turns and self.held_bytes() + ticket.size <= self.limits.size
        of_client = sum(1 for held in self.held if held.client == ticket.client)
        return room and (ticket.key_limit is None or of_client < ticket.key_limit)

    def held_bytes(self) -> int:
        return sum(ticket.size for ticket in self.held)

    def waiting(self) -> list[Ticket]:
        return [ticket for line in self.lines.values() for ticket in line]

    def granted(self, ticket: Ticket) -> None:
        """The book says that a waiting ticket is granted now."""
        line = self.lines[ticket.client]
        assert line[0] is ticket, "a ticket overtook an older one of its client"
        assert self.fits(ticket), "a ticket was granted that does not fit"
        del line[0]
        self.held.add(ticket)
        self.passed.pop(ticket, None)
        for other in self.waiting():
            if other.client != ticket.client and self.lines[other.client][0] is other:
                self.passed.setdefault(other, Counter())[ticket.client] += 1

    @rule(target=tickets, client=st.integers(1, 4), size=st.integers(1, 45))
    def ask(self, client: int, size: int) -> Ticket:
        ticket = Ticket(client, 1 if self.one_size else size, self.now, self.key_limit)
        crowd = len(self.waiting()), sum(waiting.size for waiting in self.waiting())
        no_queue = crowd[0] >= self.limits.turns or crowd[1] + ticket.size > self.limits.size
        fits = self.fits(ticket) and not self.lines[client]
        verdict = self.book.ask(ticket)
        assert (verdict is Verdict.NEVER) == (ticket.size > self.limits.size)
        if verdict is Verdict.FULL:
            assert no_queue
        elif verdict is Verdict.QUEUED:
            assert not fits
            assert not no_queue
            self.lines[client].append(ticket)
        elif verdict is Verdict.GRANTED:
            assert fits, "a newcomer was granted a place that it does not fit, or before an older one of its client"
            self.held.add(ticket)
        return ticket

    @rule(ticket=consumes(tickets))
    def give_back(self, ticket: Ticket) -> None:
        if ticket in self.held:
            self.held.discard(ticket)
        elif ticket in self.lines[ticket.client]:
            self.lines[ticket.client].remove(ticket)
        else:
            return  # it was refused, so there is nothing to give back
        self.given_back.append(ticket)
        for granted in self.book.give_back(ticket, self.now):
            self.granted(granted)

    @rule(ticket=tickets, more=st.integers(0, 45))
    def grow(self, ticket: Ticket, more: int) -> None:
        holds, waits = ticket in self.held, ticket in self.lines[ticket.client]
        if self.one_size or not (holds or waits):
            return
        before = ticket.size
        charged = self.held_bytes() if holds else sum(waiting.size for waiting in self.waiting())
        verdict = self.book.grow(ticket, before + more)
        fits = charged + more <= self.limits.size
        assert (verdict is Verdict.GRANTED) == (more == 0 or fits)
        assert ticket.size == (before + more if verdict is Verdict.GRANTED else before)
        if verdict is Verdict.NEVER:
            assert before + more > self.limits.size

    @rule(seconds=st.floats(0, 500))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_held_beyond_the_limits(self) -> None:
        assert self.book.held <= self.limits.turns
        assert self.book.held_bytes <= self.limits.size

    @invariant()
    def the_sums_are_those_of_the_tickets(self) -> None:
        assert self.book.held == len(self.held)
        assert self.book.held_bytes == self.held_bytes()
        assert self.book.waiting == len(self.waiting())

    @invariant()
    def nobody_waits_who_could_come_in(self) -> None:
        assert not any(self.fits(line[0]) for line in self.lines.values() if line)

    @invariant()
    def who_waits_for_one_place_lets_each_other_client_pass_once(self) -> None:
        if self.one_size and self.key_limit is None:
            assert all(count <= 1 for counts in self.passed.values() for count in counts.values())

    @invariant()
    def the_time_to_come_back_is_one_that_clients_wait(self) -> None:
        assert 1 <= self.book.retry_after() <= 60

    @invariant()
    def what_was_given_back_stays_so(self) -> None:
        assert all(ticket.state is State.GIVEN_BACK for ticket in self.given_back)


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
