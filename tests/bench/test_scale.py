"""What many streams and many idle clients cost one process, and how soon a started one serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.bench.answers import Shape
from tests.bench.cases import Case
from tests.bench.driver import Client
from tests.bench.loops import run
from tests.bench.machine import cpu_clock, rss
from tests.bench.measure import SETTLE, WARM_UP, WARM_UP_SIZE, connect_all, drive, measure, request_of, warm_up
from tests.bench.requests import KIB, body
from tests.bench.systems import GATEWAY_SETTINGS, Protocol, Role, Starter, System, endpoint_at, fits_open_files
from tests.support.processes import GatewayProcess

# Slow enough that one process carries 500 of them on any machine.
SLOW_ANSWER = Shape(events=20, interval=250)
FEW, MANY = Case(SLOW_ANSWER, 16, 4 * KIB, 1), Case(SLOW_ANSWER, 500, 4 * KIB, 1)
SOCKETS, ACCOUNTS = 2000, 10
# Copies of the first account, whose key any of them may use.
ADD_MORE = """
from accounts.models import Account
for number in range(1, {accounts}):
    account = Account.objects.get(name="account-0")
    account.pk, account.name = None, f"account-{{number}}"
    account.save()
"""
PATH = "/backend-api/codex/responses"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def upstream(folder: Path) -> Iterator[tuple[str, int]]:
    with ExitStack() as stack:
        yield Starter(folder, stack).start("upstream", "--port", "0")


@contextmanager
def gateway(folder: Path, base_url: str, accounts: int = 1) -> Iterator[tuple[GatewayProcess, System]]:
    """A gateway on lanes, of which one account may have as many as there are clients."""
    process = GatewayProcess(
        folder, {**GATEWAY_SETTINGS, "GATEWAY_STREAMS_PER_ACCOUNT": "512", "GATEWAY_LANES_PER_ACCOUNT": "1024"}
    )
    try:
        process.add_account("account-0", f"{base_url}/v1", "--transport", "websocket")
        process.manage("shell", "-v", "0", "-c", ADD_MORE.format(accounts=accounts))
        endpoint = endpoint_at(process.url + PATH, process.key)
        yield process, System("gateway", Protocol.WEBSOCKET, Role.GATEWAY, endpoint, process.process.pid)
    finally:
        process.stop()


def over_sse(system: System) -> System:
    return System("gateway, lanes", Protocol.SSE, Role.GATEWAY, system.endpoint, system.pid)


@pytest.mark.parametrize("over", [lambda system: system, over_sse], ids=["WebSocket", "SSE on lanes"])
def test_a_turn_among_five_hundred_costs_hardly_more_than_among_sixteen(tmp_path: Path, over) -> None:
    with upstream(tmp_path) as (base_url, upstream_pid), gateway(tmp_path, base_url) as (_, system):
        costs: dict[int, list[float]] = {}
        for case in (FEW, MANY, FEW, MANY, FEW):
            sample = run(measure(over(system), case, upstream_pid))
            assert sample.turns == case.at_once
            assert sample.cpu is not None
            costs.setdefault(case.at_once, []).append(sample.cpu / sample.turns)
    assert min(costs[500]) <= min(costs[16]) * 1.25, costs


def test_a_stream_among_five_hundred_takes_less_than_200_kib(tmp_path: Path) -> None:
    with upstream(tmp_path) as (base_url, _), gateway(tmp_path, base_url) as (process, system):
        grown = run(growth_by_streams(over_sse(system), process))
    assert grown / MANY.at_once < 200 * KIB, f"{grown / MANY.at_once / KIB:.0f} KiB a stream"


async def growth_by_streams(system: System, process: GatewayProcess) -> int:
    """Bytes by which the process grows at the most while all streams of `MANY` run."""
    few = await connect_all(system, 32)
    await warm_up(system, few)
    await asyncio.sleep(SETTLE)
    before = rss(process.process.pid)
    clients = await connect_all(system, MANY.at_once)
    requests = [request_of(system, MANY.shape, MANY.size, number) for number in range(MANY.at_once)]
    running = asyncio.ensure_future(drive(clients, requests, MANY))
    most = before
    while not running.done():
        most = max(most, rss(process.process.pid))
        await asyncio.sleep(0.1)
    assert len(await running) == MANY.at_once
    await close_all([*few, *clients])
    return most - before


def test_two_thousand_idle_clients_with_lanes_stay_and_each_is_served_again(tmp_path: Path) -> None:
    assert fits_open_files(SOCKETS), "raise `ulimit -n`"
    with upstream(tmp_path) as (base_url, _), gateway(tmp_path, base_url, ACCOUNTS) as (process, system):
        grown, idle = run(hold_idle(system, process))
    assert grown / SOCKETS < 100 * KIB, f"{grown / SOCKETS / KIB:.0f} KiB a socket"
    # Seconds of CPU a second, pings to all clients and accounts included.
    assert idle < 0.2


async def hold_idle(system: System, process: GatewayProcess) -> tuple[int, float]:
    """Open the sockets, with a turn on each, let them rest, and carry a turn on each again."""
    before = rss(process.process.pid)
    clients = await connect_all(system, SOCKETS)
    await warm_up(system, clients)
    grown = rss(process.process.pid) - before
    clock = cpu_clock(process.process.pid)
    rested, used = time.monotonic(), time.clock_gettime(clock)
    await asyncio.sleep(10)
    idle = (time.clock_gettime(clock) - used) / (time.monotonic() - rested)
    await warm_up(system, clients)
    await close_all(clients)
    return grown, idle


def test_a_started_gateway_has_served_its_first_turn_within_three_seconds(tmp_path: Path) -> None:
    with upstream(tmp_path) as (base_url, _):
        with gateway(tmp_path, base_url) as (process, _):
            key = process.key
        used = min(cpu_until_served(tmp_path, key) for _ in range(3))
    # Of CPU, which is what a machine with nothing else to do takes.
    assert used < 3.0


def cpu_until_served(folder: Path, key: str) -> float:
    """Seconds of CPU that a second start takes until it has answered a turn."""
    process = GatewayProcess(folder, GATEWAY_SETTINGS, key=key)
    try:
        asked = body(WARM_UP, WARM_UP_SIZE)
        answer = httpx.post(f"{process.url}/v1/responses", json=asked, headers=process.headers, trust_env=False)
        assert answer.status_code == 200, answer.text
        return time.clock_gettime(cpu_clock(process.process.pid))
    finally:
        process.stop()


async def close_all(clients: Sequence[Client]) -> None:
    for client in clients:
        client.close()
    await asyncio.sleep(SETTLE)
