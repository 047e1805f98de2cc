"""`POST …/responses`: a turn over HTTP, answered as SSE or as one JSON document."""

from __future__ import annotations

import asyncio

from gateway.consumers.base import GatewayConsumer, Receive, Scope, Send, client_left
from gateway.consumers.json_sink import JsonSink
from gateway.consumers.render import document
from gateway.consumers.request_body import RequestBody, declared_size
from gateway.consumers.sse_sink import SseSink
from gateway.consumers.wire import send_document
from gateway.errors import ClientLost, GatewayError, Stopping
from gateway.keys import KeySnapshot
from gateway.protocol.body import Body
from gateway.turns.answers import answer
from gateway.turns.dispatch import Turn
from gateway.turns.permits import Permit
from gateway.turns.request import Downstream, Route, TurnRequest


class ResponsesHttp(GatewayConsumer):
    """One request. Its responder is the turn's task; a listener beside it feeds the body and sees the client leave."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open_wire(scope, send)
        self.received_at = self.gate.clock.wall()
        self.body = RequestBody(self.gate.tunables.max_body_bytes)
        responding = asyncio.ensure_future(self._respond())
        listening = asyncio.ensure_future(self._listen(receive))
        try:
            await asyncio.wait({responding, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not responding.done():
                self.stop(responding, client_left())
                await asyncio.wait({responding})
        except asyncio.CancelledError:
            # The server is ending this connection; the turn settles before that is passed on.
            self.stop(responding, Stopping("The gateway is stopping.", retry_after=2))
            await asyncio.wait({responding})
            raise
        finally:
            listening.cancel()
        if not responding.cancelled():
            responding.result()

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
            permit = self.gate.permits.ask(key.id, size)
            with permit:
                body = await self.body.read(permit, dict(self.headers).get("content-encoding"))
                await self._carry(key, body, permit)
        except ClientLost:
            pass
        except GatewayError as error:
            await self._refuse(error)

    async def _carry(self, key: KeySnapshot, body: Body, permit: Permit) -> None:
        streams = body.stream or self.route is Route.CODEX
        request = TurnRequest(
            key=key,
            route=self.route,
            downstream=Downstream.SSE if streams else Downstream.JSON,
            headers=self.headers,
            body=body,
            received_at=self.received_at,
        )
        gate = self.gate
        sink = SseSink(self.wire, self.route, gate.tunables, gate.clock) if streams else JsonSink(self.wire, gate.clock)
        self.turn = Turn(gate.engine, request, sink, permit)
        await self.turn.run()

    async def _refuse(self, error: GatewayError) -> None:
        told = answer(error, self.route)
        try:
            await send_document(self.wire, told.status, document(told), told.headers)
        except ClientLost:
            # Nobody is there to read it.
            pass
