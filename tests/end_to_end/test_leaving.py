"""A client that leaves is noticed at once, whatever its turn is doing, and the upstream's work ends with it."""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tests.end_to_end.clients import body, frame, head, post, raw_http, request, socket, turn
from tests.support.ledger import TurnRow
from tests.support.processes import GatewayProcess, Installation, Observations, SimulatorProcess

pytestmark = pytest.mark.slow

AT_ONCE = 0.1
# A busy machine may be late now and then; a gateway that does not notice is late every time.
ATTEMPTS = 3


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    """It carries one turn at a time, over HTTP, and over lanes for the clients' WebSockets."""
    yield from new_installation().serve(GATEWAY_ADMISSION_TURNS="1")


@pytest.fixture(scope="module")
def lanes_gateway(
    new_installation: Callable[[], Installation], simulator_process: SimulatorProcess
) -> Iterator[GatewayProcess]:
    """The same over lanes alone."""
    installation = new_installation()
    installation.add_account("ada", simulator_process.base_url(), "--transport", "websocket", "--replace")
    yield from installation.serve(GATEWAY_ADMISSION_TURNS="1")


class Client:
    """A client whose request is on its way."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    def leave(self, *, reset: bool) -> float:
        """End the connection without any farewell; the moment, in unix seconds."""
        if reset:
            # With a linger time of zero the kernel sends RST instead of FIN.
            raw: sockets.socket = self._transport.get_extra_info("socket")
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        left = time.time()
        self._transport.abort()
        return left


Ask = Callable[[GatewayProcess], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def over_sse(gateway: GatewayProcess) -> AsyncIterator[Client]:
    async with raw_http(gateway) as client:
        await client.send(request(gateway, body()))
        yield Client(client.writer.transport)


@asynccontextmanager
async def over_a_websocket(gateway: GatewayProcess) -> AsyncIterator[Client]:
    async with socket(gateway, close_timeout=0.1) as connection:
        await connection.send(frame())
        yield Client(connection.transport)


class Scene:
    """A gateway and what its ledger and its upstream say of one attempt."""

    def __init__(self, gateway: GatewayProcess, upstream: SimulatorProcess) -> None:
        upstream.until(lambda seen: not seen.running and not seen.open_sockets)
        upstream.forget()
        self.gateway = gateway
        self._upstream = upstream
        self._since = gateway.ledger.mark()

    async def until(self, condition: Callable[[Observations], object]) -> Observations:
        return await asyncio.to_thread(self._upstream.until, condition)

    async def first(self, condition: Callable[[TurnRow], object]) -> TurnRow:
        return await asyncio.to_thread(self.gateway.ledger.first, self._since, condition)

    async def client_gone(self) -> TurnRow:
        """The settled row of the turn whose client has left."""
        row = await self.first(lambda row: row.outcome)
        assert (row.outcome, row.cause, row.code) == ("client_gone", "client_gone", "client_gone")
        return row

    async def ended(self) -> float:
        """When the turn was settled and the upstream had seen its request end, whichever was later."""
        row = await self.client_gone()
        (record,) = (await self.until(lambda seen: not seen.running)).requests
        assert record.outcome == "client_gone"
        return max(row.settled, record.ended_at or 0.0)


async def at_once(measure: Callable[[], Awaitable[float]]) -> None:
    """What `measure` measures, in seconds, is short."""
    delays: list[float] = []
    while not delays or (delays[-1] > AT_ONCE and len(delays) < ATTEMPTS):
        delays.append(await measure())
    assert delays[-1] <= AT_ONCE, f"noticed only after {delays} s"


endings = pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
both = pytest.mark.parametrize("ask", [over_sse, over_a_websocket])
everywhere = pytest.mark.parametrize(
    ("chosen", "ask"),
    [("gateway", over_sse), ("lanes_gateway", over_sse), ("gateway", over_a_websocket)],
    ids=["SSE over HTTP", "SSE over a lane", "WebSocket"],
    indirect=["chosen"],
)


@pytest.fixture
def chosen(request: pytest.FixtureRequest) -> GatewayProcess:
    """The gateway that a parameter names."""
    process = request.getfixturevalue(request.param)
    assert isinstance(process, GatewayProcess)
    return process


@endings
@both
async def test_a_client_that_waits_for_admission(
    gateway: GatewayProcess, upstream: SimulatorProcess, ask: Ask, reset: bool
):
    upstream.add_fault("silent")

    async def measure() -> float:
        scene = Scene(gateway, upstream)
        async with over_sse(gateway) as holder:
            await scene.until(lambda seen: seen.running)
            async with ask(gateway) as waiting:
                # Nothing outside shows that it waits.
                await asyncio.sleep(0.05)
                left = waiting.leave(reset=reset)
                row = await scene.client_gone()
            assert row.admitted_ms is None
            assert len((await scene.until(lambda seen: seen.running)).requests) == 1
            holder.leave(reset=False)
        return row.settled - left

    await at_once(measure)


@endings
@both
async def test_a_client_whose_upstream_does_not_answer_the_handshake(
    lanes_gateway: GatewayProcess, upstream: SimulatorProcess, ask: Ask, reset: bool
):
    upstream.add_fault("hang_handshake")

    async def measure() -> float:
        scene = Scene(lanes_gateway, upstream)
        async with ask(lanes_gateway) as connecting:
            await scene.until(lambda seen: seen.sockets)
            left = connecting.leave(reset=reset)
            row = await scene.client_gone()
        assert row.sent_ms is None
        (record,) = (await scene.until(lambda seen: seen.sockets[0].closed_at)).sockets
        return max(row.settled, record.closed_at or 0.0) - left

    await at_once(measure)


@endings
@everywhere
async def test_a_client_whose_upstream_is_silent(
    chosen: GatewayProcess, upstream: SimulatorProcess, ask: Ask, reset: bool
):
    upstream.add_fault("silent")

    async def measure() -> float:
        scene = Scene(chosen, upstream)
        async with ask(chosen) as silent:
            await scene.until(lambda seen: seen.running)
            left = silent.leave(reset=reset)
            return await scene.ended() - left

    await at_once(measure)


@endings
@everywhere
async def test_a_client_whose_answer_streams(chosen: GatewayProcess, upstream: SimulatorProcess, ask: Ask, reset: bool):
    upstream.add_fault("flood:1000", "slow:0.02")

    async def measure() -> float:
        scene = Scene(chosen, upstream)
        async with ask(chosen) as streaming:
            await scene.until(lambda seen: seen.requests and seen.requests[0].events_sent > 5)
            left = streaming.leave(reset=reset)
            return await scene.ended() - left

    await at_once(measure)


@endings
async def test_a_client_in_the_middle_of_an_upload(gateway: GatewayProcess, upstream: SimulatorProcess, reset: bool):
    """Its place goes to the client that waits for it."""

    async def measure() -> float:
        scene = Scene(gateway, upstream)
        async with raw_http(gateway) as uploader:
            await uploader.send(head(gateway, 1_000_000) + b"{" * 500_000)
            # Nothing outside shows that it is admitted, and that the next one waits.
            await asyncio.sleep(0.05)
            waiting = asyncio.ensure_future(post(gateway, body()))
            await asyncio.sleep(0.05)
            left = Client(uploader.writer.transport).leave(reset=reset)
            assert (await waiting).status_code == 200
        row = await scene.first(lambda row: row.outcome == "completed")
        assert row.admitted >= left
        return row.admitted - left

    await at_once(measure)


@endings
async def test_a_client_in_the_middle_of_a_frame(gateway: GatewayProcess, upstream: SimulatorProcess, reset: bool):
    """The lane that its earlier turn used ends with it."""

    async def measure() -> float:
        scene = Scene(gateway, upstream)
        async with socket(gateway, close_timeout=0.1) as connection:
            await turn(connection, frame())
            whole = frame("x" * 500_000)
            sending = asyncio.ensure_future(connection.send(half_of(whole)))
            await asyncio.sleep(0.05)
            left = Client(connection.transport).leave(reset=reset)
            sending.cancel()
        (record,) = (await scene.until(lambda seen: not seen.open_sockets)).sockets
        return (record.closed_at or 0.0) - left

    await at_once(measure)


async def half_of(text: str) -> AsyncIterator[str]:
    """The first half of a message, as fragments, and then nothing for a long time."""
    for start in range(0, len(text) // 2, 100_000):
        yield text[start : start + 100_000]
    await asyncio.Event().wait()


@endings
async def test_a_client_between_two_turns(gateway: GatewayProcess, upstream: SimulatorProcess, reset: bool):
    """The lane that its WebSocket had to itself ends with it."""

    async def measure() -> float:
        scene = Scene(gateway, upstream)
        async with socket(gateway, close_timeout=0.1) as connection:
            await turn(connection, frame())
            assert (await scene.until(lambda seen: not seen.running)).open_sockets == 1
            left = Client(connection.transport).leave(reset=reset)
        (record,) = (await scene.until(lambda seen: not seen.open_sockets)).sockets
        return (record.closed_at or 0.0) - left

    await at_once(measure)
