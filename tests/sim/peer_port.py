"""The port where other replicas reach a replica: HTTP/1.1 on a simulated network, and the real application above it.

The server itself runs on Twisted's reactor and is not simulated; this stands where it would.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11

from gateway.consumers.base import App
from tests.sim.network import End

Message = dict[str, Any]


class PeerPort(asyncio.Protocol):
    """One connection of another replica. Its requests come one after the other, and the application answers each."""

    def __init__(self, app: App, address: tuple[str, int], open_: dict[PeerPort, None]) -> None:
        self._app = app
        self._address = address
        self._open = open_
        self._http = h11.Connection(h11.SERVER)
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False
        self.serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(End, transport)
        self._open[self] = None

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._open.pop(self, None)
        self._to_app.put_nowait({"type": "http.disconnect"})
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        """The process ends."""
        self._transport.abort()

    def _read(self) -> None:
        while not isinstance(event := self._http.next_event(), (type(h11.NEED_DATA), h11.ConnectionClosed)):
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._to_app.put_nowait({"type": "http.request", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                self._to_app.put_nowait({"type": "http.request", "body": b"", "more_body": False})
            if self._http.their_state is h11.DONE:
                # What the other replica asks next is read when this answer has ended.
                return

    def _begin(self, request: h11.Request) -> None:
        self._to_app = asyncio.Queue()
        scope: Message = {
            "type": "http",
            "method": request.method.decode(),
            "path": request.target.decode(),
            "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
            "server": self._address,
            "extensions": {"pointsman.flow": {"buffered": self._transport.get_write_buffer_size}},
        }
        self.serving = asyncio.ensure_future(self._serve(scope))

    async def _serve(self, scope: Message) -> None:
        try:
            await self._app(scope, self._to_app.get, self._send)
        finally:
            whole = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
            if not whole:
                self._transport.abort()
        if whole and not self._lost:
            self._http.start_next_cycle()
            self._read()

    async def _send(self, message: Message) -> None:
        if self._lost:
            raise OSError("the other replica has left")
        if message["type"] == "http.response.start":
            self._write(h11.Response(status_code=message["status"], headers=message["headers"]))
            return
        self._write(h11.Data(data=message["body"]))
        if not message.get("more_body", False):
            self._write(h11.EndOfMessage())
        await self._writable.wait()

    def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._transport.write(self._http.send(event))
