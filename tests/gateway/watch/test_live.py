"""A snapshot says what a process does, and is bounded however much that is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.metering.meter import Meter
from gateway.turns.permits import Permits
from gateway.turns.slots import AccountStreams, Offer
from gateway.upstream.pool import LanePool
from gateway.watch import live
from gateway.watch.snapshot import LiveAccount, Snapshot
from tests.gateway.upstream.fakes import FakeDialer, Time, key, socket_of, target
from tests.support.records import KEY, record, sent
from tests.support.virtual_loop import in_virtual_time


class Process:
    """The parts of a process that a snapshot looks at."""

    def __init__(self) -> None:
        self.time = Time()
        self.permits = Permits(Tunables(), self.time.clock(), Meter(self.time.clock()))
        self.streams = AccountStreams(self.time.clock(), 30.0)
        self.pool = LanePool(Tunables(), self.time.clock(), FakeDialer())
        self.running: list[Any] = []

    def look(self) -> Snapshot:
        clock = Clock(monotonic=lambda: self.time.now, wall=lambda: self.time.now + 500.0)
        return live.take(self.permits, self.streams, self.pool, self.running, clock)


@in_virtual_time
async def test_an_idle_process_is_an_empty_snapshot() -> None:
    assert Process().look() == Snapshot()


@in_virtual_time
async def test_streams_waiting_turns_and_lanes_are_counted_by_account() -> None:
    process = Process()
    process.permits.ask(KEY, 10)
    await process.streams.take(1, lambda: Offer([1], frozenset()))
    waiting = asyncio.ensure_future(process.streams.take(1, lambda: Offer([], frozenset({1, 2}))))
    await asyncio.sleep(0)
    await process.pool.borrow(key(account=2), target(2))
    seen = process.look()
    assert seen.accounts == {"1": LiveAccount(active=1, waiting=1), "2": LiveAccount(waiting=1, lanes=1)}
    assert (seen.held, seen.waiting) == (1, 1)
    waiting.cancel()


@in_virtual_time
async def test_a_lane_tells_its_phase_its_times_and_what_went_over_it() -> None:
    process = Process()
    exchange = await process.pool.borrow(key("thread:abc"), target())
    socket_of(exchange).latency = 0.0123
    socket_of(exchange).sent_bytes, socket_of(exchange).received_bytes = 10, 20
    (busy,) = process.look().lanes
    assert (busy.phase, busy.session, busy.opened_at, busy.idle_since) == ("busy", "thread:abc", 1500.0, None)
    assert (busy.rtt_ms, busy.sent_bytes, busy.received_bytes) == (12, 10, 20)
    process.time.now += 60
    await exchange.close(clean=True)
    (idle,) = process.look().lanes
    assert (idle.phase, idle.opened_at, idle.idle_since) == ("open", 1500.0, 1560.0)


@in_virtual_time
async def test_a_snapshot_of_a_process_in_which_nothing_happens_stays_the_same() -> None:
    process = Process()
    await (await process.pool.borrow(key(), target())).close(clean=True)
    before = process.look()
    process.time.now += 7
    assert process.look() == before


@in_virtual_time
async def test_a_running_turn_is_told_by_name_and_without_its_body() -> None:
    process = Process()
    process.running.append(SimpleNamespace(record=sent(record(input="a secret"))))
    seen = process.look()
    (turn,) = seen.turns
    assert (turn.phase, turn.account, turn.key, turn.model) == ("sent", "ada", "tests", "gpt-5.5")
    assert b"a secret" not in msgspec.json.encode(seen)


@in_virtual_time
async def test_however_much_there_is_a_snapshot_is_bounded() -> None:
    process = Process()
    process.running += [SimpleNamespace(record=record()) for _ in range(200)]
    for number in range(250):
        await process.pool.borrow(key(f"s{number}", account=number), target(number))
    seen = process.look()
    assert (len(seen.turns), len(seen.lanes), seen.open_lanes) == (live.SHOWN_TURNS, live.SHOWN_LANES, 250)
    assert len(msgspec.json.encode(seen)) < 100_000


@in_virtual_time
async def test_a_snapshot_can_be_stored_as_json_and_read_again() -> None:
    process = Process()
    await process.pool.borrow(key(), target())
    process.running.append(SimpleNamespace(record=record()))
    assert msgspec.convert(msgspec.to_builtins(process.look()), Snapshot) == process.look()
