"""One HTTP request and the application that answers it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asgiref.typing import ASGISendEvent, HTTPDisconnectEvent, HTTPResponseStartEvent
from daphne.http_protocol import WebRequest

from gateway.server.errors import INTERNAL_ERROR, STOPPING, ClientDisconnected, InboxFull, Refusal
from gateway.server.flow import Inbox
from gateway.server.response import BodyEncoder, RequestLine, closes_connection, response_head
from gateway.server.scope import (
    Header,
    Peer,
    flat_headers,
    header_problem,
    http_scope,
    offer_write,
    opening_handshake,
    wants_websocket,
    websocket_scope,
)

if TYPE_CHECKING:
    from gateway.server.channel import GatewayChannel
    from gateway.server.server import GatewayServer
    from gateway.server.transport import GatewayTransport

logger = logging.getLogger(__name__)

_DISCONNECT: HTTPDisconnectEvent = {"type": "http.disconnect"}

# Chunks of an upload that may wait for the application; a bound on what a client gains by sending tiny ones.
MAX_BODY_CHUNKS = 65536


class GatewayRequest(WebRequest):
    """A request whose application starts with the headers, and whose response is written without detours.

    The channel calls `headers_received` for a request with a body, `handleContentChunk` for each piece and
    `requestReceived` at its end. The application calls `send` and its inbox's `receive`.
    """

    channel: GatewayChannel | None
    server: GatewayServer
    transport: GatewayTransport

    def __init__(self, channel: GatewayChannel, queued: int = 0) -> None:
        super().__init__(channel, queued)
        self.body_complete = False
        self.inbox = Inbox(max_messages=MAX_BODY_CHUNKS, max_bytes=self.server.limits.queue_bytes)
        self._connection = channel
        self._gate = channel.gate
        self._line: RequestLine | None = None
        self._start: HTTPResponseStartEvent | None = None
        self._encoder: BodyEncoder | None = None
        self._closed: str | None = None

    # What the channel calls

    def gotLength(self, length: int | None) -> None:
        """Twisted would open a file for the body here; ours goes to the application as it arrives."""

    def parseCookies(self) -> None:
        """Cookies are the application's business."""

    def headers_received(self, command: bytes, target: bytes, version: bytes) -> None:
        """The headers are complete and a body follows: start the application."""
        self._begin(command, target, version)

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body. One more than may wait is refused."""
        try:
            self.inbox.put({"type": "http.request", "body": data, "more_body": True}, len(data))
        except InboxFull as full:
            self._connection.refuse(Refusal(400, "upload_overflow", str(full)))

    def requestReceived(self, command: bytes, target: bytes, version: bytes) -> None:
        """The body is complete, or there is none."""
        self.body_complete = True
        if self._line is None:
            self._begin(command, target, version)
        self.inbox.put({"type": "http.request", "body": b"", "more_body": False})

    def connectionLost(self, reason: object) -> None:
        """The client is gone."""
        self._disconnected = True
        self.channel = None
        self.abandon("The client closed the connection.")

    def abandon(self, why: str) -> None:
        """Nothing can be sent any more: the application gets `http.disconnect`, its next `send` raises."""
        if self._closed is None:
            self._closed = why
            self.inbox.close(_DISCONNECT)
            self.server.protocol_disconnected(self)

    @property
    def on_the_wire(self) -> bool:
        """Whether a part of the response has been written."""
        return self._encoder is not None

    @property
    def is_head(self) -> bool:
        """Whether this is a HEAD request, whose answer has no body."""
        return self._line is not None and self._line.method == b"HEAD"

    # What the application and the server call

    async def send(self, message: ASGISendEvent) -> None:
        """The application's `send`: writes at once, then waits while the client is too far behind.

        The headers go out with the first body message; an empty one with `more_body` sends them alone. The last
        message never waits: what is left of the response is the transport's business.

        Raises `ClientDisconnected` if the client is gone, `ValueError` or `RuntimeError` for a message that the
        ASGI specification does not allow here.
        """
        if self._closed is not None:
            raise ClientDisconnected(self._closed)
        if message["type"] == "http.response.body":
            self._write(message.get("body", b""), message.get("more_body", False))
            if self._gate.paused and not self.finished:
                await self._gate.drained()
        elif message["type"] == "http.response.start":
            if self._start is not None:
                raise RuntimeError("http.response.start was sent twice for one request; send it once.")
            self._start = message
        else:
            raise ValueError(f"An HTTP application cannot send {message['type']!r}.")

    def write_now(self, pieces: Sequence[bytes]) -> bool:
        """More of a body that was begun, written at once; False, and nothing is written, if only `send` can do it."""
        encoder = self._encoder
        if encoder is None or self.finished or self._gate.paused or self._closed is not None:
            return False
        self.transport.write(encoder.encode(b"".join(pieces), True))
        return True

    def application_ended(self) -> None:
        """The application returned, failed or was cancelled; called once, by the server.

        An unanswered request is answered 500. A response that was begun is cut, so that nobody takes it for complete.
        """
        if self._closed is not None or self.finished:
            return
        logger.warning("An HTTP application ended before its response was complete; the client is told so.")
        if self.on_the_wire:
            self._connection.loseConnection()
        else:
            self._connection.refuse(STOPPING if self.server.stopping else INTERNAL_ERROR)

    def handle_exception(self, exception: BaseException) -> None:
        """Daphne's name for it."""
        self.application_ended()

    # Inside

    def _begin(self, command: bytes, target: bytes, version: bytes) -> None:
        path, _, query = target.partition(b"?")
        line = self._line = RequestLine(command, path, query, version)
        headers = flat_headers(self.requestHeaders.getAllRawHeaders())
        problem = header_problem(headers)
        if problem is None and wants_websocket(headers):
            if self.body_complete:
                self._become_websocket(line, headers)
                return
            problem = Refusal(400, "invalid_handshake", "A WebSocket handshake has no body; send it without one.")
        if problem is None:
            self.application_queue = self.inbox
            scope = http_scope(line, headers, self._peer())
            offer_write(scope, self.write_now)
            self.server.create_application(self, scope)
        else:
            self._connection.refuse(problem)

    def _become_websocket(self, line: RequestLine, headers: list[Header]) -> None:
        websocket = self.server.ws_factory.adopt(self.transport, websocket_scope(line, headers, self._peer()))
        self._connection.hand_over(websocket)
        websocket.dataReceived(opening_handshake(line, headers))
        self.server.protocol_disconnected(self)

    def _peer(self) -> Peer:
        return Peer(
            (str(self.client.host), self.client.port),
            (str(self.host.host), self.host.port),
            self.transport.buffered,
        )

    def _write(self, data: bytes, more: bool) -> None:
        if self.finished:
            raise RuntimeError("The response is complete; nothing can be sent after more_body was false.")
        encoder = self._encoder
        if encoder is None:
            encoder = self._write_first(data, more)
        else:
            self.transport.write(encoder.encode(data, more))
        if not more:
            self._complete(encoder.complete)

    def _write_first(self, data: bytes, more: bool) -> BodyEncoder:
        if self._start is None or self._line is None:
            raise RuntimeError("http.response.start has to be sent before http.response.body.")
        headers = list(self._start.get("headers") or ())
        # Nobody knows yet whether the body will be complete when the response is, and a client that has to stop its
        # upload has to be told in the headers.
        if not self.body_complete or closes_connection(headers):
            self._connection.persistent = False
        head, encoder = response_head(
            self._line, self._start["status"], headers, closes=not self._connection.persistent
        )
        body = encoder.encode(data, more)
        self._encoder = encoder
        self.transport.write_pair(head, body)
        return encoder

    def _complete(self, complete: bool) -> None:
        self.finished = 1
        self.channel = None
        self.inbox.close(_DISCONNECT)
        self.server.protocol_disconnected(self)
        if not complete:
            self._connection.persistent = False
        self._connection.requestDone(self)
        if not complete:
            raise RuntimeError("The response body is shorter than its Content-Length; the connection was closed.")
