"""The physical upstream WebSocket: the library's connection, which counts what waits and tells when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import websockets.asyncio.client
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import BINARY, CLOSE, DATA_OPCODES, Frame
from websockets.http11 import Request, Response
from websockets.protocol import State

from gateway.clock import Clock
from gateway.conf import MIB, Tunables
from gateway.diagnostics import address
from gateway.errors import ConnectFailed
from gateway.upstream.exchange import Target
from gateway.upstream.translate import dial_error, lane_error

MAX_FRAME = 16 * MIB
# What one `read` returns at the most, so that a flood is relayed in pieces and memory stays bounded.
READ_BATCH = 256 * 1024
# Fewer waiting bytes than this are told to nobody: no limit is that small, and most events find none waiting.
NOTEWORTHY = 64 * 1024


class ConnectionListener(Protocol):
    """Whoever holds a connection; both are called on the event loop and must return at once."""

    def backlog_grew(self, size: int) -> None:
        """`size` bytes of messages wait to be read; told from `NOTEWORTHY` on."""

    def connection_lost(self) -> None:
        """The socket is closed; nothing will be read or sent any more."""


class LaneConnection(ClientConnection):
    """Reading is never paused, since a paused socket hides its pongs; what waits is counted instead.

    Messages go from the parser straight to whoever reads. The library's own queue, made for any number of readers and
    for flow control, would take half of the time that a relayed event costs.
    """

    listener: ConnectionListener | None = None
    last_heard = 0.0
    got_binary = False
    _discarding = False

    def __init__(self, protocol: ClientProtocol, **options: Any) -> None:
        super().__init__(protocol, **options)
        self.waiting_bytes = 0
        self._messages: list[bytes] = []
        self._fragments = bytearray()
        self._reader: asyncio.Future[None] | None = None
        self._lost = False

    @property
    def waiting_messages(self) -> int:
        """Complete messages that nobody has read yet."""
        return len(self._messages)

    def process_event(self, event: Request | Response | Frame) -> None:
        if isinstance(event, Frame):
            self.last_heard = self.loop.time()
            if event.opcode in DATA_OPCODES:
                if not self._discarding:
                    self._take_frame(event)
                return
            if event.opcode is CLOSE:
                # The library waits for the upstream to end TCP too, without a limit; a reader must not.
                self.loop.call_later(self.close_timeout or 0, self._abort)
        super().process_event(event)

    def _abort(self) -> None:
        if self.state is not State.CLOSED:
            self.transport.abort()

    def _take_frame(self, frame: Frame) -> None:
        data = bytes(frame.data)
        self.waiting_bytes += len(data)
        if frame.opcode is BINARY:
            self.got_binary = True
        if frame.fin and not self._fragments:
            self._messages.append(data)
        else:
            self._fragments += data
            if frame.fin:
                self._messages.append(bytes(self._fragments))
                self._fragments.clear()
        if self._reader is not None and self._messages and not self._reader.done():
            self._reader.set_result(None)
        if self.listener is not None and self.waiting_bytes > NOTEWORTHY:
            self.listener.backlog_grew(self.waiting_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self.listener is not None:
            self.listener.connection_lost()

    def discard(self) -> None:
        """Nobody will read any more: drop what waits, and what still comes until the socket is closed."""
        self._discarding = True
        self.waiting_bytes = 0
        self._messages.clear()
        self._fragments.clear()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close in good order. Until the upstream has answered it may send on, and none of that is kept."""
        self.discard()
        await super().close(code, reason)

    async def read(self) -> list[bytes]:
        """Wait for a message, then take all that are complete, up to a batch; raises `UpstreamError`s.

        One task reads at a time. A cancelled read loses nothing.
        """
        while not self._messages:
            if self._lost:
                raise lane_error(self.close_exc) from self.close_exc
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self.waiting_bytes <= READ_BATCH:
            messages, self._messages = self._messages, []
        else:
            messages = self._first_batch()
        for message in messages:
            self.waiting_bytes -= len(message)
        return messages

    def _first_batch(self) -> list[bytes]:
        """Take messages from the front until they make a batch, at least one."""
        size = count = 0
        for message in self._messages:
            size += len(message)
            count += 1
            if size >= READ_BATCH:
                break
        messages = self._messages[:count]
        del self._messages[:count]
        return messages

    async def write(self, text: bytes) -> None:
        """Send one text frame; raises `UpstreamError`s. `ConnectFailed` means that provably nothing was sent."""
        if self.state is not State.OPEN:
            raise ConnectFailed("The upstream closed its WebSocket before the request was sent.", code="lane_closed")
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
