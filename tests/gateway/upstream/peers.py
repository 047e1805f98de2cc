"""Upstreams on real sockets: one that speaks by the library, and one that falls silent after the handshake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request
from websockets.server import ServerProtocol

Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def speaking(handler: Handler, **options: Any) -> AsyncIterator[str]:
    """A WebSocket server that runs `handler` for each connection; its base URL."""
    settings = {"compression": None, "ping_interval": None, "close_timeout": 0.2, **options}
    async with serve(handler, "127.0.0.1", 0, **settings) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}"


async def until_closed(connection: ServerConnection) -> None:
    """A handler that says nothing."""
    await connection.wait_closed()


class DeadPeer(asyncio.Protocol):
    """Completes the handshake, then reads nothing and says nothing: a path that broke without a word."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.protocol = ServerProtocol()

    def data_received(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Request):
                self.protocol.send_response(self.protocol.accept(event))
        self.say_more()
        self.transport.write(b"".join(self.protocol.data_to_send()))
        self.transport.pause_reading()

    def say_more(self) -> None:
        """A dead peer says nothing."""


class LeavingPeer(DeadPeer):
    """Sends a close frame right after the handshake and leaves the TCP connection open."""

    def say_more(self) -> None:
        self.protocol.send_close(1000)


class TalkativePeer(DeadPeer):
    """Sends texts in the same piece as its answer to the handshake, the last one in the middle of a frame."""

    TEXTS = (b"early", b"x" * 200, b"bird")

    def say_more(self) -> None:
        for text in self.TEXTS:
            self.protocol.send_text(text)
        data = b"".join(self.protocol.data_to_send())
        self.transport.write(data[:-3])
        asyncio.get_running_loop().call_later(0.05, self.transport.write, data[-3:])


@asynccontextmanager
async def tcp(factory: Callable[[], asyncio.BaseProtocol]) -> AsyncIterator[str]:
    """A TCP server that makes a protocol for each connection; its base URL."""
    made: list[asyncio.BaseProtocol] = []

    def make() -> asyncio.BaseProtocol:
        made.append(factory())
        return made[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for protocol in made:
            transport = getattr(protocol, "transport", None)
            if transport is not None:
                transport.abort()
        server.close()
        await server.wait_closed()


class Mute(asyncio.Protocol):
    """Accepts connections and answers nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Answering(Mute):
    """Answers whatever comes with these bytes, and closes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(self.answer)
        self.transport.close()
