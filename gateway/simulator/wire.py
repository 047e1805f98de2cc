"""One TCP connection, with everything that can go wrong with one on request."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Protocol, cast

logger = logging.getLogger(__name__)


class Receiver(Protocol):
    """Whoever speaks a protocol on a wire. Both are called on the event loop and must return at once."""

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None:
        """The client has left, or the wire was cut; nothing can be written any more. Called once."""


class Wire(asyncio.Protocol):
    """Bytes in both directions, and the tasks that work for this connection: they are cancelled when it is
    lost.

    `opened` is called with the wire and returns its first receiver; `closed` is called when the socket is
    closed.
    """

    def __init__(self, opened: Callable[[Wire], Receiver], closed: Callable[[Wire], None]) -> None:
        self.lost = False
        self.receiver: Receiver
        self._opened = opened
        self._closed = closed
        self._transport: asyncio.Transport
        self._resumed: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream server makes nothing else, but uvloop's transports do not inherit from the class.
        self._transport = cast(asyncio.Transport, transport)
        self.receiver = self._opened(self)

    def data_received(self, data: bytes) -> None:
        self.receiver.received(data)

    def eof_received(self) -> None:
        # No client of a streaming API half-closes and reads on: its end of stream means that it has left.
        # What is still buffered for it would only delay the news.
        self._lose()
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose()
        self._ended.set()
        self._closed(self)

    def pause_writing(self) -> None:
        self._resumed = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    def write(self, data: bytes) -> None:
        """Queue `data`; a long stream must `drain` in between. Does nothing when the client has left."""
        if not self.lost:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        if self._resumed is not None:
            await self._resumed

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` for as long as the connection lives. Should it fail, the connection is aborted."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def wait_closed(self) -> None:
        """Wait until the socket is closed and every task has ended; call `abort` first."""
        await self._ended.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def half_close(self) -> None:
        """Send what is queued, then FIN; go on reading."""
        if not self.lost and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Send what is queued, then close."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever is queued."""
        self._transport.abort()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        raw: socket.socket = self._transport.get_extra_info("socket")
        # SO_LINGER with a time of zero: the system throws away what is unsent and sends RST.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.receiver.lost()
            for task in self._tasks:
                task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("A connection of the simulator failed.", exc_info=task.exception())
            self._transport.abort()
