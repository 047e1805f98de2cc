"""Sockets for httpx, straight on the event loop.

By default httpcore reads through anyio, whose cancel scopes, checkpoints and pauses for each read take more time than
all else that a streamed event costs. This is the same interface on an asyncio protocol.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Iterable
from typing import Any, cast

import aiohappyeyeballs
import httpcore
import httpx

from accounts.trust import trusted

# Reading stops while so much waits to be read.
MOST_WAITING = 256 * 1024
# Seconds until the next address of a host is tried beside the one that has not answered yet (RFC 8305).
NEXT_ADDRESS = 0.25


class DirectTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport with connections made here. The environment has no say in it."""

    def __init__(self, limits: httpx.Limits) -> None:
        # In place of what the base class makes, since that takes no network.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=trusted(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=SocketNetwork(),
        )


class SocketNetwork(httpcore.AsyncNetworkBackend):
    """Makes TCP connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                addresses = await loop.getaddrinfo(host, port, type=1)
                sock = await aiohappyeyeballs.start_connection(
                    [(*address[:4], cast(Any, address[4])) for address in addresses],
                    happy_eyeballs_delay=NEXT_ADDRESS,
                )
                transport, pipe = await loop.create_connection(Pipe, sock=sock)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("no connection in time") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return SocketStream(transport, pipe)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Arrival(asyncio.Future[None]):
    """What a read waits for. Nothing else holds the task that does, so that another task may go on with the read."""


class Pipe(asyncio.Protocol):
    """What has arrived and nobody has read, how many bytes were read last since something was written, and what
    the end was.

    One task reads at a time, and one writes.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = b""
        self.last_read = 0
        self.ended = False
        self.error: Exception | None = None
        self.blocked = False
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._reader: Arrival | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reader_due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received = self.received + data if self.received else data
        if len(self.received) > MOST_WAITING:
            self._paused = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self.ended = True
        _wake(self._reader)
        # The other way stays open: a request may still be on it.
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self.error = error
        self.blocked = False
        if self._timer is not None:
            self._timer.cancel()
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        _wake(self._writer)

    def take(self, size: int) -> bytes:
        """Up to `size` bytes of what has arrived."""
        data, self.received = self.received[:size], self.received[size:]
        self.last_read = len(data)
        if self._paused and not self.ended:
            self._paused = False
            self.transport.resume_reading()
        return data

    async def arrival(self, timeout: float | None) -> None:
        """Wait until there is something to read, or nothing to come; raises `TimeoutError`."""
        self._reader = Arrival(loop=self._loop)
        if timeout is not None:
            self._reader_due = self._loop.time() + timeout
            if self._timer is None or self._timer.when() > self._reader_due:
                self._set_timer()
        try:
            await self._reader
        finally:
            self._reader = None

    async def writable(self) -> None:
        """Wait until what was written has gone, as far as it must."""
        while self.blocked:
            self._writer = self._loop.create_future()
            await self._writer

    def _check_reader(self) -> None:
        """One timer serves every read, and looks when it fires whether the read of then is late."""
        self._timer = None
        if self._reader is None or self._reader.done():
            return
        if self._loop.time() < self._reader_due:
            self._set_timer()
        else:
            self._reader.set_exception(TimeoutError())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._reader_due, self._check_reader)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class SocketStream(httpcore.AsyncNetworkStream):
    """One connection, as httpcore uses it."""

    def __init__(self, transport: asyncio.Transport, pipe: Pipe) -> None:
        self._transport = transport
        self._pipe = pipe
        self._poll: select.poll | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        pipe = self._pipe
        if not pipe.received:
            if not pipe.ended:
                try:
                    await pipe.arrival(timeout)
                except TimeoutError as error:
                    raise httpcore.ReadTimeout("nothing came in time") from error
            if pipe.error is not None and not pipe.received:
                raise httpcore.ReadError(str(pipe.error)) from pipe.error
        return pipe.take(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._pipe.last_read = 0
        if self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)
        if self._pipe.blocked:
            try:
                async with asyncio.timeout(timeout):
                    await self._pipe.writable()
            except TimeoutError as error:
                raise httpcore.WriteTimeout("nothing was taken in time") from error
            if self._pipe.error is not None:
                raise httpcore.WriteError(str(self._pipe.error)) from self._pipe.error

    async def aclose(self) -> None:
        self._transport.close()
        # What is left to be sent may go; nobody waits for the peer.
        await asyncio.sleep(0)
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        pipe = Pipe()
        try:
            async with asyncio.timeout(timeout):
                transport = await loop.start_tls(self._transport, pipe, ssl_context, server_hostname=server_hostname)
        except (TimeoutError, OSError) as error:
            self._transport.abort()
            kind = httpcore.ConnectTimeout if isinstance(error, TimeoutError) else httpcore.ConnectError
            raise kind(str(error)) from error
        if transport is None:
            raise httpcore.ConnectError("the connection was lost during the TLS handshake")
        pipe.connection_made(transport)
        return SocketStream(transport, pipe)

    def get_extra_info(self, info: str) -> object:
        if info == "is_readable":
            return self._is_readable()
        if info == "pipe":
            return self._pipe
        names = {"client_addr": "sockname", "server_addr": "peername", "ssl_object": "ssl_object", "socket": "socket"}
        return self._transport.get_extra_info(names[info]) if info in names else None

    def _is_readable(self) -> bool:
        """Whether anything came, an end too, that the event loop may not have looked at yet."""
        if self._pipe.received or self._pipe.ended:
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))
