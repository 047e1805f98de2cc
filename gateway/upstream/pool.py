"""The pool of lanes: who may use which upstream WebSocket, and how many there are.

It holds two pieces of state, the lanes by key and the anchors by response id; capacity is reserved before a dial
begins and returned when the socket is closed. A turn borrows a lane and gives it back; the pool settles nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

import structlog

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.errors import ConnectFailed, Overloaded, OwnerBusy, OwnerGone
from gateway.finish import finish_first
from gateway.upstream.connection import Dial
from gateway.upstream.exchange import Target
from gateway.upstream.lane import Lane, LaneExchange, LaneKey, LaneState, LaneStep

log = structlog.get_logger("gateway.upstream")

# A lane idle for longer is pinged before a turn is sent on it, so that a half-open socket costs no turn.
FRESH_FOR = 15.0
PING_WAIT = 2.0


K = TypeVar("K")


class Ownership(Protocol):
    """What this process may do with lanes, given that others live too."""

    def holds(self, lane: LaneKey) -> bool:
        """Whether responses made on a lane may be continued there."""

    def lanes(self, account: int, limit: int, held: int) -> int:
        """This process's part of a limit on an account's lanes, of which it has `held`."""


class Alone:
    """A process that shares nothing with others."""

    def holds(self, lane: LaneKey) -> bool:
        return True

    def lanes(self, account: int, limit: int, held: int) -> int:
        return limit


class LanePool:
    """Lanes of all accounts in this process. `close` it before the event loop ends.

    A lane that is replaced, fenced or told to go drains: it serves the turn that has borrowed it, takes no new one,
    publishes nothing, and keeps its place until its socket is closed. What could not be closed is tried again.
    """

    def __init__(self, tunables: Tunables, clock: Clock, dial: Dial, ownership: Ownership | None = None) -> None:
        self._tunables = tunables
        self._ownership = ownership or Alone()
        self._clock = clock
        self._dial = dial
        self._lanes: dict[int, set[Lane]] = defaultdict(set)
        self._by_key: dict[LaneKey, set[Lane]] = defaultdict(set)
        self._by_session: dict[str, set[Lane]] = defaultdict(set)
        self._anchors: dict[str, Lane] = {}
        self._generations = 0
        self._closers: dict[Lane, asyncio.Task[None]] = {}
        self._unclosed: dict[Lane, None] = {}

    def __repr__(self) -> str:
        return f"<LanePool {self.summary() or 'empty'} | {len(self._anchors)} anchors>"

    def summary(self) -> str:
        """How many lanes are in which state; those that drain are `retiring`."""
        states = [lane.state for lane in self]
        return ", ".join(f"{states.count(state)} {state}" for state in LaneState if state in states)

    def use(self) -> Mapping[int, int]:
        """Lanes by account, whatever their state."""
        return {account: len(lanes) for account, lanes in self._lanes.items() if lanes}

    def __iter__(self) -> Iterator[Lane]:
        for lanes in self._lanes.values():
            yield from lanes

    def owner(self, response_id: str, client: int, session: str) -> Lane:
        """The lane that made `response_id`; raises `OwnerGone` unless `client` may continue there in `session`."""
        lane = self._anchors.get(response_id)
        if lane is None or not lane.alive or lane.key.client != client or not self._ownership.holds(lane.key):
            raise OwnerGone("The response that this request continues is on no open upstream connection any more.")
        if lane.key.private and lane.key.session != session:
            raise OwnerGone("The response that this request continues belongs to another WebSocket of the client.")
        return lane

    async def borrow_owner(self, response_id: str, client: int, session: str) -> LaneExchange:
        """Borrow the lane that made `response_id`. Never dials; raises `OwnerGone` or `OwnerBusy`."""
        lane = self.owner(response_id, client, session)
        if lane.state is LaneState.BUSY:
            raise OwnerBusy("The upstream connection that made the previous response is carrying another one.")
        if self._too_old(lane):
            await self._close(lane)
            raise OwnerGone("The upstream connection that made the previous response has reached its age limit.")
        if not await self._claim(lane):
            raise OwnerGone("The upstream connection that made the previous response no longer answers.")
        return LaneExchange(lane, self)

    def idle(self, key: LaneKey) -> list[Lane]:
        """The idle lanes of `key`, the last used first."""
        lanes = [lane for lane in self._by_key.get(key, ()) if lane.state is LaneState.OPEN]
        return sorted(lanes, key=lambda lane: lane.idle_since, reverse=True)

    async def borrow(self, key: LaneKey, target: Target, prefer: str | None = None) -> LaneExchange:
        """Borrow an idle lane of `key`, the one with the anchor `prefer` if it is there, or dial one.

        Raises `ConnectFailed`, `UpstreamRefused` or `Overloaded`.
        """
        while idle := self.idle(key):
            lane = next((lane for lane in idle if prefer is not None and lane.anchor == prefer), idle[0])
            if self._too_old(lane):
                await self._close(lane)
            elif await self._claim(lane):
                return LaneExchange(lane, self)
        return await self._open(key, target)

    async def give_back(self, lane: Lane, *, clean: bool) -> None:
        """The turn is done with the lane: keep it when `clean`, else close it. Returns when that has happened."""
        if lane.state is LaneState.BUSY and clean:
            if lane.anchor is None:
                lane.chain = None
            lane.step(LaneStep.GIVE_BACK)
            lane.idle_since = self._clock.monotonic()
            return
        await self._close(lane)

    def publish(self, lane: Lane, response_id: str) -> bool:
        """Make `response_id` the lane's one anchor; whether that was done.

        A lane that drains, or whose conversation belongs to another process, publishes nothing.
        """
        if lane.state is not LaneState.BUSY:
            return False
        self._drop_anchor(lane)
        if not self._ownership.holds(lane.key):
            return False
        lane.anchor = response_id
        self._anchors[response_id] = lane
        return True

    def forget(self, response_id: str) -> None:
        """The upstream does not know `response_id` (any more)."""
        lane = self._anchors.get(response_id)
        if lane is not None:
            self._drop_anchor(lane)

    def lost(self, lane: Lane) -> None:
        """The lane's socket is closed: its capacity and its anchor are free."""
        lane.step(LaneStep.CLOSE)
        self._forget(lane)

    def idle_backlog(self, lane: Lane, size: int) -> None:
        """Nobody reads an idle lane, so what its upstream pushes is bounded too, for each lane and for all."""
        share, total = self._tunables.client_buffer_bytes, self._tunables.client_buffer_total
        if size > share:
            self._start_close(lane)
        # While every lane has less than its part of the total, the total cannot be exceeded.
        elif size * sum(map(len, self._lanes.values())) > total:
            idle = [each for each in self if each.state is LaneState.OPEN]
            if idle and sum(each.connection.waiting_bytes for each in idle) > total:
                self._start_close(max(idle, key=lambda each: each.connection.waiting_bytes))

    async def retire_session(self, session: str, *, but: int | None = None) -> None:
        """Close the idle lanes of `session`, except those of account `but`."""
        await self._close_all(
            lane
            for lane in self._by_session.get(session, ())
            if lane.key.account_id != but and lane.state is LaneState.OPEN
        )

    async def retire(self, generation: int) -> bool:
        """Close the lane with this number once it carries nothing; False when there is none that could be closed."""
        lane = next((lane for lane in self if lane.generation == generation and lane.alive), None)
        if lane is None:
            return False
        if lane.state is LaneState.OPEN:
            await self._close(lane)
        else:
            self._retire(lane)
        return True

    def shared(self, client: int, session: str) -> list[Lane]:
        """The lanes of a client's conversation that take turns, or will when they are connected."""
        lanes = self._by_session.get(session, ())
        return [lane for lane in lanes if lane.key.client == client and (lane.alive or lane.waits_for_dial)]

    def retire_shared(self, client: int, session: str) -> None:
        """Let every lane of a client's conversation drain; returns at once."""
        for lane in self.shared(client, session):
            self._retire(lane)

    def replace(self, client: int, session: str, account_id: int) -> None:
        """The conversation lives on `account_id` now: its lanes to other accounts drain. Returns at once."""
        for lane in self.shared(client, session):
            if lane.key.account_id != account_id:
                self._retire(lane)

    async def retire_account(self, account_id: int) -> None:
        """Close an account's idle lanes; those that carry a response end with it."""
        lanes = tuple(self._lanes.get(account_id, ()))
        idle = [lane for lane in lanes if lane.state is LaneState.OPEN]
        for lane in lanes:
            if lane.alive or lane.waits_for_dial:
                self._retire(lane)
        await self._close_all(idle)

    async def sweep(self) -> None:
        """Close lanes that were idle too long or are too old, and what could not be closed; call it every second.

        A lane of a client's own socket lives as long as the socket, up to its age.
        """
        now, idle = self._clock.monotonic(), self._tunables.lane_idle_timeout
        done = [
            lane
            for lane in self
            if lane.state is LaneState.OPEN
            and (self._too_old(lane) or (not lane.key.private and now - lane.idle_since > idle))
        ]
        await self._close_all([*done, *self._unclosed])

    async def close(self) -> None:
        """Close every lane, busy or not."""
        await self._close_all(lane for lane in self if lane.state is not LaneState.CONNECTING)

    def _too_old(self, lane: Lane) -> bool:
        return self._clock.monotonic() - lane.opened_at > self._tunables.lane_max_age

    async def _claim(self, lane: Lane) -> bool:
        """Take an idle lane, checking one that has been silent; a lane that does not answer is closed."""
        lane.step(LaneStep.BORROW)
        now = self._clock.monotonic()
        if now - max(lane.idle_since, lane.connection.last_heard) <= FRESH_FOR:
            return True
        answers = False
        try:
            answers = await lane.connection.answers_ping(PING_WAIT)
        finally:
            answers = answers and lane.alive
            if not answers and lane.state is not LaneState.CLOSED:
                self._start_close(lane)
        return answers

    async def _open(self, key: LaneKey, target: Target) -> LaneExchange:
        lane = await self._reserve(key)
        try:
            connection = await self._dial(target)
        except BaseException:  # whatever ended the dial, cancellation included, the reserved place goes back
            self.lost(lane)
            raise
        lane.opened(connection, self._clock.monotonic())
        if lane.replaced:
            lane.step(LaneStep.RETIRE)
        if connection.close_code is not None:
            self.lost(lane)
            raise ConnectFailed("The upstream closed its WebSocket right after the handshake.")
        return LaneExchange(lane, self)

    async def _reserve(self, key: LaneKey) -> Lane:
        """Count a new lane before it is dialled; raises `Overloaded` when the account has its limit of busy ones."""
        while len(self._lanes[key.account_id]) >= self._limit(key.account_id):
            await self._make_room(key.account_id)
        self._generations += 1
        lane = Lane(key, self._generations, self)
        self._lanes[key.account_id].add(lane)
        self._by_key[key].add(lane)
        self._by_session[key.session].add(lane)
        return lane

    def _limit(self, account_id: int) -> int:
        return self._ownership.lanes(account_id, self._tunables.lanes_per_account, len(self._lanes[account_id]))

    async def _make_room(self, account_id: int) -> None:
        """Close the account's longest-idle lane, or wait for one that closes already."""
        lanes = self._lanes[account_id]
        idle = [lane for lane in lanes if lane.state is LaneState.OPEN]
        closing = [self._closers[lane] for lane in lanes if lane in self._closers]
        if idle:
            await self._close(min(idle, key=lambda lane: lane.idle_since))
        elif closing:
            await asyncio.wait(closing, return_when=asyncio.FIRST_COMPLETED)
        else:
            raise Overloaded(
                "All GATEWAY_LANES_PER_ACCOUNT upstream WebSockets of the account are in use; nothing was sent.",
                code="lane_limit",
                retry_after=2,
            )

    async def _close_all(self, lanes: Iterable[Lane]) -> None:
        closing = {self._start_close(lane) for lane in tuple(lanes) if lane.state is not LaneState.CLOSED}
        if closing:
            await finish_first(_all_done(closing))

    async def _close(self, lane: Lane) -> None:
        """Close a lane once, whoever asks; whoever is cancelled meanwhile sees the closing to its end first."""
        await self._close_all((lane,))

    def _retire(self, lane: Lane) -> None:
        """Let a lane drain: an idle one is closed, others when whoever has borrowed or dials them is done."""
        if lane.state is LaneState.OPEN:
            self._start_close(lane)
            return
        lane.replaced = True
        self._drop_anchor(lane)
        if lane.state is LaneState.BUSY:
            lane.step(LaneStep.RETIRE)

    def _start_close(self, lane: Lane) -> asyncio.Task[None]:
        """Begin to close a lane, unless that has begun; it keeps its place until its socket is closed."""
        if lane not in self._closers:
            self._drop_anchor(lane)
            lane.step(LaneStep.RETIRE)
            self._closers[lane] = asyncio.ensure_future(self._run_close(lane))
        return self._closers[lane]

    async def _run_close(self, lane: Lane) -> None:
        """Close the socket; a lane whose socket does not close is kept for the next sweep."""
        try:
            await lane.connection.close()
        except Exception:
            # Whatever it is, a socket that may be open must not be lost sight of.
            log.exception("lane_not_closed", lane=repr(lane))
        finally:
            del self._closers[lane]
            if lane.state is not LaneState.CLOSED:
                self._unclosed[lane] = None

    def _drop_anchor(self, lane: Lane) -> None:
        if lane.anchor is not None:
            self._anchors.pop(lane.anchor, None)
            lane.anchor = None

    def _forget(self, lane: Lane) -> None:
        self._drop_anchor(lane)
        self._unclosed.pop(lane, None)
        self._lanes[lane.key.account_id].discard(lane)
        _take_out(self._by_key, lane.key, lane)
        _take_out(self._by_session, lane.key.session, lane)


async def _all_done(tasks: set[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _take_out(index: dict[K, set[Lane]], key: K, lane: Lane) -> None:
    """Take a lane out of an index, and its key with the last lane."""
    lanes = index.get(key)
    if lanes is not None:
        lanes.discard(lane)
        if not lanes:
            del index[key]
