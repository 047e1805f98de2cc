"""The way to one client: sends that wait for it, keepalives, and the knowledge whether it still takes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.conf import Tunables
from gateway.errors import ClientLost

# ASGI messages are dictionaries whose values depend on their type.
Send = Callable[[dict[str, Any]], Awaitable[None]]
Buffered = Callable[[], int]
# Writes pieces of a body, or whole text messages, at once; says whether it did.
Write = Callable[[Sequence[bytes]], bool]

SHOWN_HEADERS = frozenset(
    {
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "x-models-etag",
        "x-reasoning-included",
        "x-request-id",
    }
)


class ClientWire:
    """The way to one client: sends, and knows whether the client still takes anything.

    `sending` says that a send waits for the client now, `sent_at` when the last one began, in the loop's time.
    `buffered` tells how many bytes the server has not handed to the kernel; without it (other servers) a send that
    does not return counts as no progress. `write` is the server's way around `send`, if it has one.
    """

    def __init__(
        self, send: Send, tunables: Tunables, buffered: Buffered | None = None, write: Write | None = None
    ) -> None:
        self._send = send
        self._stall_limit = tunables.client_stall_timeout
        self._buffered = buffered
        self._write = write
        self._last_buffered: int | None = None
        self._progress_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.sending = False
        self.sent_at = self._loop.time()

    async def send(self, message: dict[str, Any]) -> None:
        """Hand a message to the server, waiting while its buffer is full; raises `ClientLost`."""
        self.sent_at = self._progress_at = self._loop.time()
        self.sending = True
        self._last_buffered = None
        try:
            await self._send(message)
        except OSError:
            raise ClientLost("The client has left.") from None
        finally:
            self.sending = False

    def write(self, pieces: Sequence[bytes]) -> bool:
        """Write more of a body that was begun, or text messages, without waiting; False if they have to be sent."""
        if self._write is None or self.sending or not self._write(pieces):
            return False
        self.sent_at = self._loop.time()
        return True

    def check(self, now: float) -> float:
        """Seconds until the next check is due; raises `ClientLost` when the client has taken nothing for too long."""
        if not self.sending:
            return self._stall_limit / 4
        if self._buffered is not None:
            buffered = self._buffered()
            # More than before is no progress: the server's own pings are written there as well.
            if self._last_buffered is None or buffered < self._last_buffered:
                self._progress_at = now
            self._last_buffered = buffered
        if now - self._progress_at >= self._stall_limit:
            raise ClientLost("The client took nothing for GATEWAY_CLIENT_STALL_TIMEOUT.", code="client_stalled")
        return self._stall_limit / 4


class Keepalive:
    """Sends something harmless when a stream has been silent; never between the parts of another send.

    While one is `sending`, the next send has to `wait` for it.
    """

    def __init__(self, wire: ClientWire, interval: float) -> None:
        self._wire = wire
        self._interval = interval
        self.sending: asyncio.Task[None] | None = None
        self._ended = False

    def check(self, now: float, send: Callable[[], Awaitable[None]]) -> float:
        """Start `send` when the silence has lasted; the seconds until the next check is due."""
        left = self._wire.sent_at + self._interval - now
        if self._ended or self.sending is not None or self._wire.sending:
            return self._interval
        if left > 0:
            return left
        self.sending = asyncio.ensure_future(self._run(send))
        return self._interval

    async def wait(self) -> None:
        """Wait until a keepalive that is being sent is out."""
        if self.sending is not None:
            await asyncio.wait({self.sending})

    async def end(self) -> None:
        """Send no more; returns when the one that is being sent is out, and gives it up if this waiting is given up."""
        self._ended = True
        sending = self.sending
        try:
            await self.wait()
        except asyncio.CancelledError:
            if sending is not None:
                sending.cancel()
            raise

    async def _run(self, send: Callable[[], Awaitable[None]]) -> None:
        try:
            await send()
        except ClientLost:
            # The turn's own next send, or the consumer, finds out as well.
            pass
        finally:
            self.sending = None


def shown(headers: Mapping[str, str]) -> dict[str, str]:
    """The upstream's headers that clients read."""
    return {name: value for name, value in headers.items() if name in SHOWN_HEADERS or name.startswith("x-codex-")}


async def send_document(
    wire: ClientWire, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
) -> None:
    """A whole response."""
    pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    pairs += [(b"content-type", content_type.encode("latin-1", "replace")), (b"content-length", b"%d" % len(body))]
    await wire.send({"type": "http.response.start", "status": status, "headers": pairs})
    await wire.send({"type": "http.response.body", "body": body, "more_body": False})
