"""The sockets beneath httpx: bytes pass, ends and limits have their errors, a read that was given up loses nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpcore
import httpx
import pytest

from gateway.upstream.network import MOST_WAITING, DirectTransport, SocketNetwork

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(peer: Peer) -> AsyncIterator[httpcore.AsyncNetworkStream]:
    """A stream to a server that runs `peer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await peer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        stream = await SocketNetwork().connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1], timeout=5)
        try:
            yield stream
        finally:
            await stream.aclose()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says nothing until it is left."""
    await reader.read(1)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100_000):
        writer.write(data)


async def test_bytes_pass_both_ways_and_no_more_than_were_asked_for() -> None:
    async with connected(echo) as stream:
        await stream.write(b"abc")
        assert await stream.read(2, timeout=5) == b"ab"
        assert await stream.read(2, timeout=5) == b"c"


async def test_the_end_is_read_after_everything_before_it_and_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")

    async with connected(talk) as stream:
        assert await stream.read(100, timeout=5) == b"last words"
        assert await stream.read(100, timeout=5) == b""
        assert await stream.read(100, timeout=5) == b""
        assert stream.get_extra_info("is_readable")


async def test_a_read_that_was_given_up_loses_nothing() -> None:
    async with connected(echo) as stream:
        with pytest.raises(httpcore.ReadTimeout):
            await stream.read(100, timeout=0.01)
        reading = asyncio.ensure_future(stream.read(100, timeout=5))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        await stream.write(b"abc")
        assert await stream.read(100, timeout=5) == b"abc"


async def test_each_read_has_the_whole_time_that_it_was_given() -> None:
    async with connected(echo) as stream:
        for _ in range(4):
            await asyncio.sleep(0.03)
            reading = asyncio.ensure_future(stream.read(100, timeout=0.1))
            await asyncio.sleep(0.03)
            await stream.write(b".")
            assert await reading == b"."
        with pytest.raises(httpcore.ReadTimeout):
            await stream.read(100, timeout=0.05)


async def test_a_reset_is_an_error_of_reading_and_of_writing() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with connected(reset) as stream:
        with pytest.raises(httpcore.ReadError):
            await stream.read(100, timeout=5)
        with pytest.raises(httpcore.WriteError):
            await stream.write(b"abc")


async def test_what_nobody_reads_stops_the_sender() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(400):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with connected(flood) as stream:
        await asyncio.sleep(0.2)
        stopped = sent
        assert stopped < 30_000_000
        received = 0
        while data := await stream.read(65536, timeout=5):
            assert len(data) <= 65536
            received += len(data)
    assert received == 40_000_000
    assert stopped > MOST_WAITING


async def test_a_peer_that_takes_nothing_is_waited_for_so_long() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await asyncio.sleep(1)

    async with connected(deaf) as stream:
        with pytest.raises(httpcore.WriteTimeout):
            await stream.write(b"x" * 50_000_000, timeout=0.05)


async def test_nobody_there_is_an_error_of_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(httpcore.ConnectError):
        await SocketNetwork().connect_tcp("127.0.0.1", port, timeout=5)
    with pytest.raises(httpcore.ConnectTimeout):
        await SocketNetwork().connect_tcp("127.0.0.1", port, timeout=0)


async def test_something_else_than_tls_is_an_error_of_connecting() -> None:
    async with connected(echo) as stream:
        with pytest.raises(httpcore.ConnectError):
            await stream.start_tls(httpx.create_ssl_context(trust_env=False), "localhost", timeout=5)


async def test_a_connection_that_its_peer_has_closed_is_not_used_again() -> None:
    answers = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        await reader.readuntil(b"\r\n\r\n")
        answers += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    server = await asyncio.start_server(lambda reader, writer: leave_after(once, reader, writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, httpx.AsyncClient(transport=DirectTransport(httpx.Limits())) as client:
        for _ in range(3):
            assert (await client.get(url)).text == "ok"
    assert answers == 3


async def leave_after(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await peer(reader, writer)
    writer.close()
