"""Documents for the holder of a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.consumers.base import Gate, Scope
from gateway.consumers.render import document
from gateway.consumers.simple import Document
from gateway.errors import GatewayError, Unauthorized
from gateway.keys import KeySnapshot
from gateway.turns.answers import answer
from gateway.turns.request import Route

RespondToKey = Callable[[KeySnapshot, Scope], Awaitable[Document]]


def keyed(gate: Callable[[], Gate], route: Route, respond: RespondToKey) -> Callable[[Scope], Awaitable[Document]]:
    """A responder that asks for a key first; errors of the tree become their answers."""

    async def respond_to(scope: Scope) -> Document:
        try:
            authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            key = gate().keys.from_authorization(authorization)
            if key is None:
                raise Unauthorized("No valid key of this gateway: send `Authorization: Bearer pm_…`.")
            gate().used(key.id)
            return await respond(key, scope)
        except GatewayError as error:
            told = answer(error, route)
            return Document(told.status, document(told), dict(told.headers))

    return respond_to
