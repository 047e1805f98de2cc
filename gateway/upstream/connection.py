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

from accounts.proxy import proxy_for_websockets
from gateway.clock import Clock
from gateway.conf import MIB, Tunables
from gateway.diagnostics import address
from gateway.errors import ConnectFailed
from gateway.protocol.frames import FrameCutter
from gateway.upstream.exchange import Target
from gateway.upstream.translate import dial_error, lane_error

MAX_FRAME = 16 * MIB
# What one `read` returns at the most, so that a flood is relayed in pieces and memory stays bounded.
READ_BATCH = 256 * 1024
# Fewer waiting bytes than this are told to nobody: no limit is that small, and most events find none waiting.
NOTEWORTHY = 64 * 1024


# Takes messages the moment they arrive, all or none; called on the event loop, it must return at once.
Take = Callable[[list[bytes]], bool]


class ConnectionListener(Protocol):
    """Whoever holds a connection; both are called on the event loop and must return at once."""

    def backlog_grew(self, size: int) -> None:
        """`size` bytes of messages wait to be read; told from `NOTEWORTHY` on."""

    def connection_lost(self) -> None:
        """The socket is closed; nothing will be read or sent any more."""


class LaneConnection(ClientConnection):
    """Reading is never paused, since a paused socket hides its pongs; what waits is counted instead.

    Text messages go from the socket straight to whoever reads. The library's parser, and its queue, which is made for
    any number of readers and for flow control, would take most of the time that a relayed event costs. They get the
    handshake and every frame that is not a short and whole text.
    """

    listener: ConnectionListener | None = None
    last_heard = 0.0
    got_binary = False

    def __init__(self, protocol: ClientProtocol, **options: Any) -> None:
        super().__init__(protocol, **options)
        self.sent_bytes = 0
        self.received_bytes = 0
        self._frames = FrameCutter()
        self._handshake_end = b""
        self._messages: list[bytes] = []
        self._size = 0
        self._fragments = bytearray()
        self._reader: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._discarding = False
        self._lost = False

    @property
    def waiting_messages(self) -> int:
        """Complete messages that nobody has read yet."""
        return len(self._messages)

    @property
    def waiting_bytes(self) -> int:
        """What nobody has read yet, parts of messages included."""
        return self._size + len(self._fragments)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self.loop.time()
        state = self.protocol.state
        if state is State.CONNECTING:
            data = self._shake_hands(data)
        elif state is State.OPEN:
            self.received_bytes += len(data)
            messages, data = self._frames.cut(data)
            if messages and not (self._take is not None and self._take(messages)):
                self._keep(messages)
        if data:
            super().data_received(data)

    def _shake_hands(self, data: bytes) -> bytes:
        """Give the library a response's head; frames may follow in the same piece. Returns what is the library's."""
        seen = self._handshake_end + data
        end = seen.find(b"\r\n\r\n") + 4
        if end < 4:
            self._handshake_end = seen[-3:]
            return data
        head, rest = data[: len(data) - len(seen) + end], seen[end:]
        super().data_received(head)
        if self.protocol.state is State.CONNECTING:
            return rest
        if rest:
            self.data_received(rest)
        return b""

    def process_event(self, event: Request | Response | Frame) -> None:
        if isinstance(event, Frame):
            if event.opcode in DATA_OPCODES:
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
        """A frame that the library has read: long, binary, or a part of a message."""
        if frame.opcode is BINARY:
            self.got_binary = True
        if frame.fin and not self._fragments:
            self._keep([bytes(frame.data)])
        elif not self._discarding:
            self._fragments += frame.data
            if frame.fin:
                message = bytes(self._fragments)
                self._fragments.clear()
                self._keep([message])
            else:
                self._tell_backlog()

    def _keep(self, messages: list[bytes]) -> None:
        """Let messages wait, and wake whoever waits for them."""
        if self._discarding:
            return
        self._messages += messages
        self._size += sum(map(len, messages))
        self._wake_reader()
        self._tell_backlog()

    def _wake_reader(self) -> None:
        # What comes from now on is behind what the reader will find.
        self._take = None
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _tell_backlog(self) -> None:
        if self.listener is not None and self.waiting_bytes > NOTEWORTHY:
            self.listener.backlog_grew(self.waiting_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        self._wake_reader()
        if self.listener is not None:
            self.listener.connection_lost()

    def discard(self) -> None:
        """Nobody will read any more: drop what waits, and what still comes until the socket is closed."""
        self._discarding = True
        self._size = 0
        self._messages.clear()
        self._fragments.clear()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close in good order. Until the upstream has answered it may send on, and none of that is kept."""
        self.discard()
        await super().close(code, reason)

    async def read(self, take: Take | None = None) -> list[bytes]:
        """Wait for a message, then take all that are complete, up to a batch; raises `UpstreamError`s.

        One task reads at a time. A cancelled read loses nothing. While it waits, messages are offered to `take` first,
        and are not returned if it takes them.
        """
        while not self._messages:
            if self._lost:
                raise lane_error(self.close_exc) from self.close_exc
            self._reader = self.loop.create_future()
            self._take = take
            try:
                await self._reader
            finally:
                self._reader = self._take = None
        if self._size <= READ_BATCH:
            messages, self._messages = self._messages, []
        else:
            messages = self._first_batch()
        self._size -= sum(map(len, messages))
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
        self.sent_bytes += len(text)

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
            proxy=proxy_for_websockets(target.proxy),
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
