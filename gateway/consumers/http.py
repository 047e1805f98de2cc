"""`POST …/responses`: a turn over HTTP, answered as SSE or as one JSON document."""

from __future__ import annotations

from uuid import UUID

from gateway.consumers.background import BackgroundSink, FirstStateSink
from gateway.consumers.base import GatewayConsumer, Receive, Scope, Send
from gateway.consumers.forwarding import Forward
from gateway.consumers.json_sink import JsonSink
from gateway.consumers.native import NativeDocument, NativeStream
from gateway.consumers.render import document
from gateway.consumers.request_body import RequestBody, declared_size
from gateway.consumers.sse_sink import SseSink
from gateway.consumers.wire import send_document
from gateway.errors import ClientLost, GatewayError
from gateway.keys import KeySnapshot
from gateway.protocol.body import Body, parse_body
from gateway.turns.answers import answer
from gateway.turns.dispatch import Turn
from gateway.turns.names import Named
from gateway.turns.operations import Operation
from gateway.turns.permits import Permit
from gateway.turns.request import Downstream, Route, TurnRequest
from gateway.turns.sink import Sink


class ResponsesHttp(GatewayConsumer):
    """One request. Its responder is the turn's task; a listener beside it feeds the body and sees the client leave."""

    operation: Operation | None = None
    may_be_forwarded = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open_wire(scope, send)
        self.received_at = self.gate.clock.wall()
        self.turn_id = self.gate.clock.new_id()
        # The replica that the client is connected to, when it has forwarded the turn to this one.
        self.via: UUID | None = None
        self.body = RequestBody(self.most_bytes)
        await self.attend(self._respond(), self._listen(receive))

    @property
    def most_bytes(self) -> int:
        """The largest body that is read."""
        return self.gate.tunables.max_body_bytes

    async def _listen(self, receive: Receive) -> None:
        """Feed the body; returns when the client has left."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            self.body.feed(message.get("body", b""), more=message.get("more_body", False))

    async def _respond(self) -> None:
        try:
            key = self.authenticate()
            size = declared_size(dict(self.headers), self.gate.tunables.max_body_bytes)
            permit = self.gate.permits.ask(key, size)
            with permit:
                raw = await self.take_in(permit, dict(self.headers).get("content-encoding"))
                await self._carry(key, self.read(raw), permit)
        except ClientLost:
            pass
        except GatewayError as error:
            await self._refuse(error)

    async def take_in(self, permit: Permit, encodings: str | None) -> bytes:
        """The whole body; a process that stops waits for it no longer than for a turn."""
        self.turn = self.body
        self.gate.forwards[self.body] = None
        try:
            return await self.body.read(permit, encodings)
        finally:
            del self.gate.forwards[self.body]
            self.turn = None

    def named(self, key: KeySnapshot, body: Body) -> Named:
        """The request with the upstream's name of its model; raises `ModelNotAllowed`."""
        return self.gate.names.resolve(key, body)

    def read(self, raw: bytes) -> Body:
        """The request as the engine takes it; raises `InvalidBody`."""
        return parse_body(raw)

    def answer_with(self, body: Body) -> tuple[Downstream, Sink]:
        """How the client wants its answer, and what gives it."""
        gate = self.gate
        if body.stream or self.route is Route.CODEX:
            stream = SseSink(self.wire, NativeStream(self.route, gate.clock), gate.tunables)
            return Downstream.SSE, BackgroundSink(stream) if body.background else stream
        if body.background:
            return Downstream.JSON, BackgroundSink(FirstStateSink(self.wire, gate.clock))
        return Downstream.JSON, JsonSink(self.wire, NativeDocument(), gate.clock)

    async def _carry(self, key: KeySnapshot, body: Body, permit: Permit) -> None:
        sent, (body, asked_model) = body.raw, self.named(key, body)
        downstream, sink = self.answer_with(body)
        request = TurnRequest(
            key=key,
            route=self.route,
            downstream=downstream,
            headers=self.headers,
            body=body,
            asked_model=asked_model,
            operation=self.operation,
            received_at=self.received_at,
            id=self.turn_id,
            via=self.via,
        )
        if self.via is None and await self._forwarded(request, sent, permit):
            return
        self.turn = Turn(self.gate.engine, request, sink, permit)
        await self.turn.run()

    async def _forwarded(self, request: TurnRequest, sent: bytes, permit: Permit) -> bool:
        """Whether another replica, which owns the conversation's lanes, has carried the turn."""
        peer = await self.gate.forwarder.owner_of(request) if self.may_be_forwarded else None
        if peer is None:
            return False
        forward = Forward(self.gate, self.wire, self.route)
        self.turn = forward
        permit.hand_over()
        taken = await forward.run(self.gate.forwarder.parcel(request, sent, peer))
        self.turn = None
        if not taken:
            permit.take_back(request.key)
        return taken

    async def _refuse(self, error: GatewayError) -> None:
        told = answer(error, self.route)
        try:
            await send_document(self.wire, told.status, document(told), told.headers)
        except ClientLost:
            # Nobody is there to read it.
            pass
