"""A client's connection to a replica, as ASGI has it: with latency, a buffer that fills, and clients that leave.

The server itself runs on Twisted's reactor and is not simulated; this stands where it would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any

from tests.sim.loop import Process

if TYPE_CHECKING:
    from gateway.consumers.base import App

# Small, so that a client that reads nothing is soon felt.
HIGH = 4 * 1024
LATENCY = (0.0005, 0.03)
# Of a client that is gone without a word the server hears when it leaves pings unanswered.
PING_TIMEOUT = 30.0

Message = dict[str, Any]
NOWHERE = Context()


class Downstream:
    """One connection. The application calls `receive`, `send` and `buffered`, the client everything else."""

    def __init__(self, process: Process, random: Random) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._latency = random.uniform(*LATENCY)
        self._under_way: deque[Message] = deque()
        self._to_app: deque[Message] = deque()
        self._app_waits: asyncio.Future[None] | None = None
        self._out: deque[tuple[Message, int]] = deque()
        self._unsent = 0
        self._room: asyncio.Future[None] | None = None
        self._pumping = False
        self._inbox: deque[Message] = deque()
        self._client_waits: asyncio.Future[None] | None = None
        self._kind = "http"
        self.paused = False
        self.gone = False
        self.lost = False
        self.over = False
        self.app: asyncio.Task[None] | None = None

    def open(self, app: App, scope: Message) -> None:
        """Let the application serve this connection in its replica's process."""
        self._kind = str(scope["type"])
        scope["extensions"] = {"pointsman.flow": {"buffered": self.buffered}}
        if self._kind == "websocket":
            scope["extensions"]["websocket.http.response"] = {}
            self.say({"type": "websocket.connect"})
        self._process.on_kill[self._reset] = None
        self.app = self._process.spawn(app(scope, self.receive, self.send))
        self.app.add_done_callback(self._served, context=NOWHERE)

    # The application's side.

    async def receive(self) -> Message:
        while not self._to_app:
            self._app_waits = self._loop.create_future()
            await self._app_waits
        return self._to_app.popleft()

    async def send(self, message: Message) -> None:
        if self.lost:
            raise OSError("the client has left")
        size = len(message.get("body", b"")) + len(message.get("text") or "") + 8
        self._out.append((message, size))
        self._unsent += size
        self._pump()
        while self._unsent > HIGH and not self.lost:
            self._room = self._loop.create_future()
            await self._room
        if self.lost:
            raise OSError("the client has left")

    def buffered(self) -> int:
        return self._unsent

    # The client's side.

    def say(self, message: Message) -> None:
        """Send a message to the application; it arrives a moment later."""
        if not self.gone:
            self._under_way.append(message)
            self._later(self._arrive)

    async def next(self) -> Message | None:
        """The next message of the application, or None when the connection is over."""
        while not self._inbox:
            if self.over or self.gone:
                return None
            self._client_waits = self._loop.create_future()
            await self._client_waits
        return self._inbox.popleft()

    def pause(self) -> None:
        """Take nothing more, like a client that does not read."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._pump()

    def leave(self) -> None:
        """End the connection; the server hears of it a moment later."""
        if not self.gone:
            self._go()
            self._later(self._lose)

    def vanish(self) -> None:
        """Be gone without a word, like a machine that sleeps."""
        if not self.gone:
            self._go()
            self._loop.call_later(PING_TIMEOUT, self._lose, context=NOWHERE)

    # The network in between.

    def _later(self, call: Any, *args: Any) -> None:
        self._loop.call_later(self._latency, call, *args, context=NOWHERE)

    def _go(self) -> None:
        self.gone = True
        self._wake_client()

    def _arrive(self) -> None:
        self._give(self._under_way.popleft())

    def _give(self, message: Message) -> None:
        self._to_app.append(message)
        if self._app_waits is not None and not self._app_waits.done():
            self._app_waits.set_result(None)

    def _lose(self) -> None:
        """The server knows that the client is gone."""
        if not self.lost:
            self.lost = True
            self._give({"type": f"{self._kind}.disconnect", "code": 1006})
            self._make_room()

    def _pump(self) -> None:
        if self._out and not self._pumping and not self.paused and not self.gone:
            self._pumping = True
            self._later(self._deliver)

    def _deliver(self) -> None:
        self._pumping = False
        while self._out and not self.paused and not self.gone:
            message, size = self._out.popleft()
            self._unsent -= size
            self._inbox.append(message)
        self._make_room()
        self._wake_client()
        if self.app is not None and self.app.done():
            self._end()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done() and (self._unsent <= HIGH // 4 or self.lost):
            self._room.set_result(None)

    def _wake_client(self) -> None:
        if self._client_waits is not None and not self._client_waits.done():
            self._client_waits.set_result(None)

    def _served(self, app: asyncio.Task[None]) -> None:
        """The application has returned: what is written goes out, then the connection ends."""
        self._process.on_kill.pop(self._reset, None)
        if not app.cancelled() and app.exception() is not None:
            self._loop.call_exception_handler({"message": "an application failed", "exception": app.exception()})
        self._later(self._end)

    def _end(self) -> None:
        if not self._out:
            self.over = True
            self._wake_client()

    def _reset(self) -> None:
        """The replica died."""
        self._out.clear()
        self.over = True
        self._wake_client()
