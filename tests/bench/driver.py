"""Clients that cost next to nothing: they look for stamps in what arrives, and decode nothing.

A client holds one connection. `turn` sends a prepared request and reads its answer to the end; the next turn uses the
same connection. An answer that is refused, broken off or short of events raises `TurnFailed`: a system is not measured
while it does not do its work.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from dataclasses import dataclass, field
from typing import Protocol, cast

from tests.bench.answers import STAMP, STAMP_BYTES
from tests.bench.frames import CLOSE, PING, PONG, masked_frame, take_frames
from tests.bench.requests import Endpoint, session_fields

TURN_LIMIT = 120.0
CONNECT_LIMIT = 30.0
SHOWN = 300


class TurnFailed(Exception):
    """A turn did not bring the whole answer. The message says what came instead."""


@dataclass(slots=True)
class Reading:
    """What one turn showed, in nanoseconds: from its request to its first event, and of each event its travel time."""

    asked_at: int
    first: int = 0
    travels: list[int] = field(default_factory=list)


class Client(Protocol):
    """A connection to a system."""

    async def turn(self, request: bytes, events: int) -> Reading:
        """Send `request` and read its answer of `events` events; raises `TurnFailed`."""

    def close(self) -> None:
        """End the connection at once."""


class Answer:
    """The answer of one turn while it is read; `ended` is set by the last stamp, or by `fail`."""

    def __init__(self) -> None:
        self.reading = Reading(time.monotonic_ns())
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.got_last = False
        self._tail = b""

    def take(self, data: bytes, now: int) -> bool:
        """Look for stamps in `data`, which arrived at `now`; whether there were any."""
        text = self._tail + data if self._tail else data
        reading, end = self.reading, 0
        for match in STAMP.finditer(text):
            end = match.end()
            reading.travels.append(now - int(match[2]))
            self.got_last |= match[1] == b"last"
        self._tail = text[max(end, len(text) - STAMP_BYTES) :]
        if end and not reading.first:
            reading.first = now - reading.asked_at
        return end > 0

    def finish(self) -> None:
        """The answer has been read whole."""
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(TurnFailed(why))

    async def result(self, events: int) -> Reading:
        try:
            async with asyncio.timeout(TURN_LIMIT):
                await self.ended
        except TimeoutError:
            got = len(self.reading.travels)
            raise TurnFailed(f"{got} of {events} events came within {TURN_LIMIT:g} s") from None
        if len(self.reading.travels) != events:
            raise TurnFailed(f"{len(self.reading.travels)} events came instead of {events}")
        return self.reading


class Connection(asyncio.Protocol):
    """What both kinds of client have in common: a socket, and the answer that is being read from it."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.rest = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer is not None:
            self.answer.fail("the connection was closed")

    async def turn(self, request: bytes, events: int) -> Reading:
        """Send `request` and read its answer of `events` events; raises `TurnFailed`."""
        if self.transport.is_closing():
            raise TurnFailed("the connection was closed between two turns")
        self.answer = answer = Answer()
        self.transport.write(request)
        try:
            return await answer.result(events)
        finally:
            self.answer = None

    def close(self) -> None:
        """End the connection at once."""
        self.transport.abort()


class SseConnection(Connection):
    """HTTP/1.1 with keep-alive, answered by a chunked event stream."""

    def __init__(self) -> None:
        super().__init__()
        self._in_body = False

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        answer = self.answer
        if answer is None:
            return
        data = self.rest + data if self.rest else data
        if not self._in_body:
            head, separator, data = data.partition(b"\r\n\r\n")
            if not separator:
                self.rest = head
                return
            if b"chunked" not in head.lower() or not head.startswith(b"HTTP/1.1 200"):
                answer.fail(f"the answer was {(head + separator + data)[:SHOWN]!r}")
                return
            self._in_body = True
        payload, self.rest, complete = take_chunks(data)
        if payload:
            answer.take(payload, now)
        if complete:
            self._in_body = False
            if answer.got_last:
                answer.finish()
            else:
                answer.fail(f"the stream ended early, with {payload[-SHOWN:]!r}")


class WebSocketConnection(Connection):
    """A WebSocket; await `opened` before the first turn."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.opened.done():
            self.opened.set_exception(TurnFailed("the connection was closed during the handshake"))

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self.rest + data if self.rest else data
        if not self.opened.done():
            head, separator, data = data.partition(b"\r\n\r\n")
            if not separator:
                self.rest = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(TurnFailed(f"the handshake was answered {(head + data)[:SHOWN]!r}"))
                return
            self.opened.set_result(None)
        frames, used = take_frames(data)
        self.rest = data[used:]
        for frame in frames:
            self._take_frame(frame.opcode, frame.payload, now)

    def _take_frame(self, opcode: int, payload: bytes, now: int) -> None:
        answer = self.answer
        if opcode == PING:
            self.transport.write(masked_frame(PONG, payload))
        elif answer is None or opcode == PONG:
            return
        elif opcode == CLOSE:
            answer.fail(f"the socket was closed with {payload[:SHOWN]!r}")
        elif answer.take(payload, now):
            if answer.got_last:
                answer.finish()
        elif b'"error"' in payload:
            answer.fail(f"a frame said {payload[:SHOWN]!r}")


def take_chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    """The payload of the complete chunks in `data`, the rest, and whether the last chunk was among them."""
    parts: list[bytes] = []
    at = 0
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line].partition(b";")[0], 16)
        end = line + 2 + size
        if len(data) < end + 2:
            break
        at = end + 2
        if size == 0:
            return b"".join(parts), data[at:], True
        parts.append(data[line + 2 : end])
    return b"".join(parts), data[at:], False


async def connect_sse(endpoint: Endpoint, session: str) -> Client:
    """A client that posts its requests; raises `OSError`. Requests name the session themselves."""
    _, connection = await asyncio.get_running_loop().create_connection(SseConnection, endpoint.host, endpoint.port)
    return connection


async def connect_websocket(endpoint: Endpoint, session: str) -> Client:
    """A client with an open WebSocket; raises `OSError` or `TurnFailed`."""
    _, connection = await asyncio.get_running_loop().create_connection(
        WebSocketConnection, endpoint.host, endpoint.port
    )
    handshake = endpoint.head(
        "GET",
        "upgrade: websocket",
        "connection: Upgrade",
        "sec-websocket-version: 13",
        f"sec-websocket-key: {base64.b64encode(os.urandom(16)).decode()}",
        "openai-beta: responses_websockets=2026-02-06",
        *session_fields(session),
    )
    connection.transport.write(handshake)
    try:
        async with asyncio.timeout(CONNECT_LIMIT):
            await connection.opened
    except TimeoutError:
        connection.close()
        raise TurnFailed(f"the handshake was not answered within {CONNECT_LIMIT:g} s") from None
    return connection
