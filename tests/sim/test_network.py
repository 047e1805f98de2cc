"""The network of a simulated world does what TCP does, and what happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from tests.sim.loop import SimLoop
from tests.sim.network import GIVES_UP, HIGH_WATER, End, Network, Weather


class Peer(asyncio.Protocol):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.eof = False
        self.lost: list[Exception | None] = []
        self.paused = False
        self.end: End

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, End)
        self.end = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


def connected(work: Callable[[Network, Peer, Peer], Awaitable[None]], weather: Weather | None = None) -> None:
    """Run `work` with both ends of a connection."""

    async def live() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.network = network = Network(Random(3), weather or Weather())
        made: list[Peer] = []

        def accept() -> Peer:
            made.append(Peer())
            return made[0]

        await loop.create_server(accept, port=80)
        _, client = await loop.create_connection(Peer, "ada", 80)
        await asyncio.sleep(2)
        await work(network, client, made[0])

    loop = SimLoop(Random(1))
    loop.run_until_complete(live())
    loop.close()


def test_what_is_written_right_behind_something_now_and_then_arrives_together_with_it():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        arrivals: list[float] = []
        now = asyncio.get_running_loop().time
        server.data_received = lambda data: arrivals.append(now())  # type: ignore[method-assign]
        for _ in range(300):
            client.end.write(b"x")
            await asyncio.sleep(0.0001)
            client.end.write(b"y")
            await asyncio.sleep(1)
        together = sum(first == second for first, second in zip(arrivals[::2], arrivals[1::2], strict=True))
        assert 30 < together < 100

    connected(work, Weather(split=0.0))


def test_bytes_arrive_whole_and_in_order_however_they_are_cut():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        sent = bytes(range(256)) * 20
        for at in range(0, len(sent), 100):
            client.end.write(sent[at : at + 100])
        await asyncio.sleep(5)
        assert server.data == sent
        assert server.pieces > len(sent) / 100

    connected(work, Weather(split=1.0))


def test_a_close_comes_after_what_was_written_and_a_reset_ends_both():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        client.end.write(b"last words")
        client.end.close()
        await asyncio.sleep(1)
        assert (server.data, server.eof, server.lost, client.lost) == (b"last words", True, [None], [None])
        assert not network.connections

    connected(work)


def test_an_abort_is_a_reset_for_the_peer():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        client.end.abort()
        await asyncio.sleep(1)
        assert client.lost == [None]
        assert [type(error) for error in server.lost] == [ConnectionResetError]

    connected(work)


def test_a_half_open_connection_swallows_bytes_until_the_server_gives_it_up():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        client.end.connection.go_half_open()
        client.end.write(b"hello?")
        await asyncio.sleep(GIVES_UP - 1)
        assert (server.data, server.lost, client.lost) == (b"", [], [])
        await asyncio.sleep(2)
        assert [type(error) for error in server.lost] == [TimeoutError]
        assert client.lost == [], "nobody tells the client"

    connected(work)


def test_a_reader_that_stalls_is_felt_by_the_writer():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        server.end.pause_reading()
        for _ in range(4):
            client.end.write(b"x" * HIGH_WATER)
        await asyncio.sleep(1)
        assert client.paused
        assert server.data == b""
        server.end.resume_reading()
        await asyncio.sleep(1)
        assert not client.paused
        assert len(server.data) == 4 * HIGH_WATER

    connected(work)


def test_a_host_in_the_dark_cannot_be_reached():
    async def work(network: Network, client: Peer, server: Peer) -> None:
        network.go_dark("ada")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await network.connect("ada", 80, Peer)
        network.go_bright("ada")
        assert await network.connect("ada", 80, Peer)
        with pytest.raises(ConnectionRefusedError):
            await network.connect("ada", 81, Peer)

    connected(work)
