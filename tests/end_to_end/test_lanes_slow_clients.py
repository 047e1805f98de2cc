"""Clients that fall behind: no upstream is declared dead for it, and what waits for them is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from websockets.asyncio.server import ServerConnection

from gateway.conf import Tunables
from tests.end_to_end.clients import body as big_body
from tests.end_to_end.clients import frame as big_frame
from tests.end_to_end.clients import raw_http, read_turn, request, socket
from tests.gateway.consumers.asgi import CODEX, Client, Edge, body, edge, events, frame
from tests.gateway.upstream.peers import speaking
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
IDLE_TIMEOUT = 1.5
PING_PERIOD = IDLE_TIMEOUT / 3
BRISK = Tunables(websocket_idle_timeout=0.3, close_timeout=0.2, drain_timeout=1)
EVENTS = 12


# A client that stops reading for a while


@pytest.fixture(scope="module")
def lanes_gateway(
    new_installation: Callable[[], Installation], simulator_process: SimulatorProcess
) -> Iterator[GatewayProcess]:
    """Its account is reached over lanes alone."""
    installation = new_installation()
    installation.add_account("ada", simulator_process.base_url(), "--transport", "websocket", "--replace")
    yield from installation.serve(GATEWAY_WEBSOCKET_IDLE_TIMEOUT=str(IDLE_TIMEOUT))


def flood(upstream: SimulatorProcess) -> None:
    """More than every buffer on the way holds, and less than what a client may leave unread."""
    upstream.add_fault(*[f"big_event:{MIB}#1"] * EVENTS)


def assert_alive(gateway: GatewayProcess, upstream: SimulatorProcess, since: int) -> None:
    (row,) = gateway.ledger.settled(since)
    assert (row.outcome, row.upstream) == ("completed", "websocket")
    (seen,) = upstream.observed().requests
    assert seen.outcome == "completed"


async def test_an_sse_client_may_rest_for_longer_than_pongs_may_take_and_then_gets_everything(
    lanes_gateway: GatewayProcess, upstream: SimulatorProcess
):
    flood(upstream)
    since = lanes_gateway.ledger.mark()
    received = bytearray()
    async with raw_http(lanes_gateway) as client, asyncio.timeout(20):
        await client.send(request(lanes_gateway, big_body()))
        await client.head()
        await asyncio.sleep(IDLE_TIMEOUT + 3 * PING_PERIOD)
        while not received.endswith(b"0\r\n\r\n"):
            received += await client.reader.read(MIB)
    assert received.count(b"x" * MIB) == EVENTS
    assert_alive(lanes_gateway, upstream, since)


async def test_a_websocket_client_may_rest_for_three_ping_periods_and_then_gets_everything(
    lanes_gateway: GatewayProcess, upstream: SimulatorProcess
):
    flood(upstream)
    since = lanes_gateway.ledger.mark()
    # The library reads ahead by one message and no more; it answers no ping meanwhile either.
    async with socket(lanes_gateway, max_queue=1) as connection, asyncio.timeout(20):
        await connection.send(big_frame())
        await asyncio.sleep(3 * PING_PERIOD)
        events = await read_turn(connection)
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))
    assert sum(len(event.get("delta", "")) == MIB for event in events) == EVENTS
    assert_alive(lanes_gateway, upstream, since)


@pytest.mark.parametrize("downstream", ["sse", "websocket"])
async def test_however_long_a_client_rests_its_lane_hears_its_pongs(downstream: str):
    async with edge(tunables=BRISK, faults=("flood:3000#1",), transport="websocket") as made:
        client = await resting_client(made, downstream)
        await asyncio.sleep(5 * BRISK.websocket_idle_timeout)
        (lane,) = made.runtime.pool
        assert lane.connection.waiting_messages > 1000
        client.takes.set()
        await client.until(lambda: b"response.completed" in last_text(client))
        (row,) = await made.settled()
        assert row["outcome"] == "completed"
        assert count_deltas(client) == 3000
        client.leave()
        await client.ended()


async def resting_client(made: Edge, downstream: str, content: str = "hi") -> Client:
    """A client that has sent its request and takes nothing of the answer."""
    if downstream == "sse":
        client: Client = made.request(CODEX, body(content))
        client.takes.clear()
        return client
    opened = await made.socket()
    opened.takes.clear()
    await opened.frame(frame(content))
    return opened


def text_of(client: Client) -> bytes:
    return b"".join(
        message["body"] if message["type"] == "http.response.body" else message["text"].encode() + b"\n"
        for message in client.sent
        if message["type"] in ("http.response.body", "websocket.send")
    )


def last_text(client: Client) -> bytes:
    last = client.sent[-1]
    return bytes(last.get("body") or str(last.get("text", "")).encode())


def count_deltas(client: Client) -> int:
    return text_of(client).count(b'"type":"response.output_text.delta"')


# What may wait


TIGHT = Tunables(client_buffer_bytes=8 * MIB, client_buffer_total=int(12.5 * MIB), close_timeout=0.2, drain_timeout=1)


@asynccontextmanager
async def tight_edge() -> AsyncIterator[Edge]:
    async with edge(tunables=TIGHT, transport="websocket") as made:
        yield made


async def fall_behind(made: Edge, downstream: str, mebibytes: int) -> Client:
    """A client that takes nothing of so much; returns once all of it waits, or the client was cut."""
    for _ in range(mebibytes):
        made.upstream.faults.add(f"big_event:{MIB}#1")
    before = len(made.store.turns)
    client = await resting_client(made, downstream)
    async with asyncio.timeout(5):
        while not (len(made.store.turns) > before and waits_or_is_cut(made, mebibytes)):
            await asyncio.sleep(0.005)
    return client


def waits_or_is_cut(made: Edge, mebibytes: int) -> bool:
    if any(turn["outcome"] for turn in made.store.turns.values()):
        return True
    busy = [lane for lane in made.runtime.pool if lane.state == "busy"]
    newest = max(busy, key=lambda lane: lane.generation, default=None)
    return newest is not None and newest.connection.waiting_bytes > mebibytes * MIB


@pytest.mark.parametrize("downstream", ["sse", "websocket"])
async def test_a_client_that_is_behind_by_more_than_its_share_is_cut(downstream: str):
    async with tight_edge() as made:
        client = await fall_behind(made, downstream, 9)
        (row,) = await made.settled()
        assert (row["outcome"], row["code"]) == ("client_gone", "client_too_slow")
        client.takes.set()
        await client.ended()
        assert b"response.completed" not in text_of(client)
        assert b"response.failed" not in text_of(client)
        assert list(made.runtime.pool) == []
        assert made.runtime.permits.held == 0


@pytest.mark.parametrize("downstream", ["sse", "websocket"])
async def test_when_all_together_are_too_far_behind_the_furthest_is_cut_and_the_others_get_everything(downstream: str):
    async with tight_edge() as made:
        furthest = await fall_behind(made, downstream, 7)
        other = await fall_behind(made, downstream, 6)
        furthest.takes.set()
        await furthest.ended()
        assert b"response.completed" not in text_of(furthest)
        other.takes.set()
        await other.until(lambda: b"response.completed" in last_text(other))
        assert text_of(other).count(b"x" * MIB) == 6
        other.leave()
        await other.ended()
        rows = await made.settled()
        assert [(row["outcome"], row["code"]) for row in rows] == [
            ("client_gone", "client_too_slow"),
            ("completed", ""),
        ]


async def test_a_client_that_is_behind_by_less_than_its_share_is_left_alone():
    async with tight_edge() as made:
        client = await fall_behind(made, "sse", 7)
        client.takes.set()
        await client.ended()
        assert events(text_of(client))[-1]["type"] == "response.completed"


async def test_what_an_upstream_pushes_on_an_idle_lane_is_bounded_as_well():
    """Nobody reads there; a lane that hears more than its share is closed, and the next turn gets another."""
    flooded = asyncio.Event()
    pushed = 0

    async def handler(peer: ServerConnection) -> None:
        nonlocal pushed
        async for _ in peer:
            response = {"id": f"resp_{peer.id}", "status": "completed", "output": []}
            await peer.send(json.dumps({"type": "response.created", "response": response}))
            await peer.send(json.dumps({"type": "response.completed", "response": response}))
            if not flooded.is_set():
                flooded.set()
                await asyncio.sleep(0.05)
                while True:
                    await peer.send('{"type":"codex.rate_limits","padding":"' + "x" * MIB + '"}')
                    pushed += MIB

    share = 4 * MIB
    tunables = Tunables(client_buffer_bytes=share, close_timeout=0.2, drain_timeout=1)
    async with speaking(handler) as base_url, edge(tunables=tunables, transport="websocket") as made:
        made.store.accounts[1] = replace(made.store.accounts[1], base_url=base_url)
        await made.runtime.registry.refresh()
        first = await made.answer(CODEX, body(), thread_id="t")
        assert events(first.body)[-1]["type"] == "response.completed"
        (lane,) = made.runtime.pool
        async with asyncio.timeout(5):
            await lane.connection.wait_closed()
        # Beside what waited in the gateway, some of it was under way.
        assert share <= pushed < share + 12 * MIB
        second = await made.answer(CODEX, body(), thread_id="t")
        assert events(second.body)[-1]["type"] == "response.completed"
