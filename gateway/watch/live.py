"""Takes the snapshot of a process: what it is doing now, small enough to be written every other second."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from gateway.clock import Clock
from gateway.turns.dispatch import Turn
from gateway.turns.permits import Permits
from gateway.turns.slots import AccountStreams
from gateway.upstream.lane import Lane, LaneState
from gateway.upstream.pool import LanePool
from gateway.watch.snapshot import LiveAccount, LiveLane, LiveTurn, Snapshot

# A snapshot shows so many of each and counts the rest.
SHOWN_TURNS = 50
SHOWN_LANES = 200
SHOWN_ACCOUNTS = 500


def take(permits: Permits, streams: AccountStreams, pool: LanePool, running: Iterable[Turn], clock: Clock) -> Snapshot:
    """Look at everything once; costs a moment for each lane and turn, and nothing between two calls."""
    lanes = list(pool)
    return Snapshot(
        held=permits.held,
        waiting=permits.waiting + streams.waiting,
        open_lanes=len(lanes),
        accounts=_accounts(streams, lanes),
        turns=[_turn(turn) for turn in heapq.nsmallest(SHOWN_TURNS, running, key=_received)],
        lanes=[_lane(lane, clock) for lane in heapq.nlargest(SHOWN_LANES, lanes, key=_interest)],
    )


def _accounts(streams: AccountStreams, lanes: Iterable[Lane]) -> dict[str, LiveAccount]:
    active, waiting = streams.by_account(), streams.waiting_by_account()
    open_lanes = Counter(lane.key.account_id for lane in lanes)
    some = sorted({*active, *waiting, *open_lanes})[:SHOWN_ACCOUNTS]
    return {str(each): LiveAccount(active[each], waiting[each], open_lanes[each]) for each in some}


def _received(turn: Turn) -> float:
    return turn.record.request.received_at


def _turn(turn: Turn) -> LiveTurn:
    record = turn.record
    request = record.request
    return LiveTurn(
        id=str(request.id),
        received_at=request.received_at,
        phase=str(record.phase),
        account=record.account_name,
        key=request.key.name,
        model=(request.body.model or "")[:100],
    )


def _interest(lane: Lane) -> tuple[bool, float, int]:
    """Lanes that carry something first, then those used last."""
    return lane.state is not LaneState.OPEN, lane.idle_since, lane.generation


def _lane(lane: Lane, clock: Clock) -> LiveLane:
    key = lane.key
    session = "" if key.private else key.session[:100]
    if lane.state is LaneState.CONNECTING:
        return LiveLane(key.account_id, key.client, session, lane.generation, str(lane.state))
    began = clock.wall() - clock.monotonic()
    connection = lane.connection
    return LiveLane(
        account=key.account_id,
        client=key.client,
        session=session,
        generation=lane.generation,
        phase=str(lane.state),
        opened_at=round(began + lane.opened_at, 1),
        idle_since=round(began + lane.idle_since, 1) if lane.state is LaneState.OPEN else None,
        rtt_ms=round(connection.latency * 1000) or None,
        sent_bytes=connection.sent_bytes,
        received_bytes=connection.received_bytes,
    )
