"""Counting and limits: what one process knows, and what several that share a database allow together."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.metering.limits import KeyLimits, Limit, Span, Unit, Window, window_of, windows_at
from gateway.metering.usage import NOTHING, Claim, Counts, Exceeded, Place, UsageBook

KEY = 1
NOW = 1_796_000_000.0
MINUTE = window_of(Span.MINUTE, NOW)


def requests(most: int, span: Span = Span.DAY) -> KeyLimits:
    return KeyLimits((Limit(Unit.REQUESTS, span, most),))


def tokens(most: int) -> KeyLimits:
    return KeyLimits((Limit(Unit.TOKENS, Span.MINUTE, most),))


def claimed(book: UsageBook, limits: KeyLimits, now: float = NOW) -> Claim:
    claim = book.claim(KEY, limits, now)
    assert isinstance(claim, Claim), claim
    return claim


def test_a_request_over_the_limit_is_refused_with_the_end_of_the_window() -> None:
    book = UsageBook()
    claimed(book, requests(1))
    limit = Limit(Unit.REQUESTS, Span.DAY, 1)
    assert book.claim(KEY, requests(1), NOW) == Exceeded(limit, 1, window_of(Span.DAY, NOW).end)


def test_of_several_limits_that_are_reached_the_one_that_lasts_is_told() -> None:
    book = UsageBook()
    limits = KeyLimits((Limit(Unit.REQUESTS, Span.MONTH, 1), Limit(Unit.REQUESTS, Span.MINUTE, 1)))
    claimed(book, limits)
    refused = book.claim(KEY, limits, NOW)
    assert isinstance(refused, Exceeded)
    assert refused.limit.span is Span.MONTH


def test_the_next_window_is_free() -> None:
    book = UsageBook()
    claimed(book, requests(1, Span.MINUTE))
    claimed(book, requests(1, Span.MINUTE), MINUTE.end)


def test_a_request_that_was_not_carried_does_not_count() -> None:
    book = UsageBook()
    book.give_back(claimed(book, requests(1)))
    book.settle(claimed(book, requests(1)), NOTHING, NOW)
    claimed(book, requests(1))


def test_tokens_count_when_the_turn_has_ended_and_in_the_window_of_then() -> None:
    book = UsageBook()
    first, second = claimed(book, tokens(10)), claimed(book, tokens(10))
    book.settle(first, Counts(1, 10, 5), NOW)
    assert isinstance(book.claim(KEY, tokens(10), NOW), Exceeded)
    book.settle(second, Counts(1, 10), MINUTE.end)
    assert book.used(KEY, MINUTE) == Counts(2, 10, 5)


def test_nothing_is_settled_or_given_back_twice() -> None:
    book = UsageBook()
    claim = claimed(book, requests(1))
    book.settle(claim, NOTHING, NOW)
    with pytest.raises(RuntimeError, match="settled"):
        book.settle(claim, NOTHING, NOW)
    with pytest.raises(RuntimeError, match="settled"):
        book.give_back(claim)


def test_an_older_reading_changes_nothing() -> None:
    book = UsageBook()
    book.learn([KEY], {(KEY, MINUTE): Counts(5)}, read_at=2.0)
    book.learn([KEY], {}, read_at=1.0)
    assert book.used(KEY, MINUTE) == Counts(5)
    book.learn([KEY], {}, read_at=3.0)
    assert book.used(KEY, MINUTE) == NOTHING


def test_of_two_turns_only_the_one_that_is_too_many_is_refused_by_what_others_told() -> None:
    book, limits = UsageBook(), requests(3)
    first, second = claimed(book, limits), claimed(book, limits)
    book.learn([KEY], {(KEY, window_of(Span.DAY, NOW)): Counts(2)}, read_at=1.0)
    assert book.confirm(first) is None
    assert book.confirm(second) == Exceeded(limits.windows[0], 2, window_of(Span.DAY, NOW).end)


@pytest.mark.parametrize(("others", "own", "over"), [(5, 4, False), (6, 4, True), (10, 0, True), (0, 10, True)])
def test_tokens_that_others_and_oneself_have_used_since_count_when_a_turn_is_looked_at_again(
    others: int, own: int, over: bool
) -> None:
    book, limits = UsageBook(), tokens(10)
    earlier, claim = claimed(book, limits), claimed(book, limits)
    book.settle(earlier, Counts(1, own), NOW)
    book.learn([KEY], {(KEY, MINUTE): Counts(0, others)}, read_at=1.0)
    assert book.confirm(claim) == (Exceeded(limits.windows[0], others + own, MINUTE.end) if over else None)


@pytest.mark.parametrize("first", [Unit.REQUESTS, Unit.TOKENS])
def test_every_limit_is_looked_at_again(first: Unit) -> None:
    book = UsageBook()
    day, minute = Limit(first, Span.DAY, 100), Limit(Unit.TOKENS, Span.MINUTE, 10)
    claim = claimed(book, KeyLimits((day, minute)))
    book.learn([KEY], {(KEY, MINUTE): Counts(1, 10)}, read_at=1.0)
    assert book.confirm(claim) == Exceeded(minute, 10, MINUTE.end)


def test_what_could_not_be_written_down_is_taken_again() -> None:
    book = UsageBook()
    claimed(book, requests(9))
    taken = book.take_changed(NOW)
    assert book.take_changed(NOW) == {}
    book.put_back(taken)
    assert book.take_changed(NOW) == taken == {(KEY, window): Counts(1) for window in windows_at(NOW)}


def test_a_request_of_a_window_that_is_forgotten_is_taken_back_from_the_others_alone() -> None:
    book = UsageBook()
    claim = claimed(book, requests(9))
    book.take_changed(NOW)
    book.take_changed(NOW + 600)
    book.give_back(claim)
    taken = book.take_changed(NOW + 600)
    assert {window.span for _, window in taken} == {Span.DAY, Span.MONTH}
    assert set(taken.values()) == {NOTHING}


def test_windows_that_are_long_over_take_no_memory() -> None:
    book = UsageBook()
    for minute in range(1000):
        claimed(book, requests(10_000), NOW + 60 * minute)
        book.take_changed(NOW + 60 * minute)
    assert len(book._own) < 10


class Replicas(RuleBasedStateMachine):
    """Two processes over one database, in every order of claiming, writing down, ending and looking.

    Writing is a transaction as PostgreSQL has it: it writes, reads what others have committed, and commits later.
    """

    MOST_REQUESTS, MOST_TOKENS = 5, 100
    LIMITS = KeyLimits((Limit(Unit.REQUESTS, Span.DAY, MOST_REQUESTS), Limit(Unit.TOKENS, Span.DAY, MOST_TOKENS)))
    DAY: Window = window_of(Span.DAY, NOW)

    def __init__(self) -> None:
        super().__init__()
        self.books = [UsageBook(), UsageBook()]
        self.committed: list[dict[Place, Counts]] = [{}, {}]
        self.in_transaction: list[tuple[dict[Place, Counts], dict[Place, Counts], list[Claim]] | None] = [None, None]
        self.claims: list[list[Claim]] = [[], []]
        self.sent: list[list[Claim]] = [[], []]
        self.at_once = 0
        self.clock = 0.0
        self.ran = 0
        self.spent = 0

    def _tick(self) -> float:
        self.clock += 1
        return self.clock

    @rule(which=st.integers(0, 1))
    def claim(self, which: int) -> None:
        claim = self.books[which].claim(KEY, self.LIMITS, NOW)
        if isinstance(claim, Claim):
            self.claims[which].append(claim)

    @rule(which=st.integers(0, 1))
    def begin_writing(self, which: int) -> None:
        if self.in_transaction[which] is None and self.claims[which]:
            opening, self.claims[which] = self.claims[which], []
            written = self.books[which].take_changed(NOW)
            self.in_transaction[which] = (written, dict(self.committed[1 - which]), opening)

    @rule(which=st.integers(0, 1))
    def commit_and_send(self, which: int) -> None:
        transaction = self.in_transaction[which]
        if transaction is None:
            return
        written, read, opening = transaction
        self.in_transaction[which] = None
        self.committed[which] |= written
        book = self.books[which]
        book.learn([KEY], read, self._tick())
        for claim in opening:
            if book.confirm(claim) is None:
                self.sent[which].append(claim)
                self.ran += 1
            else:
                book.give_back(claim)
        self.at_once = max(self.at_once, sum(len(sent) for sent in self.sent) + self._opening())

    def _opening(self) -> int:
        return sum(len(transaction[2]) for transaction in self.in_transaction if transaction is not None)

    @precondition(lambda self: any(self.sent))
    @rule(which=st.integers(0, 1), used=st.integers(1, 40))
    def end(self, which: int, used: int) -> None:
        """A turn ends, and is in flight until that is written down."""
        if self.sent[which] and self.in_transaction[which] is None:
            claim = self.sent[which].pop()
            self.books[which].settle(claim, Counts(1, used), NOW)
            self.spent += used
            self.committed[which] |= self.books[which].take_changed(NOW)

    @invariant()
    def a_limit_is_overrun_by_no_more_than_what_was_in_flight(self) -> None:
        assert self.ran <= self.MOST_REQUESTS + self.at_once
        assert self.spent < self.MOST_TOKENS + 40 * max(1, self.at_once)


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
