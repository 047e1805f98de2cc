"""What a system weighs: at rest, and for each client that has a WebSocket open and says nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.bench.machine import Meter, cpu_clock, rss
from tests.bench.measure import SETTLE, connect_all, warm_up
from tests.bench.systems import System

# Long enough that what is done at once after the start, or every few seconds, does not count for more than it is.
REST = 10.0


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes at rest; bytes per idle socket, before its first turn and after one; CPU seconds per second at rest."""

    rest: int
    fresh_socket: float
    used_socket: float
    rest_cpu: float
    sockets: int


async def weigh(system: System, sockets: int) -> Weight:
    """Weigh a system that was just started; raises `ValueError` if its process is not known."""
    if system.pid is None:
        raise ValueError(f"The memory of {system.name} cannot be read: its process is not known.")
    # The first turns load code and fill caches, which no socket is to be blamed for.
    await _warm(system, 32)
    meter = Meter(cpu_clock(system.pid))
    await asyncio.sleep(REST)
    spent = meter.stop()
    rest = rss(system.pid)
    clients = await connect_all(system, sockets)
    try:
        await asyncio.sleep(SETTLE)
        fresh = rss(system.pid)
        await warm_up(system, clients)
        await asyncio.sleep(SETTLE)
        used = rss(system.pid)
    finally:
        for client in clients:
            client.close()
    return Weight(rest, (fresh - rest) / sockets, (used - rest) / sockets, spent.cpu[0] / spent.seconds, sockets)


async def _warm(system: System, count: int) -> None:
    clients = await connect_all(system, count)
    await warm_up(system, clients)
    for client in clients:
        client.close()
    await asyncio.sleep(SETTLE)
