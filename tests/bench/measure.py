"""One run of one case on one system, and what it showed."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tests.bench.answers import FRAMING_EVENTS, Shape
from tests.bench.cases import Case
from tests.bench.driver import Client, Reading, connect_sse, connect_websocket
from tests.bench.machine import Meter, cpu_clock
from tests.bench.requests import KIB, body, create_frame, encode, http_request
from tests.bench.systems import Protocol, System

WARM_UP = Shape(FRAMING_EVENTS + 1, 0)
WARM_UP_SIZE = 4 * KIB
# The ledger closes a turn after its client has gone on; that work belongs to the turn.
SETTLE = 0.1
# How many clients connect at the same time; more would measure the handshakes' queue.
CONNECTING = 32


@dataclass(slots=True)
class Sample:
    """What one run showed. Times are seconds, except first events and travels, which are nanoseconds.

    `cpu` is None for a system whose process is not known. `upstream`, `driver` and `others` are CPU seconds of the
    measuring programs and of all other processes of the machine: what limits a run, or disturbs it.
    """

    turns: int
    events: int
    seconds: float
    cpu: float | None
    upstream: float
    driver: float
    others: float
    metered: float
    firsts: list[int] = field(repr=False)
    travels: list[int] = field(repr=False)


async def measure(system: System, case: Case, upstream_pid: int) -> Sample:
    """Run `case` on `system`; raises `TurnFailed` or `OSError` when the system does not do its work.

    Connections are made, and one small turn is carried on each, before anything is measured.
    """
    clients = await connect_all(system, case.at_once)
    try:
        await warm_up(system, clients)
        requests = [request_of(system, case.shape, case.size, number) for number in range(case.at_once)]
        await asyncio.sleep(SETTLE)
        gc.collect()
        gc.disable()
        meter = Meter(*(cpu_clock(pid) for pid in (upstream_pid, system.pid) if pid is not None))
        began = time.monotonic()
        readings = await drive(clients, requests, case)
        seconds = time.monotonic() - began
        await asyncio.sleep(SETTLE)
        spent = meter.stop()
    finally:
        gc.enable()
        for client in clients:
            client.close()
    upstream_cpu, *system_cpu, driver_cpu = spent.cpu
    return Sample(
        turns=len(readings),
        events=sum(len(reading.travels) for reading in readings),
        seconds=seconds,
        cpu=system_cpu[0] if system_cpu else None,
        upstream=upstream_cpu,
        driver=driver_cpu,
        others=spent.others,
        metered=spent.seconds,
        firsts=[reading.first for reading in readings],
        travels=[travel for reading in readings for travel in reading.travels],
    )


async def drive(clients: Sequence[Client], requests: Sequence[bytes], case: Case) -> list[Reading]:
    """All turns of all clients."""

    async def work(number: int) -> list[Reading]:
        await asyncio.sleep(number * case.stagger)
        return [await clients[number].turn(requests[number], case.shape.events) for _ in range(case.turns)]

    done = await asyncio.gather(*(work(number) for number in range(len(clients))))
    return [reading for readings in done for reading in readings]


async def connect_all(system: System, count: int) -> list[Client]:
    """`count` clients of `system`, each with a session of its own."""
    connect = connect_sse if system.protocol is Protocol.SSE else connect_websocket
    clients: list[Client] = []
    try:
        while len(clients) < count:
            numbers = range(len(clients), min(count, len(clients) + CONNECTING))
            clients += await asyncio.gather(*(connect(system.endpoint, session_of(number)) for number in numbers))
    except BaseException:  # whatever ended it, the sockets that are open are closed
        for client in clients:
            client.close()
        raise
    return clients


async def warm_up(system: System, clients: Sequence[Client]) -> None:
    """One small turn on each connection, so that what is opened for the first turn is open."""
    for start in range(0, len(clients), CONNECTING):
        await asyncio.gather(
            *(
                client.turn(request_of(system, WARM_UP, WARM_UP_SIZE, number), WARM_UP.events)
                for number, client in enumerate(clients[start : start + CONNECTING], start)
            )
        )


def session_of(number: int) -> str:
    return f"01990000-0000-7000-8000-{number:012d}"


def request_of(system: System, shape: Shape, size: int, number: int) -> bytes:
    """The bytes of client `number`'s request."""
    if system.protocol is Protocol.WEBSOCKET:
        return _frame(shape, size)
    return http_request(system.endpoint, session_of(number), _content(shape, size))


@lru_cache(maxsize=4)
def _content(shape: Shape, size: int) -> bytes:
    return encode(body(shape, size))


@lru_cache(maxsize=4)
def _frame(shape: Shape, size: int) -> bytes:
    return create_frame(body(shape, size))
