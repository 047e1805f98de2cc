"""Requests without a body worth reading, answered by one JSON document."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from gateway.consumers.base import Receive, Scope, Send
from gateway.protocol.wire import error_body


@dataclass(frozen=True, slots=True)
class Document:
    """A status, a JSON body, and headers beside its type and length."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


Respond = Callable[[Scope], Awaitable[Document]]


def document_app(respond: Respond) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An ASGI application that answers every request with what `respond` returns; it stops when the client leaves."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        responding = asyncio.ensure_future(respond(scope))
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            await asyncio.wait({responding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if responding.done():
                await _send(send, responding.result(), scope["method"])
        finally:
            leaving.cancel()
            responding.cancel()

    return app


async def until_left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, document: Document, method: str) -> None:
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in document.headers.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(document.body))]
    try:
        await send({"type": "http.response.start", "status": document.status, "headers": headers})
        await send(
            {
                "type": "http.response.body",
                "body": b"" if method == "HEAD" else document.body,
                "more_body": False,
            }
        )
    except OSError:
        # The client has left; nobody misses the answer.
        pass


async def not_found(scope: Scope) -> Document:
    """The answer to a path that the gateway does not know."""
    message = f"There is no {scope['path']!r} here; the gateway serves /v1/responses and /backend-api/codex/responses."
    return Document(404, error_body(message, "invalid_request_error", "not_found"))


async def wrong_method(scope: Scope) -> Document:
    """The answer to a method that a known path does not take."""
    message = f"{scope['path']} does not take {scope['method']}."
    return Document(405, error_body(message, "invalid_request_error", "method_not_allowed"))


def json_document(status: int, content: object) -> Document:
    return Document(status, msgspec.json.encode(content))
