"""A network for the pool that does what a test says: dials that end when told, sockets that break when told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.clock import Clock
from gateway.diagnostics import Trace
from gateway.errors import ConnectFailed, UpstreamLost
from gateway.upstream.connection import Take
from gateway.upstream.exchange import Target
from gateway.upstream.lane import LaneExchange, LaneKey


@dataclass
class Time:
    """Seconds that pass when a test says so."""

    now: float = 1000.0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, wall=lambda: self.now)


@dataclass
class Handshake:
    """The upstream's answer to a handshake, as far as a lane reads it."""

    headers: Headers


class Headers:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def raw_items(self) -> list[tuple[str, str]]:
        return list(self._values.items())


class FakeConnection:
    """What a lane needs of its socket. `closable` says whether the closing handshake comes to its end, `close_error`
    whether that is an exception and `stays_open` whether it does nothing, with the socket still open."""

    def __init__(self) -> None:
        self.listener = None
        self.close_code: int | None = None
        self.last_heard = 0.0
        self.got_binary = False
        self.latency = 0.0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.response: Handshake | None = None
        self.incoming: list[bytes] = []
        self.written: list[bytes] = []
        self.pings = 0
        self.pong: bool | asyncio.Future[bool] = True
        self.close_calls = 0
        self.close_error: Exception | None = None
        self.stays_open = False
        self.closable = asyncio.Event()
        self.closable.set()

    @property
    def open(self) -> bool:
        return self.close_code is None

    @property
    def waiting_messages(self) -> int:
        return len(self.incoming)

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self.incoming))

    def push(self, *messages: bytes) -> None:
        """The upstream sends."""
        for message in messages:
            self.incoming.append(message)
            if self.listener is not None:
                self.listener.backlog_grew(self.waiting_bytes)

    def lose(self) -> None:
        """The socket is gone, whoever ended it."""
        if self.open:
            self.close_code = 1006
            if self.listener is not None:
                self.listener.connection_lost()

    async def read(self, take: Take | None = None) -> list[bytes]:
        """What was pushed, each message offered first as if it had come alone."""
        while self.incoming and take is not None and take(self.incoming[:1]):
            del self.incoming[0]
        messages, self.incoming = self.incoming, []
        if not messages:
            raise UpstreamLost("The fake upstream is gone.")
        return messages

    async def write(self, text: bytes) -> None:
        if not self.open:
            raise ConnectFailed("The fake lane is closed.", code="lane_closed")
        self.written.append(text)

    async def answers_ping(self, within: float) -> bool:
        self.pings += 1
        if isinstance(self.pong, bool):
            return self.pong
        return await self.pong

    async def close(self) -> None:
        self.close_calls += 1
        await self.closable.wait()
        if self.close_error is not None:
            raise self.close_error
        if not self.stays_open:
            self.lose()


@dataclass
class FakeDialer:
    """Dials at once, or, with `held`, when the test ends a dial of `pending`."""

    held: bool = False
    error: Exception | None = None
    dialled: list[FakeConnection] = field(default_factory=list)
    pending: list[asyncio.Future[FakeConnection]] = field(default_factory=list)
    most_open: int = 0

    async def __call__(self, target: Target) -> FakeConnection:
        if self.error is not None:
            raise self.error
        if self.held:
            future = asyncio.get_running_loop().create_future()
            self.pending.append(future)
            try:
                return await future
            finally:
                self.pending.remove(future)
        # A real dial gives others their turn.
        await asyncio.sleep(0)
        return self.connect()

    def connect(self) -> FakeConnection:
        connection = FakeConnection()
        self.dialled.append(connection)
        self.most_open = max(self.most_open, len(self.open))
        return connection

    @property
    def open(self) -> list[FakeConnection]:
        return [connection for connection in self.dialled if connection.open]


def target(account: int = 1) -> Target:
    trace = Trace("turn", "replica", "ada", 1, Clock())
    return Target(account, "http://127.0.0.1:1/v1", [("authorization", "Bearer sk-secret")], trace)


def key(session: str = "s", account: int = 1, client: int = 1) -> LaneKey:
    return LaneKey(account, client, session)


def socket_of(exchange: LaneExchange) -> FakeConnection:
    """The fake socket under an exchange."""
    connection = exchange.lane.connection
    assert isinstance(connection, FakeConnection)
    return connection
