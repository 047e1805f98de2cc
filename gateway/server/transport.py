"""The TCP side: a transport that writes at once, and the listening port that makes such transports."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from twisted.internet import reactor, tcp
from twisted.internet.error import CannotListenError

from gateway.server.errors import ListenError, PortTaken
from gateway.server.flow import Waiters
from gateway.server.limits import Endpoint, InheritedSocket, TcpEndpoint
from gateway.server.loop import reactor_loop

if TYPE_CHECKING:
    from twisted.internet.protocol import ServerFactory

# Writes of one loop iteration are collected up to this size. Larger ones gain nothing from being joined.
CORK_BYTES = 16 * 1024

# How much the kernel may hold that TCP has not put on the wire yet. By default it takes megabytes per connection,
# which then count as taken by a client that has not seen them.
UNSENT_BYTES = 128 * 1024

BACKLOG = 1024


class OpenConnections:
    """The transports of one server that are not closed yet."""

    def __init__(self) -> None:
        self.transports: set[GatewayTransport] = set()
        self._waiters = Waiters()

    def remove(self, transport: GatewayTransport) -> None:
        """Forget a closed transport and wake whoever waits for the last one."""
        self.transports.discard(transport)
        if not self.transports:
            self._waiters.wake()

    async def wait_empty(self) -> None:
        """Wait until none is open. The caller bounds the time."""
        while self.transports:
            await self._waiters.wait()


class GatewayTransport(tcp.Server):
    """A server-side TCP connection that does not wait for the reactor to write.

    Twisted queues every write, asks the selector for writability and sends in the next loop iteration: two system
    calls more per event. Here the first write of an iteration is sent at once, further ones of the same iteration
    are joined and sent at its end, and only what the kernel refuses goes Twisted's way.

    Where the system has it (Linux), a peer that acknowledges nothing, or takes nothing, for the stall timeout is
    given up by the kernel: one that vanished without a word would otherwise be kept for a quarter of an hour, and one
    that never reads for ever.
    """

    server: GatewayPort
    dataBuffer: bytes
    offset: int
    _tempDataBuffer: list[bytes]
    _tempDataLen: int
    bytes_sent = 0
    _corked = False

    def __init__(self, sock: socket.socket, *args: object) -> None:
        super().__init__(sock, *args)
        self._call_soon = reactor_loop().call_soon
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = round(self.server.stall_timeout * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self.server.open.transports.add(self)

    def buffered(self) -> int:
        """Bytes written but not yet handed to the kernel."""
        return len(self.dataBuffer) - self.offset + self._tempDataLen

    def write(self, data: bytes) -> None:
        """Send `data`, or as much as the kernel takes, and keep the rest. Ignored once the connection is lost."""
        if self.dataBuffer or not self.connected or self._writeDisconnected:
            super().write(data)
        elif self._corked:
            self._tempDataBuffer.append(data)
            self._tempDataLen += len(data)
            if self._tempDataLen > CORK_BYTES:
                self._flush()
        elif data:
            self._corked = True
            self._call_soon(self._uncork)
            self._send(data)

    def write_at_once(self, data: bytes) -> None:
        """What `write` does, for whoever has joined what there is: the loop is not asked for a moment to join more."""
        if self._corked or self.dataBuffer or not self.connected or self._writeDisconnected:
            self.write(data)
        else:
            self._send(data)

    def writeSequence(self, iovec: list[bytes]) -> None:
        """Write the joined parts."""
        self.write(b"".join(iovec))

    def write_pair(self, head: bytes, body: bytes) -> None:
        """Write a small header and its payload, without copying a large payload."""
        if len(body) <= CORK_BYTES:
            self.write(head + body)
        else:
            self.write(head)
            self.write(body)

    def _uncork(self) -> None:
        self._corked = False
        if self._tempDataLen and not self.dataBuffer and self.connected:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._tempDataBuffer)
        self._tempDataBuffer = []
        self._tempDataLen = 0
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Called with nothing buffered. A broken connection is met again, and reported, by the reactor's write."""
        try:
            sent = self.socket.send(data)
        except OSError:
            sent = 0
        self.bytes_sent += sent
        if sent < len(data):
            self.dataBuffer = data
            self.offset = sent
            self._maybePauseProducer()
            self.startWriting()

    def writeSomeData(self, data: bytes) -> int | BaseException:
        """Twisted's send, counted."""
        result: int | BaseException = super().writeSomeData(data)
        if isinstance(result, int):
            self.bytes_sent += result
        return result

    def connectionLost(self, reason: object) -> None:
        """The end: called by Twisted."""
        self.server.open.remove(self)
        super().connectionLost(reason)
        # Twisted keeps what was not sent until the garbage collector finds the connection.
        self.dataBuffer, self.offset = b"", 0
        self._tempDataBuffer, self._tempDataLen = [], 0


class GatewayPort(tcp.Port):
    """A listening socket whose connections are `GatewayTransport`s."""

    transport = GatewayTransport
    open: OpenConnections
    stall_timeout: float


def listen(
    endpoint: Endpoint, factory: ServerFactory, connections: OpenConnections, stall_timeout: float
) -> GatewayPort:
    """Listen on `endpoint`; close the port with its `stopListening()`.

    Raises `PortTaken` or `ListenError`.
    """
    if isinstance(endpoint, TcpEndpoint):
        port = GatewayPort(endpoint.port, factory, BACKLOG, endpoint.host, reactor)
    else:
        port = _adopt(endpoint, factory)
    port.open = connections
    port.stall_timeout = stall_timeout
    try:
        port.startListening()
    except CannotListenError as error:
        raise _listen_error(error) from error
    return port


def _adopt(endpoint: InheritedSocket, factory: ServerFactory) -> GatewayPort:
    try:
        inherited = socket.socket(fileno=endpoint.fd)
    except OSError as error:
        raise ListenError(
            f"File descriptor {endpoint.fd} is no open socket ({os.strerror(error.errno or 0)}); pass the number "
            "of a listening TCP socket that this process inherits."
        ) from error
    is_tcp = inherited.family in (socket.AF_INET, socket.AF_INET6) and inherited.type == socket.SOCK_STREAM
    if not is_tcp or not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        inherited.detach()
        raise ListenError(f"File descriptor {endpoint.fd} is no listening TCP socket; pass one that is.")
    inherited.setblocking(False)
    port: GatewayPort = GatewayPort._fromListeningDescriptor(reactor, endpoint.fd, inherited.family, factory)
    # Twisted keeps a duplicate. A second open one would hold the port after `stopListening`.
    inherited.close()
    return port


def _listen_error(error: CannotListenError) -> ListenError:
    where = f"{error.interface or '*'}:{error.port}"
    if error.socketError.errno == errno.EADDRINUSE:
        return PortTaken(f"Another process listens on {where}; stop it or choose another port.")
    return ListenError(
        f"Cannot listen on {where}: {error.socketError.strerror or error.socketError}; "
        "choose a host and port that this machine may open."
    )
