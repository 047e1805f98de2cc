"""A thousand client WebSockets that rest, each with its lane: what they cost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.end_to_end.clients import frame, socket, turn
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAIRS = 1000
KIB = 1024
PING_PERIOD = 20.0
MOST_PER_PAIR = 160 * KIB
MOST_OF_A_CORE = 0.05


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve(GATEWAY_LANES_PER_ACCOUNT=str(PAIRS + 100))


def cpu_seconds(gateway: GatewayProcess) -> float:
    """User and system time of the process so far (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{gateway.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_thousand_idle_sockets_with_their_lanes_cost_little(
    gateway: GatewayProcess, upstream: SimulatorProcess, record_property: Callable[[str, object], None]
):
    async with AsyncExitStack() as stack:

        async def pair() -> None:
            connection = await stack.enter_async_context(socket(gateway))
            assert (await turn(connection, frame()))["type"] == "response.completed"

        # What the process needs anyway is there after the first few.
        for _ in range(20):
            await pair()
        before = gateway.rss()
        for _ in range(PAIRS // 20):
            await asyncio.gather(*(pair() for _ in range(20)))
        per_pair = (gateway.rss() - before) / PAIRS
        assert upstream.observed().open_sockets == PAIRS + 20

        await asyncio.sleep(PING_PERIOD)
        began, used = time.monotonic(), cpu_seconds(gateway)
        pinged = sum(record.pings for record in upstream.observed().sockets)
        await asyncio.sleep(2 * PING_PERIOD)
        busy = (cpu_seconds(gateway) - used) / (time.monotonic() - began)
        pings = sum(record.pings for record in upstream.observed().sockets) - pinged
        assert upstream.observed().open_sockets == PAIRS + 20, "an idle pair was lost"

    record_property("KiB per pair", round(per_pair / KIB, 1))
    record_property("percent of a core", round(100 * busy, 2))
    print(f"{per_pair / KIB:.1f} KiB per pair, {100 * busy:.2f} % of a core for {pings} pings upstream in two rounds")
    assert pings >= 1.8 * PAIRS, "the rounds were not measured"
    assert per_pair < MOST_PER_PAIR
    assert busy < MOST_OF_A_CORE
