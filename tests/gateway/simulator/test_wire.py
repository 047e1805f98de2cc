import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.simulator.wire import Wire


class Echo:
    """A receiver that keeps what comes and notes when the wire is lost."""

    def __init__(self) -> None:
        self.data = b""
        self.lost_at: list[bytes] = []

    def received(self, data: bytes) -> None:
        self.data += data

    def lost(self) -> None:
        self.lost_at.append(self.data)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Wire, Echo, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A wire with its receiver, and the client's end."""
    receiver = Echo()
    opened: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()

    def open_wire(wire: Wire) -> Echo:
        opened.set_result(wire)
        return receiver

    server = await asyncio.get_running_loop().create_server(lambda: Wire(open_wire, lambda wire: None), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    wire = await opened
    try:
        yield wire, receiver, reader, writer
    finally:
        writer.close()
        wire.abort()
        await wire.wait_closed()
        server.close()


async def test_bytes_go_both_ways() -> None:
    async with connected() as (wire, receiver, reader, writer):
        writer.write(b"to the wire")
        wire.write(b"from the wire")

        assert await reader.readexactly(13) == b"from the wire"
        wire.close()
        assert await reader.read() == b""
        assert receiver.data == b"to the wire"


async def test_a_reset_is_no_ordinary_end() -> None:
    async with connected() as (wire, _, reader, _):
        wire.reset()

        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_a_client_that_ends_its_stream_has_left_and_its_work_is_cancelled() -> None:
    async with connected() as (wire, receiver, _, writer):
        work = wire.spawn(asyncio.sleep(3600))

        writer.write(b"bye")
        writer.write_eof()
        await wire.wait_closed()

        assert work.cancelled()
        assert receiver.lost_at == [b"bye"]
        wire.write(b"into nothing")


async def test_a_client_that_leaves_is_noticed_while_it_reads_nothing() -> None:
    async with connected() as (wire, receiver, _, writer):
        wire.write(bytes(20_000_000))
        waiting = wire.spawn(wire.drain())
        await asyncio.sleep(0)
        assert not waiting.done()

        writer.write_eof()
        await wire.wait_closed()

        assert receiver.lost_at == [b""]


async def test_draining_ends_when_the_client_has_read() -> None:
    async with connected() as (wire, _, reader, _):
        wire.write(bytes(20_000_000))
        waiting = wire.spawn(wire.drain())

        await reader.readexactly(20_000_000)

        await waiting


async def test_work_that_fails_is_logged_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async with connected() as (wire, receiver, _, _):
        with caplog.at_level(logging.ERROR):
            wire.spawn(fail())
            await wire.wait_closed()

        assert receiver.lost_at == [b""]
        assert "failed" in caplog.text
