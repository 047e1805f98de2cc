"""The pool under any order of borrowing, breaking, closing and cancelling, against a model of what must hold."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.conf import Tunables
from gateway.errors import ConnectFailed, Overloaded, OwnerUnavailable
from gateway.upstream.lane import PRIVATE_SESSION, Lane, LaneExchange, LaneState
from gateway.upstream.pool import LanePool
from tests.gateway.upstream.fakes import FakeConnection, FakeDialer, Time, key, socket_of, target

LIMIT = 3
ACCOUNTS = st.sampled_from([1, 2])
SESSIONS = st.sampled_from(["a", "b", f"{PRIVATE_SESSION}1"])
INDEX = st.integers(0, 50)
TOO_SLOW = 2000.0


class PoolMachine(RuleBasedStateMachine):
    """Each rule starts something and lets every task run as far as it can."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.time = Time()
        self.dialer = FakeDialer(held=True)
        self.pool = LanePool(Tunables(lanes_per_account=LIMIT), self.time.clock(), self.dialer)
        self.borrowing: list[asyncio.Task[LaneExchange]] = []
        self.held: list[LaneExchange] = []
        self.returning: list[asyncio.Task[Any]] = []
        self.published: dict[str, Lane] = {}
        self.count = 0

    def start(self, work: Any) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.run()
        return task

    def run(self) -> None:
        async def settle() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(settle())
        for task in [task for task in self.borrowing if task.done()]:
            self.borrowing.remove(task)
            if not task.cancelled() and task.exception() is None:
                self.held.append(task.result())
            elif not task.cancelled():
                assert isinstance(task.exception(), ConnectFailed | Overloaded | OwnerUnavailable)

    def sockets(self) -> list[FakeConnection]:
        return [connection for connection in self.dialer.dialled if connection.open]

    # Borrowing

    @rule(account=ACCOUNTS, session=SESSIONS)
    def borrow(self, account: int, session: str) -> None:
        self.borrowing.append(self.start(self.pool.borrow(key(session, account), target(account))))
        self.run()

    @precondition(lambda self: self.published)
    @rule(index=INDEX, session=SESSIONS)
    def borrow_owner(self, index: int, session: str) -> None:
        response_id = list(self.published)[index % len(self.published)]
        self.borrowing.append(self.start(self.pool.borrow_owner(response_id, 1, session)))
        self.run()

    @precondition(lambda self: self.dialer.pending)
    @rule(index=INDEX, outcome=st.sampled_from(["open", "refused", "open and lost"]))
    def end_dial(self, index: int, outcome: str) -> None:
        future = self.dialer.pending[index % len(self.dialer.pending)]
        if outcome == "refused":
            future.set_exception(ConnectFailed("refused"))
        else:
            connection = self.dialer.connect()
            if outcome == "open and lost":
                connection.lose()
            future.set_result(connection)
        self.run()

    @precondition(lambda self: self.borrowing)
    @rule(index=INDEX)
    def cancel_borrow(self, index: int) -> None:
        self.borrowing[index % len(self.borrowing)].cancel()
        self.run()

    # Using and returning

    @precondition(lambda self: self.held)
    @rule(index=INDEX)
    def publish(self, index: int) -> None:
        exchange = self.held[index % len(self.held)]
        self.count += 1
        response_id = f"resp_{self.count}"
        exchange.publish(response_id)
        self.published[response_id] = exchange.lane

    @precondition(lambda self: self.held)
    @rule(index=INDEX, clean=st.booleans(), cancel=st.booleans())
    def give_back(self, index: int, clean: bool, cancel: bool) -> None:
        exchange = self.held.pop(index % len(self.held))
        task = self.start(exchange.close(clean=clean))
        if cancel:
            task.cancel()
        self.returning.append(task)
        self.run()

    # What happens by itself

    @precondition(lambda self: self.sockets())
    @rule(index=INDEX)
    def lose(self, index: int) -> None:
        sockets = self.sockets()
        sockets[index % len(sockets)].lose()
        self.run()

    @precondition(lambda self: self.sockets())
    @rule(index=INDEX, answers=st.booleans(), closable=st.booleans())
    def change_peer(self, index: int, answers: bool, closable: bool) -> None:
        """A peer begins or ceases to answer pings and closing handshakes."""
        sockets = self.sockets()
        connection = sockets[index % len(sockets)]
        connection.pong = answers
        if closable:
            connection.closable.set()
        else:
            connection.closable.clear()
        self.run()

    @rule(seconds=st.sampled_from([1.0, 20.0, TOO_SLOW, 4000.0]))
    def pass_time(self, seconds: float) -> None:
        self.time.now += seconds

    @rule()
    def sweep(self) -> None:
        self.returning.append(self.start(self.pool.sweep()))

    @rule(session=SESSIONS, but=st.none() | ACCOUNTS)
    def retire_session(self, session: str, but: int | None) -> None:
        self.returning.append(self.start(self.pool.retire_session(session, but=but)))

    @rule(account=ACCOUNTS)
    def retire_account(self, account: int) -> None:
        self.returning.append(self.start(self.pool.retire_account(account)))

    @rule(session=SESSIONS, account=ACCOUNTS)
    def replace(self, session: str, account: int) -> None:
        """A conversation goes to another account; from then on what its lanes to others make is no anchor."""
        before = {lane for lane in self.pool if lane.key.session == session and lane.key.account_id != account}

        async def at_once() -> None:
            self.pool.replace(1, session, account)
            assert not any(lane.alive or lane.waits_for_dial or lane.anchor for lane in before)

        # Inside the loop, where the closing that it begins will run.
        self.start(at_once()).result()

    @precondition(lambda self: self.sockets())
    @rule(index=INDEX, fails=st.booleans())
    def fail_to_close(self, index: int, fails: bool) -> None:
        """A socket begins or ceases to fail when it is closed."""
        sockets = self.sockets()
        sockets[index % len(sockets)].close_error = OSError("stuck") if fails else None

    @precondition(lambda self: self.published)
    @rule(index=INDEX)
    def forget(self, index: int) -> None:
        self.pool.forget(list(self.published)[index % len(self.published)])

    # What must hold after each of them

    @invariant()
    def no_account_has_more_sockets_than_its_limit(self) -> None:
        for account in (1, 2):
            lanes = [lane for lane in self.pool if lane.key.account_id == account]
            assert len(lanes) <= LIMIT

    @invariant()
    def every_open_socket_is_a_lane_and_every_lane_that_connected_has_a_socket(self) -> None:
        connected = [lane for lane in self.pool if lane.state is not LaneState.CONNECTING]
        assert {id(lane.connection) for lane in connected} == {id(connection) for connection in self.sockets()}
        assert len(list(self.pool)) - len(connected) == len(self.dialer.pending)

    @invariant()
    def no_two_turns_hold_the_same_lane(self) -> None:
        lanes = [exchange.lane for exchange in self.held]
        assert len(lanes) == len(set(lanes))

    @invariant()
    def a_lane_is_busy_exactly_while_a_turn_holds_it(self) -> None:
        busy = {lane for lane in self.pool if lane.state is LaneState.BUSY}
        assert busy <= {exchange.lane for exchange in self.held}
        assert all(exchange.lane.state is not LaneState.OPEN for exchange in self.held)

    @invariant()
    def a_retiring_lane_is_held_or_being_closed(self) -> None:
        held = {exchange.lane for exchange in self.held}
        for lane in self.pool:
            if lane.state is LaneState.RETIRING and lane not in held:
                assert socket_of(LaneExchange(lane, self.pool)).close_calls >= 1

    @invariant()
    def an_anchor_is_known_exactly_while_its_lane_lives_and_holds_it(self) -> None:
        for response_id, lane in self.published.items():
            try:
                assert self.pool.owner(response_id, 1, lane.key.session) is lane
                known = True
            except OwnerUnavailable:
                known = False
            assert known == (lane.alive and lane.anchor == response_id)
        anchored = [lane for lane in self.pool if lane.anchor is not None]
        assert f"| {len(anchored)} anchors" in repr(self.pool), "an anchor outlived its lane"

    @invariant()
    def an_idle_lane_without_an_anchor_holds_no_conversation(self) -> None:
        assert all(lane.chain is None for lane in self.pool if lane.state is LaneState.OPEN and lane.anchor is None)

    def teardown(self) -> None:
        """When everybody leaves, nothing is left."""
        for task in self.borrowing:
            task.cancel()
        self.run()
        for connection in self.dialer.dialled:
            connection.closable.set()
            connection.close_error = None
        for exchange in self.held:
            self.returning.append(self.start(exchange.close(clean=True)))
        self.returning.append(self.start(self.pool.close()))
        self.run()
        assert self.sockets() == []
        assert list(self.pool) == []
        assert all(task.done() for task in self.returning)
        self.loop.close()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
