"""`/v1/responses/{id}`: retrieve, delete and cancel a stored response, listen to it, and list its input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.consumers.base import Gate, GatewayConsumer, Receive, Scope, Send
from gateway.consumers.native import StoredStream
from gateway.consumers.render import document
from gateway.consumers.simple import Document, not_found, until_left, wrong_method
from gateway.consumers.sse_sink import SseSink
from gateway.errors import GatewayError, Unauthorized
from gateway.keys import KeySnapshot
from gateway.turns.answers import answer
from gateway.turns.following import Following
from gateway.turns.request import Route
from gateway.turns.stored import StoredCall

PREFIX = "/v1/responses/"
# What may follow the id, and the methods for it.
METHODS = {"": ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
TRUE = ("true", "1")


def stored_of(gate: Callable[[], Gate]) -> Callable[[Scope], Awaitable[Document]]:
    """The responder for everything below `/v1/responses/`."""

    async def respond(scope: Scope) -> Document:
        response_id, slash, rest = scope["path"].removeprefix(PREFIX).partition("/")
        methods = METHODS.get(slash + rest)
        if not response_id or methods is None:
            return await not_found(scope)
        if scope["method"] not in methods:
            return await wrong_method(scope)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            key = _authenticate(gate(), headers)
            query = _query(scope)
            call = StoredCall(key.id, response_id, scope["method"], slash + rest, query, headers)
            told = await gate().engine.stored.make(call)
        except GatewayError as error:
            refused = answer(error, Route.V1)
            return Document(refused.status, document(refused), dict(refused.headers))
        return Document(200, told.body)

    return respond


def _authenticate(gate: Gate, headers: list[tuple[str, str]]) -> KeySnapshot:
    key = gate.keys.from_authorization(dict(headers).get("authorization"))
    if key is None:
        raise Unauthorized("No valid key of this gateway: send `Authorization: Bearer pm_…`.")
    gate.used(key.id)
    return key


def wants_stream(scope: Scope) -> bool:
    """Whether the request asks for the events of a stored response."""
    alone = "/" not in scope["path"].removeprefix(PREFIX)
    pairs = (pair.partition("=") for pair in _query(scope).split("&"))
    return scope["method"] == "GET" and alone and any(n == "stream" and v.lower() in TRUE for n, _, v in pairs)


def _query(scope: Scope) -> str:
    query: bytes = scope["query_string"]
    return query.decode("ascii", "replace")


class StoredStreamHttp(GatewayConsumer):
    """`GET /v1/responses/{id}?stream=true`: the events of a stored response, as its account sends them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open_wire(scope, send)
        await self.attend(self._respond(), until_left(receive))

    async def _respond(self) -> None:
        sink = SseSink(self.wire, StoredStream(self.route, self.gate.clock), self.gate.tunables)
        try:
            key = self.authenticate()
        except GatewayError as error:
            await sink.refuse(answer(error, self.route))
            return
        response_id = self.scope["path"].removeprefix(PREFIX)
        call = StoredCall(key.id, response_id, "GET", "", _query(self.scope), self.headers)
        following = Following(self.gate.engine.stored, call, sink, self.gate.tunables)
        self.turn = following
        self.gate.forwards[following] = None
        try:
            await following.run()
        finally:
            del self.gate.forwards[following]
