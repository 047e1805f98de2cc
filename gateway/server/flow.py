"""Flow control: a gate for what goes out, a bounded inbox for what comes in. Neither knows a socket."""

from __future__ import annotations

import asyncio
from collections import deque

from asgiref.typing import ASGIReceiveEvent

from gateway.server.errors import ClientDisconnected, InboxFull


class Waiters:
    """Tasks that wait for a change. Each has its own future, so that cancelling one wakes no other."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Wait for the next `wake()`; then look again at what you waited for."""
        future = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def wake(self) -> None:
        """Wake every waiting task."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)


class Gate:
    """Shut while the transport holds more than it should; a Twisted push producer.

    Register it with the transport. After each write look at `paused`, and if it is set await `drained()`: the
    open gate costs one attribute read.
    """

    __slots__ = ("_broken", "_waiters", "paused")

    def __init__(self) -> None:
        self.paused = False
        self._broken: str | None = None
        self._waiters = Waiters()

    async def drained(self) -> None:
        """Wait until the transport has handed everything to the kernel.

        Raises `ClientDisconnected` if the connection ends first.
        """
        while self.paused and self._broken is None:
            await self._waiters.wait()
        if self._broken is not None:
            raise ClientDisconnected(self._broken)

    def break_off(self, why: str) -> None:
        """The connection has ended: whoever waits gets `ClientDisconnected(why)`. The first reason stays."""
        if self._broken is None:
            self._broken = why
            self._waiters.wake()

    def pauseProducing(self) -> None:
        """Called by the transport when its buffer is over the high mark."""
        self.paused = True

    def resumeProducing(self) -> None:
        """Called by the transport when its buffer is empty."""
        self.paused = False
        self._waiters.wake()

    def stopProducing(self) -> None:
        """Called by the transport when the connection is lost."""
        self.break_off("The connection was lost.")


class Inbox:
    """Messages on their way to one application, bounded by number and by bytes.

    `receive` is the application's ASGI `receive`. The message given to `close` comes after all others and is then
    repeated for ever, so that an application may ask twice whether the client is gone.
    """

    __slots__ = ("_bytes", "_final", "_max_bytes", "_max_messages", "_messages", "_waiters")

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[tuple[ASGIReceiveEvent, int]] = deque()
        self._bytes = 0
        self._final: ASGIReceiveEvent | None = None
        self._waiters = Waiters()

    def put(self, message: ASGIReceiveEvent, size: int = 0) -> None:
        """Queue `message`, which holds `size` bytes of payload; ignored once the inbox is closed.

        Raises `InboxFull`, with a sentence for the client, if it would exceed a bound; nothing is queued then.
        """
        if self._final is not None:
            return
        if len(self._messages) >= self._max_messages:
            raise InboxFull(f"More than {self._max_messages} messages wait; send more slowly.")
        if self._bytes + size > self._max_bytes:
            raise InboxFull(f"More than {self._max_bytes} bytes wait; send more slowly.")
        self._messages.append((message, size))
        self._bytes += size
        self._waiters.wake()

    def close(self, final: ASGIReceiveEvent) -> None:
        """No message follows but `final`, the disconnect. The first call decides."""
        if self._final is None:
            self._final = final
            self._waiters.wake()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; waits if there is none."""
        while True:
            if self._messages:
                message, size = self._messages.popleft()
                self._bytes -= size
                return message
            if self._final is not None:
                return self._final
            await self._waiters.wait()
