"""An upstream that costs next to nothing: it answers every request with events made beforehand.

Run it as `python -m tests.bench.upstream [--port N]`. It takes `POST …/responses` and WebSockets on `…/responses`, asks
for no key, and shapes each answer as the request's model name says (`answers.Shape`). It does not check anything else:
the simulator in `gateway/simulator/` is the strict one, and too slow to measure a gateway with.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable
from typing import cast

from tests.bench.answers import Piece, Shape, pieces, shape_asked_for
from tests.bench.frames import CLOSE, PING, PONG, accept_key, header, take_frames
from tests.bench.loops import run

# The model name stands within so many bytes of a request.
LOOKED_AT = 4096
END_OF_STREAM = b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
UPGRADE_HEAD = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: "
)

_numbers = itertools.count(1)


class Answering:
    """One answer on its way; `done` is called once, after its last event."""

    def __init__(
        self, transport: asyncio.Transport, shape: Shape, *, as_frames: bool, done: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._pieces: list[Piece] = pieces(next(_numbers), shape.events, as_frames=as_frames)
        self._interval = shape.interval / 1000
        self._end = b"" if as_frames else END_OF_STREAM
        self._done = done
        self._position = 0
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, head: bytes = b"") -> None:
        """Write `head` and the first event, and the rest in its time."""
        if self._interval:
            self._write_next(head)
            return
        now = time.monotonic_ns()
        self._transport.write(head + b"".join([piece.stamped(now) for piece in self._pieces]) + self._end)
        self._done()

    def stop(self) -> None:
        """The reader has left."""
        if self._timer is not None:
            self._timer.cancel()

    def _write_next(self, head: bytes = b"") -> None:
        data = head + self._pieces[self._position].stamped(time.monotonic_ns())
        self._position += 1
        if self._position == len(self._pieces):
            self._transport.write(data + self._end)
            self._done()
            return
        self._transport.write(data)
        # Counted from the beginning, so that a late event delays none of those behind it.
        due = self._began + self._position * self._interval
        self._timer = self._loop.call_at(due, self._write_next)


class UpstreamConnection(asyncio.Protocol):
    """One connection, HTTP/1.1 with keep-alive, or a WebSocket after an upgrade."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answering: Answering | None = None
        self._is_websocket = False
        self._message = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._is_websocket:
            self._take_frames()
        else:
            self._take_request()

    def connection_lost(self, error: Exception | None) -> None:
        if self._answering is not None:
            self._answering.stop()

    def _take_request(self) -> None:
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        headers = headers_of(bytes(self._buffer[:end]))
        if headers.get(b"upgrade", b"").lower() == b"websocket":
            del self._buffer[:end]
            self._is_websocket = True
            self._transport.write(UPGRADE_HEAD + accept_key(headers[b"sec-websocket-key"]) + b"\r\n\r\n")
            self._take_frames()
            return
        size = body_size(self._buffer, end, headers)
        if size is None:
            return
        body = bytes(self._buffer[end : end + min(size, LOOKED_AT)])
        del self._buffer[: end + size]
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        shape = shape_asked_for(body)
        if shape is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self._answering = Answering(self._transport, shape, as_frames=False, done=self._ended)
        self._answering.start(STREAM_HEAD)

    def _take_frames(self) -> None:
        frames, used = take_frames(self._buffer, LOOKED_AT)
        del self._buffer[:used]
        for frame in frames:
            if frame.opcode == PING:
                self._transport.write(header(PONG, len(frame.payload)) + frame.payload)
            elif frame.opcode == CLOSE:
                self._transport.write(header(CLOSE, len(frame.payload)) + frame.payload)
                self._transport.close()
                return
            elif frame.opcode != PONG:
                self._message = self._message or frame.payload
                if frame.final:
                    message, self._message = self._message, b""
                    self._answer_frame(message)

    def _answer_frame(self, message: bytes) -> None:
        shape = shape_asked_for(message)
        if shape is None or self._answering is not None:
            self._transport.close()
            return
        self._answering = Answering(self._transport, shape, as_frames=True, done=self._ended)
        self._answering.start()

    def _ended(self) -> None:
        self._answering = None


def headers_of(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def body_size(buffer: bytearray, start: int, headers: dict[bytes, bytes]) -> int | None:
    """How many bytes the body that begins at `start` takes on the wire, or None while it is not complete."""
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        end = buffer.find(END_OF_STREAM, start)
        return None if end < 0 else end + len(END_OF_STREAM) - start
    size = int(headers.get(b"content-length", b"0"))
    return size if len(buffer) - start >= size else None


async def serve(port: int, ready: Callable[[int], None]) -> None:
    """Listen on `port` of the loopback interface, tell `ready` which one it is, and serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(UpstreamConnection, "127.0.0.1", port, backlog=1024)
    ready(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (%(default)s)")
    port: int = parser.parse_args().port
    run(serve(port, lambda taken: print(f"ready on http://127.0.0.1:{taken}", flush=True)))


if __name__ == "__main__":
    main()
