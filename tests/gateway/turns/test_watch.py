"""The clock of a turn in virtual time: what is too long, and what is not."""

from __future__ import annotations

import asyncio

import pytest

from gateway.conf import Tunables
from gateway.errors import ClientLost, GatewayError, UpstreamSilent
from gateway.turns.watch import Watch
from tests.support.virtual_loop import in_virtual_time

START, IDLE = 180.0, 300.0


class Client:
    """A client that is looked at every `interval` seconds and may be found to have stalled."""

    def __init__(self, interval: float = 15.0) -> None:
        self.interval = interval
        self.stalled = False
        self.looks = 0

    def tick(self, now: float) -> float:
        self.looks += 1
        if self.stalled:
            raise ClientLost("It took nothing.", code="client_stalled")
        return self.interval


class Watched:
    """A watch that has been started, and when it struck."""

    def __init__(self, client: Client | None = None, *, start: float = START, idle: float = IDLE) -> None:
        self.errors: list[tuple[float, GatewayError]] = []
        self.client = client or Client()
        loop = asyncio.get_running_loop()
        tunables = Tunables(response_start_timeout=start, stream_idle_timeout=idle)
        self.watch = Watch(tunables, self.client.tick, lambda error: self.errors.append((loop.time(), error)))
        self.watch.start()

    def waits(self) -> None:
        """As the relay does when it goes back to its exchange."""
        self.watch.waiting_since = asyncio.get_running_loop().time()

    def delivers(self) -> None:
        """As the relay does when it has events of a started response for the client."""
        self.watch.waiting_since = None

    def struck(self) -> list[tuple[float, str]]:
        return [(pytest.approx(moment, abs=0.05), error.code) for moment, error in self.errors]


@in_virtual_time
async def test_an_upstream_that_starts_no_response_in_time_ends_the_turn() -> None:
    watched = Watched()
    await asyncio.sleep(100)
    watched.watch.sent()
    await asyncio.sleep(1000)
    assert watched.struck() == [(100 + START, "upstream_response_start_timeout")]
    assert isinstance(watched.errors[0][1], UpstreamSilent)


@in_virtual_time
async def test_a_started_response_has_its_time_for_each_event() -> None:
    watched = Watched()
    watched.watch.sent()
    watched.watch.started()
    for _ in range(5):
        watched.delivers()
        watched.waits()
        await asyncio.sleep(IDLE - 1)
    assert not watched.errors
    await asyncio.sleep(2)
    assert watched.struck() == [(5 * (IDLE - 1) + 1, "stream_idle_timeout")]


@in_virtual_time
@pytest.mark.parametrize("idle", [0.5, 5.0, 40.0])
async def test_a_short_limit_is_kept_also_when_nothing_else_is_due_for_long(idle: float) -> None:
    watched = Watched(Client(interval=60.0), idle=idle)
    watched.watch.sent()
    await asyncio.sleep(1)
    watched.watch.started()
    watched.waits()
    await asyncio.sleep(1000)
    assert watched.struck() == [(1 + idle, "stream_idle_timeout")]


@in_virtual_time
async def test_time_that_the_client_takes_is_not_the_upstreams_silence() -> None:
    watched = Watched()
    watched.watch.sent()
    watched.watch.started()
    watched.delivers()
    await asyncio.sleep(10 * IDLE)
    watched.waits()
    await asyncio.sleep(IDLE - 1)
    assert not watched.errors


@in_virtual_time
async def test_a_turn_between_two_upstreams_waits_for_none() -> None:
    watched = Watched()
    watched.watch.sent()
    watched.watch.left()
    await asyncio.sleep(10 * START)
    assert not watched.errors
    watched.watch.sent()
    await asyncio.sleep(START + 1)
    assert watched.struck() == [(11 * START, "upstream_response_start_timeout")]


@in_virtual_time
async def test_a_stalled_client_ends_the_turn_once() -> None:
    watched = Watched()
    watched.client.stalled = True
    await asyncio.sleep(1000)
    assert watched.struck() == [(15, "client_stalled")]


@in_virtual_time
async def test_a_stopped_watch_strikes_no_more() -> None:
    watched = Watched()
    watched.watch.sent()
    watched.watch.stop()
    watched.watch.stop()
    await asyncio.sleep(1000)
    assert not watched.errors
    assert watched.client.looks == 1


@in_virtual_time
async def test_events_cost_no_timer() -> None:
    watched = Watched()
    watched.watch.sent()
    watched.watch.started()
    for _ in range(10_000):
        watched.waits()
        watched.delivers()
    watched.waits()
    await asyncio.sleep(100)
    assert watched.client.looks <= 10
