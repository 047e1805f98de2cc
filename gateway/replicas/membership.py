"""This replica among the others: its heartbeat, the leases it holds, who else lives, and its part of the limits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.continuity.leases import Holdings, LeaseKey, Tenure, Written, lane_session, lease_key
from gateway.replicas.shares import NO_USE, Use, allowance
from gateway.replicas.store import Peer
from gateway.storage import Store
from gateway.turns.record import TurnRecord
from gateway.upstream.lane import Lane, LaneKey, LaneState

log = structlog.get_logger("gateway.replicas.membership")

BEATS_PER_TTL = 3


class Lanes(Protocol):
    """What this replica owns by its leases."""

    def shared(self, client: int, session: str) -> Sequence[Lane]:
        """The open lanes of a conversation that others than one client socket may continue on."""

    def retire_shared(self, client: int, session: str) -> None:
        """Begin to close them; each ends with the response that it carries."""


class Membership:
    """Run `tick` every second. `use` tells what this replica holds; `changed` is called when the others' news did."""

    def __init__(self, replica: uuid.UUID, store: Store, tunables: Tunables, clock: Clock) -> None:
        self.replica = replica
        self.peers: Sequence[Peer] = ()
        self._store = store
        self._clock = clock
        self._interval = tunables.lease_ttl / BEATS_PER_TTL
        self._holdings = Holdings(tunables.lease_ttl)
        self._beat_at = float("-inf")
        self._told = NO_USE
        self._lanes: Lanes | None = None
        self._use: Callable[[], Use] = Use
        self._changed: Callable[[], None] = lambda: None

    def watch(self, lanes: Lanes, use: Callable[[], Use], changed: Callable[[], None]) -> None:
        """What leases are about and what counts against limits; call it before `join`."""
        self._lanes, self._use, self._changed = lanes, use, changed

    async def join(self, url: str) -> None:
        """This replica exists, reachable for others at `url`; raises `StoreError`."""
        asked_at = self._clock.monotonic()
        await self._store.register(self.replica, url)
        self._beat_at = asked_at
        self._holdings.renewed(asked_at)
        self.peers = await self._store.peers(self.replica)
        self._changed()

    async def tick(self) -> None:
        """Learn who lives, bury the dead, beat when it is time, give back what has no lanes; raises `StoreError`."""
        self._lapse()
        before, self.peers = self.peers, await self._store.peers(self.replica)
        late = self._clock.monotonic() - self._beat_at >= self._interval
        if late or not {peer.id for peer in before} <= {peer.id for peer in self.peers}:
            report_interrupted(await self._store.close_dead())
        if late or (self.peers and self._use() != self._told):
            await self.beat()
        if late:
            await self._release_idle()
        if before != self.peers:
            self._changed()

    async def beat(self) -> bool:
        """Say that this replica lives; whether anybody knows it. Raises `StoreError`."""
        asked_at, use = self._clock.monotonic(), self._use()
        in_time = await self._store.beat(self.replica, use)
        self._lapse()
        if not in_time:
            self._fence(self._holdings.drop_all(), "the heartbeat was late")
        if in_time is None:
            return False
        self._beat_at, self._told = asked_at, use
        self._holdings.renewed(asked_at)
        return True

    # Leases

    def lease_of(self, lane: LaneKey | None) -> LeaseKey | None:
        """The lease that a turn on this lane needs; a client's own socket needs none."""
        if lane is None or lane.private:
            return None
        return lease_key(self.replica, lane.client, lane.session)

    def tenure(self, lease: LeaseKey | None) -> Tenure | None:
        """The proof of owning a lease now."""
        return None if lease is None else self._holdings.find(lease, self._clock.monotonic())

    def holds(self, lane: LaneKey) -> bool:
        """Whether responses made on a lane may be continued there."""
        return lane.private or self.tenure(self.lease_of(lane)) is not None

    def prepare(self, records: Sequence[TurnRecord]) -> int:
        """Call it before turns are written; what it returns goes to `learn` with what came of that."""
        for record in records:
            if record.tenure is None:
                # The commit before may have granted what this turn was going to claim.
                record.tenure = self.tenure(record.lease)
        return self._holdings.term

    def learn(self, written: Written, term: int) -> None:
        """Turns were written: which claims were granted, and what was lost."""
        now = self._clock.monotonic()
        self._holdings.granted(written.granted, term)
        lost = [key for key, tenure in written.fenced.items() if self._holdings.find(key, now) == tenure]
        for key in lost:
            self._holdings.drop(key)
        self._fence(lost, "another replica owns the conversation")

    def _lapse(self) -> None:
        if not self._holdings.valid(self._clock.monotonic()):
            self._fence(self._holdings.drop_all(), "the heartbeat is late")

    def _fence(self, keys: Sequence[LeaseKey], why: str) -> None:
        if not keys:
            return
        log.warning("fenced", sessions=len(keys), why=why)
        for key in keys:
            if self._lanes is not None:
                self._lanes.retire_shared(key.client, lane_session(key))

    async def _release_idle(self) -> None:
        """Leases without a lane bind nobody any more; other replicas need not ask here."""
        lanes = self._lanes
        if lanes is None:
            return
        idle = [key for key in self._holdings.held() if not lanes.shared(key.client, lane_session(key))]
        tenures = [tenure for key in idle if (tenure := self._holdings.drop(key)) is not None]
        if tenures:
            await self._store.release_leases(self.replica, tenures)

    async def leave_idle(self) -> None:
        """Let go of every conversation on which no turn runs; raises `StoreError`."""
        lanes = self._lanes
        if lanes is None:
            return
        for key in self._holdings.held():
            shared = lanes.shared(key.client, lane_session(key))
            if not any(lane.state is LaneState.BUSY or lane.waits_for_dial for lane in shared):
                lanes.retire_shared(key.client, lane_session(key))
        await self._release_idle()

    # Limits

    def turns(self, limit: int, held: int) -> int:
        """This replica's part of a limit on turns."""
        return allowance(limit, held, [peer.use.turns for peer in self.peers])

    def size(self, limit: int, held: int) -> int:
        """Its part of a limit on bytes of bodies."""
        return allowance(limit, held, [peer.use.size for peer in self.peers])

    def streams(self, account: int, limit: int, held: int) -> int:
        """Its part of an account's streams."""
        return allowance(limit, held, [peer.use.streams.get(account, 0) for peer in self.peers])

    def lanes(self, account: int, limit: int, held: int) -> int:
        """Its part of an account's lanes."""
        return allowance(limit, held, [peer.use.lanes.get(account, 0) for peer in self.peers])


def report_interrupted(turns: int) -> None:
    """Log that the ledger had open turns of processes that are no more."""
    if turns:
        log.warning("interrupted_turns_closed", turns=turns)
