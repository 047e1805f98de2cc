"""A client that stops reading costs the gateway a bounded amount of memory, and the ledger says why it was cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.end_to_end.clients import CODEX, V1, body, frame, post, raw_http, request, socket, sse, until_closed
from tests.support.ledger import TurnRow
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
STALL = 0.6
FLOOD = [f"big_event:{MIB}#1"] * 300
ALLOWED = 64 * MIB


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    """Its account is reached over HTTP, and over lanes for the clients' WebSockets."""
    yield from new_installation().serve(GATEWAY_CLIENT_STALL_TIMEOUT=str(STALL))


@pytest.fixture(scope="module")
def lanes_gateway(
    new_installation: Callable[[], Installation], simulator_process: SimulatorProcess
) -> Iterator[GatewayProcess]:
    """Its account is reached over lanes alone."""
    installation = new_installation()
    installation.add_account("ada", simulator_process.base_url(), "--transport", "websocket", "--replace")
    yield from installation.serve(GATEWAY_CLIENT_STALL_TIMEOUT=str(STALL))


async def settled(gateway: GatewayProcess, since: int) -> TurnRow:
    (row,) = await asyncio.to_thread(gateway.ledger.settled, since)
    return row


async def cut(gateway: GatewayProcess, upstream: SimulatorProcess, since: int) -> TurnRow:
    """Wait until the turn is cut at both ends; its row."""
    row = await settled(gateway, since)
    seen = await asyncio.to_thread(upstream.until, lambda seen: not seen.running)
    assert seen.requests[-1].outcome == "client_gone"
    return row


class Memory:
    """The gateway's memory from here on, measured at its peak, which no sampling can miss."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._before = gateway.rss()
        gateway.reset_peak()

    def assert_bounded(self) -> None:
        growth = self._gateway.peak_rss() - self._before
        assert growth < ALLOWED, f"{growth / MIB:.0f} MiB more than before"


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_an_sse_client_that_stops_reading_holds_up_an_http_upstream_until_it_is_cut(
    gateway: GatewayProcess, upstream: SimulatorProcess, path: str
):
    await post(gateway, body())
    upstream.add_fault(*FLOOD)
    since, memory = gateway.ledger.mark(), Memory(gateway)
    async with raw_http(gateway) as client:
        await client.send(request(gateway, body(), path))
        await client.head()
        row = await cut(gateway, upstream, since)
    memory.assert_bounded()
    assert (row.downstream, row.upstream) == ("sse", "http")
    assert (row.outcome, row.cause, row.code) == ("client_gone", "client_stalled", "client_stalled")
    # What the client did not take was never read, so the upstream was held up.
    assert row.response_bytes < ALLOWED


async def test_an_sse_client_that_stops_reading_is_cut_when_too_much_waits_on_its_lane(
    lanes_gateway: GatewayProcess, upstream: SimulatorProcess
):
    gateway = lanes_gateway
    await post(gateway, body())
    upstream.add_fault(*FLOOD)
    since, memory = gateway.ledger.mark(), Memory(gateway)
    async with raw_http(gateway) as client:
        await client.send(request(gateway, body()))
        await client.head()
        row = await cut(gateway, upstream, since)
    memory.assert_bounded()
    assert (row.downstream, row.upstream) == ("sse", "websocket")
    assert (row.outcome, row.cause, row.code) == ("client_gone", "client_stalled", "client_too_slow")


async def test_a_websocket_client_that_stops_reading_is_cut_when_too_much_waits_on_its_lane(
    gateway: GatewayProcess, upstream: SimulatorProcess
):
    await post(gateway, body())
    upstream.add_fault(*FLOOD)
    since, memory = gateway.ledger.mark(), Memory(gateway)
    # The library reads ahead by one message and no more.
    async with socket(gateway, max_queue=1, close_timeout=0.1) as connection:
        await connection.send(frame())
        row = await cut(gateway, upstream, since)
        connection.transport.abort()
    memory.assert_bounded()
    assert (row.downstream, row.upstream) == ("websocket", "websocket")
    assert (row.outcome, row.cause, row.code) == ("client_gone", "client_stalled", "client_too_slow")


async def test_clients_that_leave_in_the_middle_of_big_events_leave_no_memory_behind(
    gateway: GatewayProcess, upstream: SimulatorProcess
):
    await post(gateway, body())
    before, since = gateway.rss(), gateway.ledger.mark()
    for number in range(1, 17):
        upstream.add_fault(*[f"big_event:{8 * MIB}#1~http"] * 3)
        async with raw_http(gateway) as client:
            await client.send(request(gateway, body()))
            await client.head()
        await asyncio.to_thread(gateway.ledger.settled, since, number)
    assert gateway.rss() - before < ALLOWED


async def test_a_client_that_stops_reading_a_small_backlog_is_cut_after_the_stall_timeout_on_a_lane_too(
    gateway: GatewayProcess, upstream: SimulatorProcess
):
    upstream.add_fault(*FLOOD[:16])
    since = gateway.ledger.mark()
    async with socket(gateway, max_queue=1, close_timeout=0.1) as connection:
        await connection.send(frame())
        row = await settled(gateway, since)
        await until_closed(connection)
    assert (row.outcome, row.cause, row.code) == ("client_gone", "client_stalled", "client_stalled")


async def test_a_client_that_reads_slowly_but_steadily_gets_everything(
    gateway: GatewayProcess, upstream: SimulatorProcess
):
    upstream.add_fault(*FLOOD[:16])
    since = gateway.ledger.mark()
    received = bytearray()
    async with raw_http(gateway) as client, asyncio.timeout(20):
        await client.send(request(gateway, body()))
        while not received.endswith(b"0\r\n\r\n"):
            # A quarter of the time in which it would be cut.
            await asyncio.sleep(STALL / 4)
            for _ in range(64):
                received += await client.reader.read(32 * 1024)
                if received.endswith(b"0\r\n\r\n"):
                    break
    row = await settled(gateway, since)
    assert row.outcome == "completed"
    assert received.count(b"x" * MIB) == 16


async def test_other_clients_are_served_while_one_does_not_read(gateway: GatewayProcess, upstream: SimulatorProcess):
    upstream.add_fault(*FLOOD)
    since = gateway.ledger.mark()
    async with raw_http(gateway) as client:
        await client.send(request(gateway, body()))
        await client.head()
        answer = await post(gateway, body())
        assert sse(answer.content)[-1]["type"] == "response.completed"
    await asyncio.to_thread(gateway.ledger.settled, since, 2)
