"""A gateway's traffic code alone in its event loop, so that what one event costs can be counted and not timed.

The upstream answers from threads of its own and sends an event only after the client has got the one before, so each
event is read, relayed and sent alone, however fast the machine is. The client is an ASGI server's side of the
application: what is counted is the gateway and the libraries that it reaches its accounts with.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.routes import traffic_app
from gateway.consumers.simple import document_app, not_found
from gateway.keys import KeySnapshot, new_key
from gateway.runtime import Runtime
from tests.bench.answers import Piece, pieces, shape_asked_for
from tests.bench.frames import CLOSE, TEXT, accept_key, take_frames
from tests.bench.requests import encode
from tests.bench.upstream import END_OF_STREAM, LOOKED_AT, STREAM_HEAD, UPGRADE_HEAD, body_size, headers_of
from tests.support.inprocess import account
from tests.support.memory import MemoryStore
from tests.support.network import real_network

PATH = "/backend-api/codex/responses"
LIMIT = 10.0
# Not the gateway's: the event loop, which is another one in production, and what drives the measurement.
_NOT_COUNTED = (
    str(Path(asyncio.__file__).parent),
    selectors.__file__,
    threading.__file__,
    str(Path(__file__).parents[1]),
)

# ASGI messages are dictionaries whose values depend on their type.
Message = dict[str, Any]


class Calls:
    """Calls of Python functions by name, and JSON decodes by the type they decode to, while counting."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()
        self.decodes: Counter[str] = Counter()
        self._counted: dict[CodeType, bool] = {}

    @property
    def total(self) -> int:
        """All calls of Python functions."""
        return self.by_name.total()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread calls. A coroutine that goes on counts as a call, since it costs as much."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, called: object) -> None:
        if event == "call":
            code = frame.f_code
            counted = self._counted.get(code)
            if counted is None:
                counted = self._counted[code] = not code.co_filename.startswith(_NOT_COUNTED)
            if counted:
                self.by_name[code.co_qualname] += 1
        elif event == "c_call":
            if called is msgspec.json.decode:
                self.decodes["Any"] += 1
            elif getattr(called, "__name__", "") == "decode" and isinstance(
                decoder := getattr(called, "__self__", None), msgspec.json.Decoder
            ):
                self.decodes[str(decoder.type)] += 1


class SteppedUpstream:
    """An upstream in threads. It sends one event for each `step`, and the first of an answer without being asked."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._steps = threading.Semaphore(0)
        self._numbers = itertools.count(1)
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def step(self) -> None:
        """The client has got an event: send the next one."""
        self._steps.release()

    def close(self) -> None:
        """Stop, once every connection has been closed by the gateway."""
        # A blocked `accept` does not notice that its socket is closed.
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.append(connection)
            head = connection.recv(65536)
            if not head:
                return
            threading.Thread(target=self._serve, args=(connection, bytearray(head)), daemon=True).start()

    def _serve(self, connection: socket.socket, buffer: bytearray) -> None:
        while (end := buffer.find(b"\r\n\r\n") + 4) < 4:
            if not _receive(connection, buffer):
                return
        headers = headers_of(bytes(buffer[:end]))
        if b"upgrade" in headers:
            del buffer[:end]
            connection.sendall(UPGRADE_HEAD + accept_key(headers[b"sec-websocket-key"]) + b"\r\n\r\n")
            self._serve_frames(connection, buffer)
            return
        while (size := body_size(buffer, end, headers)) is None:
            if not _receive(connection, buffer):
                return
        body = bytes(buffer[end:])
        del buffer[: end + size]
        connection.sendall(STREAM_HEAD)
        self._answer(connection, body, as_frames=False)
        if buffer or _receive(connection, buffer):
            self._serve(connection, buffer)

    def _serve_frames(self, connection: socket.socket, buffer: bytearray) -> None:
        while True:
            frames, used = take_frames(buffer, LOOKED_AT)
            del buffer[:used]
            for frame in frames:
                if frame.opcode == TEXT:
                    self._answer(connection, frame.payload, as_frames=True)
                elif frame.opcode == CLOSE:
                    connection.sendall(b"\x88\x00")
                    connection.shutdown(socket.SHUT_WR)
            if not _receive(connection, buffer):
                return

    def _answer(self, connection: socket.socket, body: bytes, *, as_frames: bool) -> None:
        shape = shape_asked_for(body)
        assert shape is not None
        events: list[Piece] = pieces(next(self._numbers), shape.events, as_frames=as_frames)
        for number, piece in enumerate(events):
            if number and not self._steps.acquire(timeout=LIMIT):
                return
            end = b"" if as_frames or number < len(events) - 1 else END_OF_STREAM
            connection.sendall(piece.stamped(time.monotonic_ns()) + end)


def _receive(connection: socket.socket, buffer: bytearray) -> bool:
    try:
        data = connection.recv(1024 * 1024)
    except OSError:
        return False
    buffer += data
    return bool(data)


class SteppedGateway:
    """A running gateway without a server: `post` and `websocket` carry one turn each and count what it calls.

    Await each before the next: turns side by side would take each other's steps of the upstream.
    """

    def __init__(self, runtime: Runtime, store: MemoryStore, upstream: SteppedUpstream, key: str) -> None:
        self.runtime = runtime
        self.store = store
        self.writes_before_first_event = -1
        self._upstream = upstream
        self._key = key
        self._app = traffic_app(lambda: runtime.gate, document_app(not_found))

    async def post(self, members: dict[str, object], session: str = "bench") -> Calls:
        """One turn over SSE."""
        request: list[Message] = [{"type": "http.request", "body": encode(members), "more_body": False}]
        scope = self._scope("http", session) | {"method": "POST"}
        return await self._carry(scope, request, "http.response.body")

    async def websocket(self, members: dict[str, object], session: str = "bench") -> Calls:
        """One turn on a client WebSocket that is opened for it and closed after it."""
        text = encode({"type": "response.create", **members}).decode()
        messages: list[Message] = [
            {"type": "websocket.connect"},
            {"type": "websocket.receive", "text": text, "bytes": None},
        ]
        return await self._carry(self._scope("websocket", session), messages, "websocket.send")

    async def _carry(self, scope: Message, messages: list[Message], event: str) -> Calls:
        calls, ended, left = Calls(), asyncio.Event(), asyncio.Event()
        before = len(self.store.writes)
        self.writes_before_first_event = -1

        async def receive() -> Message:
            if messages:
                return messages.pop(0)
            await left.wait()
            return {"type": scope["type"] + ".disconnect", "code": 1000}

        async def send(message: Message) -> None:
            if message["type"] == event:
                got(message.get("body") or message.get("text", "").encode())

        def write(pieces: Sequence[bytes]) -> bool:
            got(b"".join(pieces))
            return True

        def got(data: bytes) -> None:
            if self.writes_before_first_event < 0:
                self.writes_before_first_event = len(self.store.writes) - before
            if b'"last_at"' in data:
                ended.set()
            else:
                assert b'"sent_at"' in data, data
                self._upstream.step()

        async with asyncio.timeout(LIMIT):
            with calls.counting():
                flow = {"pointsman.flow": {"buffered": lambda: 0, "write": write}}
                serving = asyncio.ensure_future(self._app(scope | {"extensions": flow}, receive, send))
                await ended.wait()
                await self.settled()
            left.set()
            await serving
        return calls

    async def settled(self) -> None:
        """Wait until every turn is settled and written, asking nobody whose calls are counted."""
        while not all(turn["outcome"] for turn in self.store.turns.values()):
            await asyncio.sleep(0.001)

    def _scope(self, kind: str, session: str) -> Message:
        headers = [(b"authorization", f"Bearer {self._key}".encode()), (b"session-id", session.encode())]
        return {"type": kind, "path": PATH, "headers": headers, "query_string": b""}


@asynccontextmanager
async def stepped_gateway(*, accounts: int = 1, transport: str = "auto") -> AsyncIterator[SteppedGateway]:
    """A gateway with so many accounts, all at one stepped upstream."""
    upstream = SteppedUpstream()
    key, clock, tunables = new_key(), Clock(), Tunables()
    store = MemoryStore(keys=[KeySnapshot(1, "tests", key.lookup, key.digest)])
    for number in range(1, accounts + 1):
        store.accounts[number] = account(
            number, f"account-{number}", upstream.base_url, transport=transport, priority=1
        )
    runtime = Runtime(tunables, store, clock, real_network(tunables, clock))
    await runtime.start()
    try:
        yield SteppedGateway(runtime, store, upstream, key.text)
    finally:
        await runtime.drain()
        await runtime.stop()
        await asyncio.to_thread(upstream.close)
