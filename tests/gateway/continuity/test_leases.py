"""Leases: never two replicas that may act as owner of one conversation, never an anchor by one that was fenced."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.continuity import leases
from gateway.continuity.leases import (
    TRANSITIONS,
    Heartbeat,
    Holdings,
    Lease,
    LeaseKey,
    LeaseState,
    LeaseStep,
    Tenure,
    lane_session,
    lease_key,
)

TTL = 30.0
ADA, BO = uuid.UUID(int=1), uuid.UUID(int=2)
KEY = LeaseKey(1, "thread-id:abc")


def rows(state: LeaseState) -> tuple[Lease, bool]:
    """A lease in `state` as Ada left it, and whether its owner is alive."""
    if state is LeaseState.FREE:
        return Lease(1, None, 4), False
    return Lease(1, ADA, 4), state is LeaseState.HELD


@pytest.mark.parametrize("state", LeaseState)
def test_the_rules_do_what_the_table_says(state: LeaseState) -> None:
    lease, alive = rows(state)
    assert leases.state(lease, alive) is state
    claimed = leases.claim(lease, ADA, alive)
    assert claimed is not None
    assert leases.state(claimed, True) is TRANSITIONS[state, LeaseStep.CLAIM]
    released = leases.release(lease, ADA, lease.epoch)
    assert (released is not None) == ((state, LeaseStep.RELEASE) in TRANSITIONS)
    publishes = leases.may_publish(lease, ADA, lease.epoch, alive)
    assert publishes == ((state, LeaseStep.PUBLISH) in TRANSITIONS)


def test_another_replica_claims_what_is_free_or_expired_and_nothing_else() -> None:
    claims = {state: leases.claim(*_for(BO, state)) for state in LeaseState}
    assert claims == {
        LeaseState.FREE: Lease(1, BO, 5),
        LeaseState.HELD: None,
        LeaseState.EXPIRED: Lease(1, BO, 5),
    }


def _for(claimant: uuid.UUID, state: LeaseState) -> tuple[Lease, uuid.UUID, bool]:
    lease, alive = rows(state)
    return lease, claimant, alive


def test_every_claim_raises_the_epoch_so_that_a_late_release_closes_no_successor() -> None:
    first = leases.claim(Lease(1), ADA, False)
    assert first is not None
    second = leases.claim(first, ADA, True)
    assert second is not None
    assert (first.epoch, second.epoch) == (1, 2)
    assert leases.release(second, ADA, first.epoch) is None
    assert not leases.may_publish(second, ADA, first.epoch, True)


def test_a_heartbeat_counts_until_its_time_is_over_and_says_when_it_was_late() -> None:
    heartbeat = Heartbeat(100.0)
    assert heartbeat.alive(100.0 + TTL - 0.1, TTL)
    assert not heartbeat.alive(100.0 + TTL, TTL)
    assert leases.beat(heartbeat, 110.0, TTL) == (Heartbeat(110.0), True)
    assert leases.beat(heartbeat, 130.0, TTL) == (Heartbeat(130.0), False)
    assert leases.beat(replace(heartbeat, ended=True), 101.0, TTL) == (Heartbeat(101.0), False)


def test_lanes_without_a_conversation_are_leased_to_each_replica_on_its_own() -> None:
    mine, others = (lease_key(replica, 1, "anonymous") for replica in (ADA, BO))
    assert mine != others
    assert lane_session(mine) == "anonymous"
    assert lane_session(lease_key(ADA, 1, "thread-id:abc")) == "thread-id:abc"
    assert max(len(key.session) for key in (mine, lease_key(ADA, 1, "prompt_cache_key:" + 64 * "f"))) <= 100


def test_what_a_replica_holds_ends_before_anybody_else_may_claim() -> None:
    holdings = Holdings(TTL)
    holdings.renewed(asked_at=100.0)
    holdings.granted({KEY: Tenure(1, 1)}, holdings.term)
    assert holdings.find(KEY, 129.9) == Tenure(1, 1)
    assert holdings.find(KEY, 130.0) is None
    assert holdings.drop_all() == [KEY]


def test_a_grant_that_was_asked_for_before_the_replica_lost_everything_is_worth_nothing() -> None:
    holdings = Holdings(TTL)
    holdings.renewed(asked_at=100.0)
    term = holdings.term
    holdings.drop_all()
    holdings.renewed(asked_at=200.0)
    holdings.granted({KEY: Tenure(1, 1)}, term)
    assert holdings.find(KEY, 201.0) is None


@dataclass
class Replica:
    """A process: what it believes, on a clock of its own, and what it still waits for from the store."""

    number: int
    offset: float
    id: uuid.UUID
    holdings: Holdings = field(default_factory=lambda: Holdings(TTL))
    answers: list[Callable[[], None]] = field(default_factory=list)


class Pace(Enum):
    """Late requests wait for `reach_store`, late answers for `reach_replica`."""

    QUICK = "quick"
    LATE_REQUEST = "late request"
    LATE_ANSWER = "late answer"


class LeaseMachine(RuleBasedStateMachine):
    """Three replicas and a store; every request reaches the store, and every answer its replica, whenever it likes."""

    # Uneven, so that many steps in a row are about the same replica and the same conversation.
    REPLICAS = st.sampled_from([0, 0, 0, 1, 1, 2])
    SESSIONS = st.sampled_from([0, 0, 0, 1])
    INDEX = st.integers(0, 1000)
    PACE = st.sampled_from([Pace.QUICK, Pace.QUICK, Pace.LATE_REQUEST, Pace.LATE_ANSWER])

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.leases = [Lease(number) for number in (0, 1)]
        self.hearts: dict[uuid.UUID, Heartbeat] = {}
        self.requests: list[Callable[[], None]] = []
        self.anchors: list[tuple[int, uuid.UUID, int]] = []
        self.granted: set[tuple[int, int]] = set()
        self.replicas = [self.joined(number, offset=100.0 * number) for number in range(3)]

    def joined(self, number: int, offset: float) -> Replica:
        replica = Replica(number, offset, uuid.UUID(int=len(self.hearts)))
        asked_at = self.local(replica)
        self.hearts[replica.id] = Heartbeat(self.now)
        replica.holdings.renewed(asked_at)
        return replica

    def local(self, replica: Replica) -> float:
        return self.now + replica.offset

    def alive(self, owner: uuid.UUID | None) -> bool:
        return owner is not None and self.hearts[owner].alive(self.now, TTL)

    def key(self, session: int) -> LeaseKey:
        return LeaseKey(1, str(session))

    def request(self, pace: Pace, at_store: Callable[[], None]) -> None:
        if pace is not Pace.LATE_REQUEST:
            at_store()
        else:
            self.requests.append(at_store)

    def answer(self, replica: Replica, pace: Pace, at_replica: Callable[[], None]) -> None:
        if pace is not Pace.LATE_ANSWER:
            at_replica()
        else:
            replica.answers.append(at_replica)

    # What replicas ask for

    @rule(number=REPLICAS, pace=PACE)
    def beat(self, number: int, pace: Pace) -> None:
        self.send_beat(self.replicas[number], pace)

    def send_beat(self, replica: Replica, pace: Pace) -> None:
        process, asked_at = replica.id, self.local(replica)

        def at_store() -> None:
            self.hearts[process], in_time = leases.beat(self.hearts[process], self.now, TTL)
            if not in_time:
                self.free(process)
            self.answer(replica, pace, lambda: self.heard(replica, asked_at, in_time))

        self.request(pace, at_store)

    def heard(self, replica: Replica, asked_at: float, in_time: bool) -> None:
        if not in_time or not replica.holdings.valid(self.local(replica)):
            replica.holdings.drop_all()
        replica.holdings.renewed(asked_at)

    @rule(number=REPLICAS, session=SESSIONS, pace=PACE)
    def claim(self, number: int, session: int, pace: Pace) -> None:
        self.send_claim(self.replicas[number], session, pace)

    def send_claim(self, replica: Replica, session: int, pace: Pace) -> None:
        process, term = replica.id, replica.holdings.term

        def at_store() -> None:
            lease = self.leases[session]
            claimed = leases.claim(lease, process, self.alive(lease.owner))
            if claimed is None:
                return
            assert (session, claimed.epoch) not in self.granted, "one epoch, one claim"
            self.granted.add((session, claimed.epoch))
            self.leases[session] = claimed
            grant = {self.key(session): Tenure(session, claimed.epoch)}
            self.answer(replica, pace, lambda: replica.holdings.granted(grant, term))

        self.request(pace, at_store)

    @rule(number=REPLICAS, session=SESSIONS, pace=PACE)
    def release(self, number: int, session: int, pace: Pace) -> None:
        self.send_release(self.replicas[number], session, pace)

    def send_release(self, replica: Replica, session: int, pace: Pace) -> None:
        tenure = replica.holdings.drop(self.key(session))
        if tenure is not None:
            self.request(pace, lambda: self.released(session, replica.id, tenure))

    @rule(number=REPLICAS, session=SESSIONS)
    def claim_again(self, number: int, session: int) -> None:
        """The claim overtakes the release before it."""
        self.send_release(self.replicas[number], session, Pace.LATE_REQUEST)
        self.send_claim(self.replicas[number], session, Pace.QUICK)

    def released(self, session: int, process: uuid.UUID, tenure: Tenure) -> None:
        lease = self.leases[session]
        self.leases[session] = leases.release(lease, process, tenure.epoch) or lease

    @rule(number=REPLICAS, session=SESSIONS, pace=PACE)
    def publish(self, number: int, session: int, pace: Pace) -> None:
        replica, process = self.replicas[number], self.replicas[number].id
        tenure = replica.holdings.find(self.key(session), self.local(replica))
        if tenure is not None:
            self.request(pace, lambda: self.published(session, process, tenure))

    def published(self, session: int, process: uuid.UUID, tenure: Tenure) -> None:
        lease = self.leases[session]
        if leases.may_publish(lease, process, tenure.epoch, self.alive(process)):
            assert (lease.owner, lease.epoch) == (process, tenure.epoch), "a fenced owner has published"
            self.anchors.append((session, process, tenure.epoch))

    # What happens

    @rule(seconds=st.sampled_from([0.5, 0.5, 5.0, 5.0, TTL - 5, TTL]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=REPLICAS, session=SESSIONS)
    def stall(self, number: int, session: int) -> None:
        """The process claims, then stands still for as long as leases live, while all others go on and bury it."""
        self.send_claim(self.replicas[number], session, Pace.LATE_ANSWER)
        for _ in range(3):
            self.now += TTL / 3
            for other in self.replicas:
                if other.number != number:
                    self.send_beat(other, Pace.QUICK)
        self.bury()

    @precondition(lambda self: self.requests)
    @rule(index=INDEX)
    def reach_store(self, index: int) -> None:
        self.requests.pop(index % len(self.requests))()

    @rule(number=REPLICAS, index=INDEX)
    def reach_replica(self, number: int, index: int) -> None:
        answers = self.replicas[number].answers
        if answers:
            answers.pop(index % len(answers))()

    @rule(number=REPLICAS)
    def tick(self, number: int) -> None:
        """A replica looks at its clock, and buries those that are silent."""
        replica = self.replicas[number]
        if not replica.holdings.valid(self.local(replica)):
            replica.holdings.drop_all()
        self.bury()

    def bury(self) -> None:
        for process, heart in self.hearts.items():
            if not heart.ended and not heart.alive(self.now, TTL):
                self.hearts[process] = replace(heart, ended=True)
                self.free(process)

    def free(self, process: uuid.UUID) -> None:
        self.leases = [replace(lease, owner=None) if lease.owner == process else lease for lease in self.leases]

    @rule(number=REPLICAS)
    def restart(self, number: int) -> None:
        """The process is killed; what it had sent may still arrive."""
        self.replicas[number] = self.joined(number, offset=self.replicas[number].offset + 7.0)

    # What must hold

    def believers(self, session: int) -> list[tuple[uuid.UUID, int]]:
        found = []
        for replica in self.replicas:
            tenure = replica.holdings.find(self.key(session), self.local(replica))
            if tenure is not None:
                found.append((replica.id, tenure.epoch))
        return found

    @invariant()
    def never_two_owners_with_valid_epochs(self) -> None:
        for session in (0, 1):
            assert len(self.believers(session)) <= 1

    @invariant()
    def no_owner_acts_against_the_store(self) -> None:
        """Whoever believes to own a conversation is the row's owner, if perhaps with an epoch that has risen since."""
        for session, lease in enumerate(self.leases):
            for owner, epoch in self.believers(session):
                assert lease.owner == owner
                assert epoch <= lease.epoch

    @invariant()
    def an_anchor_that_counts_is_the_owners(self) -> None:
        for session, process, epoch in self.anchors:
            lease = self.leases[session]
            if leases.may_publish(lease, process, epoch, self.alive(process)):
                others = [owner for owner, _ in self.believers(session) if owner != process]
                assert not others


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
