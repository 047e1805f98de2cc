"""The physical upstream WebSocket: the library's connection, which counts what waits and tells when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import websockets.asyncio.client
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import BINARY, DATA_OPCODES, Frame
from websockets.http11 import Request, Response

from gateway.clock import Clock
from gateway.conf import MIB, Tunables
from gateway.diagnostics import address
from gateway.upstream.exchange import Target
from gateway.upstream.translate import dial_error, lane_error

MAX_FRAME = 16 * MIB
# What one `read` returns at the most, so that a flood is relayed in pieces and memory stays bounded.
READ_BATCH = 256 * 1024


class ConnectionListener(Protocol):
    """Whoever holds a connection; both are called on the event loop and must return at once."""

    def backlog_grew(self, size: int) -> None:
        """`size` bytes of messages wait to be read."""

    def connection_lost(self) -> None:
        """The socket is closed; nothing will be read or sent any more."""


class LaneConnection(ClientConnection):
    """Reading is never paused, since a paused socket hides its pongs; what waits is counted instead."""

    listener: ConnectionListener | None = None
    waiting_bytes = 0
    waiting_messages = 0
    last_heard = 0.0
    got_binary = False

    def process_event(self, event: Request | Response | Frame) -> None:
        if isinstance(event, Frame):
            self.last_heard = self.loop.time()
            if event.opcode in DATA_OPCODES:
                self.waiting_bytes += len(event.data)
                self.waiting_messages += event.fin
                self.got_binary |= event.opcode is BINARY
                super().process_event(event)
                if self.listener is not None:
                    self.listener.backlog_grew(self.waiting_bytes)
                return
        super().process_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener.connection_lost()

    async def read(self) -> list[bytes]:
        """Wait for a message, then take all that are complete, up to a batch; raises `UpstreamError`s."""
        messages = [await self._read_one()]
        size = len(messages[0])
        while self.waiting_messages and size < READ_BATCH:
            message = await self._read_one()
            messages.append(message)
            size += len(message)
        return messages

    async def _read_one(self) -> bytes:
        try:
            message = await self.recv(decode=False)
        except ConnectionClosed as error:
            raise lane_error(error) from error
        self.waiting_bytes -= len(message)
        self.waiting_messages -= 1
        return message

    async def write(self, text: bytes) -> None:
        """Send one text frame; raises `UpstreamError`s."""
        try:
            await self.send(text, text=True)
        except ConnectionClosed as error:
            raise lane_error(error) from error

    async def answers_ping(self, within: float) -> bool:
        """Whether a pong comes within so many seconds."""
        try:
            async with asyncio.timeout(within):
                await (await self.ping())
        except (TimeoutError, ConnectionClosed):
            return False
        return True


class _Connect(websockets.asyncio.client.connect):
    """The library's dialler with a limit of its own for the TCP connection, and without redirects."""

    connect_timeout: float

    async def open_tcp_connection(self) -> ClientConnection:
        async with asyncio.timeout(self.connect_timeout):
            return await super().open_tcp_connection()

    def process_redirect(self, exc: Exception) -> Exception | str:
        # The account's credentials go to the account's address only.
        return exc


Dial = Callable[[Target], Awaitable[LaneConnection]]


class WebSocketDialer:
    """Dials lanes. Injected into the pool, so that a simulated network can take its place."""

    def __init__(self, tunables: Tunables, clock: Clock) -> None:
        self._tunables = tunables
        self._clock = clock

    async def __call__(self, target: Target) -> LaneConnection:
        """Open a WebSocket to `target`; raises `ConnectFailed` or `UpstreamRefused`."""
        t = self._tunables
        connect = _Connect(
            websocket_url(target.base_url),
            create_connection=LaneConnection,
            additional_headers=list(target.headers),
            user_agent_header=None,
            proxy=target.proxy,
            compression=None,
            max_size=MAX_FRAME,
            max_queue=None,
            open_timeout=t.handshake_timeout,
            ping_interval=t.ping_interval,
            ping_timeout=t.websocket_idle_timeout,
            close_timeout=t.close_timeout,
        )
        connect.connect_timeout = t.connect_timeout
        with target.trace.connecting(connect.uri) as connecting:
            try:
                connection = await connect
            except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
                raise dial_error(error, self._clock.wall()) from error
            assert isinstance(connection, LaneConnection)  # noqa: S101  # `create_connection` made it
            connecting.peer_address = address(connection.remote_address)
            return connection


def websocket_url(base_url: str) -> str:
    """`https://host/path` as `wss://host/path/responses`."""
    return "ws" + base_url.removeprefix("http") + "/responses"
