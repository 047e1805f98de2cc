"""`GET …/responses` upgraded: a client's WebSocket, its turns one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from gateway.consumers.background import BackgroundSink
from gateway.consumers.base import GatewayConsumer, Receive, Scope, Send, client_left
from gateway.consumers.render import document, frame
from gateway.consumers.request_body import too_large
from gateway.consumers.websocket_sink import WebSocketSink
from gateway.errors import ClientLost, GatewayError, InvalidBody, Stopping, WebSocketUnavailable
from gateway.keys import KeySnapshot
from gateway.protocol.body import parse_body
from gateway.turns.answers import Answer, answer
from gateway.turns.dispatch import Turn
from gateway.turns.request import Downstream, TurnRequest
from gateway.turns.turn import Outcome
from gateway.upstream.connection import MAX_FRAME
from gateway.upstream.lane import PRIVATE_SESSION

# Frames that may wait behind the turn that runs. The clients send one at a time.
MAX_QUEUED = 8
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
SERVICE_RESTART = 1012
CREATE = "response.create"


class ResponsesWebSocket(GatewayConsumer):
    """One socket. A runner takes its frames in order, a turn each; this coroutine listens and is never held up."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open_wire(scope, send)
        self.socket = f"{PRIVATE_SESSION}{self.gate.clock.new_id()}"
        self.frames: deque[str | bytes | None] = deque()
        self.arrived = asyncio.Event()
        self.ended = False
        self.draining = False
        await receive()  # websocket.connect
        try:
            key = self.authenticate()
            if not self.gate.engine.router.offers_websocket():
                raise WebSocketUnavailable("Every account of this gateway is reached over HTTP; use HTTP.")
            await self._accept()
        except ClientLost:
            return
        except GatewayError as error:
            await self._deny(answer(error, self.route))
            return
        await self._serve(key, receive)

    def drain(self) -> None:
        self.draining = True
        self.arrived.set()

    async def _serve(self, key: KeySnapshot, receive: Receive) -> None:
        running = asyncio.ensure_future(self._run_turns(key))
        listening = asyncio.ensure_future(self._listen(receive))
        reason: GatewayError = client_left()
        self.gate.sockets[self] = None
        try:
            await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            reason = Stopping("The gateway is stopping.", retry_after=2)
            raise
        finally:
            listening.cancel()
            self.gate.sockets.pop(self, None)
            self.ended = True
            if not self.goes_on_alone():
                self.stop(running, reason)
                await asyncio.wait({running})
            await self.gate.engine.pool.retire_session(self.socket)

    async def _listen(self, receive: Receive) -> None:
        """Queue frames; returns when the client has left or sends more than may wait."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            if not self._queue(message):
                await self._refuse_flood()
                return
            # While the socket is idle nothing may hold its last frame.
            del message

    def _queue(self, message: dict[str, Any]) -> bool:
        """Let a frame wait for its turn, one over the limit without its content; whether it and the others may."""
        limit = self.gate.tunables.max_body_bytes
        text = message.get("text")
        received = message["bytes"] if text is None else text
        self.frames.append(received if len(received) <= limit else None)
        self.arrived.set()
        waiting = sum(len(each) for each in self.frames if each is not None)
        return len(self.frames) <= MAX_QUEUED and waiting <= limit

    async def _run_turns(self, key: KeySnapshot) -> None:
        while not self.ended:
            if not self.frames:
                if self.draining:
                    await self._close(SERVICE_RESTART, "the gateway is stopping; connect again")
                    return
                self.arrived.clear()
                await self.arrived.wait()
                continue
            try:
                if not await self._run_turn(key, self.frames.popleft()):
                    return
            except ClientLost:
                return
            except GatewayError as error:
                await self._send_frame(answer(error, self.route))

    async def _run_turn(self, key: KeySnapshot, received: str | bytes | None) -> bool:
        """Carry one frame's turn; whether the socket is to be served on. Raises what is wrong with the frame."""
        if isinstance(received, bytes):
            raise InvalidBody("Frames must be text; this one is binary.", code="binary_frame")
        gate = self.gate
        raw = None if received is None else received.encode()
        if raw is None or len(raw) > gate.tunables.max_body_bytes:
            raise too_large(gate.tunables.max_body_bytes)
        del received
        with gate.permits.ask(key, len(raw)) as permit:
            body, asked_model = gate.names.resolve(key, parse_body(raw))
            if body.type != CREATE:
                raise InvalidBody(f"The only frame this gateway knows is {CREATE!r}.", code="unknown_frame_type")
            request = TurnRequest(
                key=key,
                route=self.route,
                downstream=Downstream.WEBSOCKET,
                headers=self.headers,
                body=body,
                received_at=gate.clock.wall(),
                id=gate.clock.new_id(),
                socket=self.socket,
                asked_model=asked_model,
            )
            sink = WebSocketSink(self.wire, self.route, gate.tunables, gate.clock)
            self.turn = Turn(gate.engine, request, BackgroundSink(sink) if body.background else sink, permit)
            try:
                outcome = await self.turn.run()
            finally:
                self.turn = None
        if outcome is Outcome.CLIENT_GONE:
            await self._cut(POLICY_VIOLATION, "the client fell too far behind")
        elif sink.must_close:
            await self._cut(INTERNAL_ERROR, "the response broke off; send the full input on a new connection")
        return not sink.must_close and outcome is not Outcome.CLIENT_GONE

    async def _accept(self) -> None:
        headers = [(b"x-codex-websocket-max-message-bytes", b"%d" % (MAX_FRAME - 1))]
        await self.wire.send({"type": "websocket.accept", "headers": headers})

    async def _deny(self, told: Answer) -> None:
        """Refuse the handshake with a status and a body where the server can, else with its plain refusal."""
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.wire.send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        headers = [(name.encode(), value.encode()) for name, value in told.headers.items()]
        headers.append((b"content-type", b"application/json"))
        await self.wire.send({"type": "websocket.http.response.start", "status": told.status, "headers": headers})
        await self.wire.send({"type": "websocket.http.response.body", "body": document(told), "more_body": False})

    async def _refuse_flood(self) -> None:
        error = InvalidBody(
            f"More than {MAX_QUEUED} frames, or GATEWAY_MAX_BODY_BYTES, wait on this socket; send one at a time.",
            code="too_many_frames",
        )
        await self._send_frame(answer(error, self.route))
        await self._close(POLICY_VIOLATION, "too many frames are waiting")

    async def _cut(self, code: int, reason: str) -> None:
        """End the socket of a client that is behind or gone; it may not take the close frame either."""
        if self.ended:
            return
        try:
            async with asyncio.timeout(self.gate.tunables.close_timeout):
                await self._close(code, reason)
        except TimeoutError:
            # The server ends the connection when this application returns.
            pass

    async def _send_frame(self, told: Answer) -> None:
        await self.wire.send({"type": "websocket.send", "text": frame(told).decode()})

    async def _close(self, code: int, reason: str) -> None:
        await self.wire.send({"type": "websocket.close", "code": code, "reason": reason})
