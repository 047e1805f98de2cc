"""Capacity is work alive: whatever a client or an upstream does on real sockets, every place comes back with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from gateway.conf import Tunables
from tests.support.inprocess import World, world
from tests.support.sockets import RawClient, connections_to

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells its connections in /proc")

FEW, MANY = 5, 1000
GENTLE = Tunables(close_timeout=0.5)
TRANSPORTS = ("http", "websocket")


async def abort_after_the_stream_began(w: World) -> None:
    async with RawClient(w) as client:
        client.send()
        assert await client.status() == 200
        await client.read_until(b"response.created")


async def abort_while_unanswered(w: World) -> None:
    async with RawClient(w) as client:
        client.send()
        await w.upstream.until(lambda observed: observed.running == 1)


async def leave_in_the_middle_of_the_body(w: World) -> None:
    async with RawClient(w) as client:
        client.send_head()
        client.writer.write(client.body[:20])
        await client.writer.drain()
        await asyncio.sleep(0)


async def leave_before_dispatch(w: World) -> None:
    async with RawClient(w) as client:
        client.send()
        await client.writer.drain()


async def abort_after_the_end(w: World) -> None:
    async with RawClient(w) as client:
        client.send()
        assert await client.status() == 200
        await client.read_until(b"response.completed")


async def wait_for_an_upstream_that_never_answers(w: World) -> None:
    async with RawClient(w) as client:
        client.send()
        assert await client.status() == 503
        await client.read_until(b"upstream_response_start_timeout")


async def be_refused_by_the_gateway(w: World) -> None:
    async with RawClient(w, b"{") as client:
        client.send()
        assert await client.status() == 400
        await client.read_until(b"invalid_json")


async def be_refused_by_the_upstream(w: World) -> None:
    async with RawClient(w, b'{"model":"gpt-5.5","stream":true,"unknown":1,"input":[]}') as client:
        client.send()
        assert await client.status() == 400
        await client.read_until(b"unknown_parameter")


async def wait_in_vain_for_a_stream(w: World) -> None:
    async with RawClient(w) as client:
        client.send()
        assert await client.status() == 503
        await client.read_until(b"account_streams_busy")


@dataclass(frozen=True)
class Trial:
    """One thing to do again and again, and what the world is like while it is done."""

    act: Callable[[World], Awaitable[None]]
    fault: str | None = None
    tunables: Tunables = GENTLE
    blocked: bool = False
    # A connection that ended its response in good order may wait for the next one.
    idle_connections: int = 0

    def __str__(self) -> str:
        return self.act.__name__


QUICK = Tunables(close_timeout=0.5, response_start_timeout=0.02, admission_wait=0.02)
TRIALS = [
    Trial(abort_after_the_stream_began, "slow:0.05"),
    Trial(abort_while_unanswered, "silent"),
    Trial(leave_in_the_middle_of_the_body),
    Trial(leave_before_dispatch, idle_connections=1),
    Trial(abort_after_the_end, idle_connections=1),
    Trial(wait_for_an_upstream_that_never_answers, "silent", QUICK),
    Trial(be_refused_by_the_gateway),
    Trial(be_refused_by_the_upstream, idle_connections=1),
    Trial(wait_in_vain_for_a_stream, "silent", replace(QUICK, response_start_timeout=600.0), blocked=True),
]


async def everything_is_back(w: World, base: int, idle: int) -> None:
    """Wait until nothing is held but what `base` turns hold, here, upstream and in the kernel."""

    def held() -> dict[str, int]:
        runtime = w.runtime
        counts = {
            "permits": runtime.permits.held - base,
            "waiting for a permit": runtime.permits.waiting,
            "streams": runtime.streams.active(1) - base,
            "waiting for a stream": runtime.streams.waiting,
            "turns": len(runtime.engine.running) - base,
            "responses of the upstream": w.upstream.observed.running - base,
        }
        if not any(counts.values()):
            # The dearest question comes last.
            counts["connections"] = max(0, connections_to(w.upstream.port) - base - idle)
        return {name: count for name, count in counts.items() if count}

    deadline = asyncio.get_running_loop().time() + 5
    while left := held():
        assert asyncio.get_running_loop().time() < deadline, left
        await asyncio.sleep(0.002)


async def repeat(trial: Trial, transport: str, times: int) -> None:
    streams = 1 if trial.blocked else 8
    async with world(transport=transport, tunables=trial.tunables, streams=streams) as w:
        base = 0
        if trial.fault is not None:
            w.upstream.faults.add(trial.fault)
        blocker = RawClient(w)
        if trial.blocked:
            await blocker.__aenter__()
            blocker.send()
            await w.upstream.until(lambda observed: observed.running == 1)
            base = 1
        for _ in range(times):
            await trial.act(w)
            await everything_is_back(w, base, trial.idle_connections)
        if trial.blocked:
            await blocker.__aexit__(None, None, None)
        await w.settled()
        await everything_is_back(w, 0, trial.idle_connections)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("trial", TRIALS, ids=str)
async def test_every_place_comes_back(trial: Trial, transport: str) -> None:
    await repeat(trial, transport, FEW)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("trial", TRIALS, ids=str)
async def test_every_place_comes_back_a_thousand_times(trial: Trial, transport: str) -> None:
    await repeat(trial, transport, MANY)
