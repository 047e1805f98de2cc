"""A network in memory: connections with latency, partial writes, flow control, and what goes wrong with them.

An end of a connection is an asyncio transport. Bytes arrive in order within a connection, and in any order between
two. What the sender has written and the receiver has not taken counts against the sender's limits, so a peer that
reads nothing is felt.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from tests.sim.loop import Process

HIGH_WATER = 64 * 1024
LOW_WATER = 16 * 1024
# Reading stopped, the kernels still take so much.
WINDOW = 48 * 1024
LATENCY = (0.0005, 0.02)
# Seconds until a server notices that nothing arrives at its client any more.
GIVES_UP = 30.0
# The most that one piece of data is late on a healthy connection.
SLOWEST = 0.25
# The most that a piece waits for those that are written right behind it, to arrive together with them.
JOINING = 0.002


@dataclass
class Weather:
    """What the network does to new connections, as chances, and which hosts cannot be reached at the moment."""

    refuse: float = 0.0
    hang: float = 0.0
    dies_on_accept: float = 0.0
    half_open: float = 0.0
    reset: float = 0.0
    slow_accept: float = 0.2
    split: float = 0.2
    dark: dict[str, None] = field(default_factory=dict)


class Network:
    """Connects hosts to whoever listens on a port; the host is a label, which `Weather` knows."""

    def __init__(self, random: Random, weather: Weather | None = None) -> None:
        self.random = random
        self.weather = weather or Weather()
        self.connections: dict[Connection, None] = {}
        # By the order in which the server has accepted them, which is how the server counts them.
        self.accepted: dict[int, Connection] = {}
        self._accepted = 0
        self._listeners: dict[int, tuple[Callable[[], asyncio.Protocol], Context]] = {}
        self._count = 0

    def listen(self, port: int, factory: Callable[[], asyncio.Protocol]) -> Listening:
        self._listeners[port] = (factory, copy_context())
        return Listening(self, port)

    def go_dark(self, host: str) -> None:
        """From now on the host is out of reach: what is open goes half-open, and new connections hang."""
        self.weather.dark[host] = None
        for connection in tuple(self.connections):
            if connection.host == host:
                connection.go_half_open()

    def go_bright(self, host: str) -> None:
        self.weather.dark.pop(host, None)

    def accept(self, connection: Connection) -> int:
        self._accepted += 1
        self.accepted[self._accepted] = connection
        return self._accepted

    def close_port(self, port: int) -> None:
        self._listeners.pop(port, None)

    async def connect(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> End:
        """Like `loop.create_connection`; raises `OSError`, or hangs like a network that drops packets."""
        random, weather = self.random, self.weather
        drawn = random.random()
        await asyncio.sleep(random.uniform(*LATENCY))
        listener = self._listeners.get(port)
        if host in weather.dark or drawn < weather.hang:
            await asyncio.get_running_loop().create_future()
        if listener is None or drawn < weather.hang + weather.refuse:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")
        self._count += 1
        connection = Connection(self, self._count, host, factory(), listener)
        self.connections[connection] = None
        return connection.client


class Listening:
    """What `create_server` returns, as far as it is used."""

    def __init__(self, network: Network, port: int) -> None:
        self._network = network
        self._port = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self._port)

    def close(self) -> None:
        self._network.close_port(self._port)

    async def wait_closed(self) -> None:
        """Closing is done at once."""


class Connection:
    """Both ends of one TCP connection. `broken` names what the network has done to it."""

    def __init__(
        self,
        network: Network,
        number: int,
        host: str,
        protocol: asyncio.Protocol,
        listener: tuple[Callable[[], asyncio.Protocol], Context],
    ) -> None:
        self.network = network
        self.number = number
        self.host = host
        self.broken = ""
        self.accepted_as = 0
        self.latency = network.random.uniform(*LATENCY)
        factory, context = listener
        self.client = End(self, copy_context())
        self.server = End(self, context)
        self.client.peer, self.server.peer = self.server, self.client
        self.client.begin(protocol)
        self._accept(factory)
        self._draw_fate()

    def __repr__(self) -> str:
        return f"<Connection {self.number} {self.host}{self.broken and ' ' + self.broken}>"

    @property
    def swallows(self) -> bool:
        return self.broken == "half-open"

    def delay(self) -> float:
        random = self.network.random
        drawn = random.random()
        if drawn < 0.02:
            return self.latency + random.uniform(0, SLOWEST - LATENCY[1])
        return self.latency + (random.uniform(0, JOINING) if drawn < 0.2 else 0.0)

    def reset(self) -> None:
        """Both ends are told that the connection is no more."""
        if not self.broken:
            self.broken = "reset"
            for end in (self.client, self.server):
                end.lose_soon(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def go_half_open(self) -> None:
        """From now on every byte is lost. The server's kernel gives up after a while; the client's is not told."""
        if not self.broken:
            self.broken = "half-open"
            error = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            asyncio.get_running_loop().call_later(GIVES_UP, self.server.lose, error, context=self.server.context)

    def _accept(self, factory: Callable[[], asyncio.Protocol]) -> None:
        random, weather = self.network.random, self.network.weather
        wait = random.uniform(0, 1.0) if random.random() < weather.slow_accept else 0.0
        loop = asyncio.get_running_loop()
        loop.call_later(self.latency + wait, self._accepted, factory, context=self.server.context)

    def _accepted(self, factory: Callable[[], asyncio.Protocol]) -> None:
        if self.server.closed:
            return
        self.accepted_as = self.network.accept(self)
        self.server.begin(factory())
        if self.network.random.random() < self.network.weather.dies_on_accept:
            self.reset()

    def _draw_fate(self) -> None:
        random, weather = self.network.random, self.network.weather
        drawn, at = random.random(), random.expovariate(1 / 20.0)
        loop = asyncio.get_running_loop()
        # The network's own timers belong to no process.
        context = Context()
        if drawn < weather.half_open:
            loop.call_later(at, self.go_half_open, context=context)
        elif drawn < weather.half_open + weather.reset:
            loop.call_later(at, self.reset, context=context)

    def forget(self) -> None:
        if self.client.closed and self.server.closed:
            self.network.connections.pop(self, None)
            self.network.accepted.pop(self.accepted_as, None)


class _Socket:
    """What a transport shows of its socket: an option that makes closing a reset."""

    def __init__(self) -> None:
        self.lingers = True

    def setsockopt(self, *_: object) -> None:
        self.lingers = False


class End(asyncio.Transport):
    """One end: what its protocol writes arrives at the peer, what the peer wrote is given to its protocol."""

    peer: End

    def __init__(self, connection: Connection, context: Context) -> None:
        super().__init__()
        self.connection = connection
        self.context = context
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.Protocol | None = None
        self._socket = _Socket()
        self._closing = False
        self._aborted = False
        self._eof_sent = False
        self._eof_given = False
        self._reading = True
        self._paused = False
        self._high, self._low = HIGH_WATER, LOW_WATER
        self._unsent = 0
        # Timers of one moment come in any order, so each takes what was sent first.
        self._under_way: deque[bytes | None] = deque()
        self._inbox: deque[bytes | None] = deque()
        self._inbox_size = 0
        self._held: deque[bytes | None] = deque()
        self._arrives = 0.0

    def __repr__(self) -> str:
        return f"<End of {self.connection!r}>"

    @property
    def process(self) -> Process | None:
        return self.context.get(Process.current)

    @property
    def open(self) -> bool:
        """Neither closed nor about to be."""
        return not self.closed and not self._closing

    def begin(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        process = self.process
        if process is not None:
            process.on_kill[self.die] = None
        protocol.connection_made(self)
        if self._inbox:
            self._loop.call_soon(self._give, context=self.context)

    def die(self) -> None:
        """The process is gone: its kernel tells the peer."""
        self.closed = self._closing = True
        self.peer.lose_soon(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        self.connection.forget()

    # What the protocol asks for.

    def write(self, data: Any) -> None:
        if self._eof_sent or self._closing or self.closed or not data:
            return
        self._unsent += len(data)
        for piece in self._split(bytes(data)):
            self._send(piece)
        if self._unsent > self._high and not self._paused:
            self._paused = True
            cast(asyncio.Protocol, self._protocol).pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._eof_sent and not self.closed:
            self._eof_sent = True
            self._send(None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self._closing or self.closed:
            return
        self._closing = True
        if not self._eof_sent:
            self._eof_sent = True
            self._send(None)
        # Up to here the kernel has taken everything.
        if self._unsent <= WINDOW:
            self._loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        if self.closed or self._aborted:
            return
        self._closing = True
        self._aborted = True
        self.peer.lose_soon(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        self._loop.call_soon(self.lose, None, context=self.context)

    def is_closing(self) -> bool:
        return self._closing or self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._give, context=self.context)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "peername":
            return (self.connection.host, self.connection.number)
        if name == "sockname":
            return ("gateway", self.connection.number)
        return default

    # What the network does.

    def _split(self, data: bytes) -> list[bytes]:
        random = self.connection.network.random
        if len(data) < 2 or random.random() >= self.connection.network.weather.split:
            return [data]
        at = random.randrange(1, len(data))
        return [data[:at], data[at:]]

    def _send(self, piece: bytes | None) -> None:
        if self.connection.swallows:
            return
        self._arrives = max(self._arrives, self._loop.time() + self.connection.delay())
        self.peer._under_way.append(piece)
        self._loop.call_at(self._arrives, self.peer.arrive, context=self.peer.context)

    def arrive(self) -> None:
        """A piece has come over the network; None is the end of the stream."""
        piece = self._under_way.popleft()
        if self.connection.swallows or self.connection.broken == "reset":
            return
        if self.closed:
            # Nobody is there any more, and the sender is told so.
            if piece is not None and not self.peer.closed:
                self.peer.lose_soon(BrokenPipeError(errno.EPIPE, "Broken pipe"))
            return
        self._inbox.append(piece)
        self._inbox_size += 0 if piece is None else len(piece)
        if self._inbox_size <= WINDOW:
            self._acknowledge(piece)
        else:
            self._held.append(piece)
        self._give()

    def _acknowledge(self, piece: bytes | None) -> None:
        if piece is not None:
            self._loop.call_later(self.connection.latency, self.peer.taken, len(piece), context=self.peer.context)

    def taken(self, size: int) -> None:
        """The peer's kernel has taken so many bytes."""
        self._unsent -= size
        if self.closed:
            return
        if self._paused and self._unsent <= self._low:
            self._paused = False
            cast(asyncio.Protocol, self._protocol).resume_writing()
        if self._closing and self._unsent <= WINDOW:
            self.lose(None)

    def _give(self) -> None:
        while self._inbox and self._reading and self._protocol is not None and not self._closing and not self.closed:
            piece = self._inbox.popleft()
            if piece is None:
                self._give_eof()
                return
            self._inbox_size -= len(piece)
            while self._held and self._inbox_size <= WINDOW:
                self._acknowledge(self._held.popleft())
            self._protocol.data_received(piece)

    def _give_eof(self) -> None:
        if not self._eof_given and self._protocol is not None:
            self._eof_given = True
            if not self._protocol.eof_received():
                self.close()

    def lose_soon(self, error: Exception) -> None:
        """A reset is on its way to this end."""
        if not self.closed and (not self.connection.swallows or self.connection.broken == "reset"):
            arrives = self._loop.time() + self.connection.latency
            if self.connection.network.random.random() < 0.5:
                # Behind the data that is under way; else it overtakes the data, which is lost.
                arrives = max(arrives, self.peer._arrives)
            self._loop.call_at(arrives, self.lose, error, context=self.context)

    def lose(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = self._closing = True
        self._inbox.clear()
        self._held.clear()
        process = self.process
        if process is not None:
            process.on_kill.pop(self.die, None)
        self._eof_sent = True
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        self.connection.forget()
