"""One HTTP/1.1 connection: Twisted's parser, with uploads that stream and refusals that a client can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daphne.http_protocol import HTTPFactory
from twisted.internet import reactor
from twisted.web.http import HTTPChannel

from gateway.server.errors import Refusal
from gateway.server.flow import Gate
from gateway.server.http import GatewayRequest

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress, IDelayedCall

    from gateway.server.server import GatewayServer
    from gateway.server.transport import GatewayTransport
    from gateway.server.websocket import GatewayWebSocket


class GatewayChannel(HTTPChannel):
    """Parses requests, starts each one's application with its headers, and closes without losing the answer."""

    transport: GatewayTransport
    factory: GatewayHTTPFactory
    requests: list[GatewayRequest]
    requestFactory = GatewayRequest
    # A connection that is being closed is given up by its transport, once the peer makes no progress.
    abortTimeout = None

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self._websocket: GatewayWebSocket | None = None
        self._undelivered: GatewayRequest | None = None
        self._retired = False
        self._linger_left: int | None = None
        self._linger_timer: IDelayedCall | None = None

    def connectionMade(self) -> None:
        """Twisted calls this once the transport is there."""
        limits = self.factory.server.limits
        self.totalHeadersSize = self.MAX_LENGTH = limits.header_bytes
        super().connectionMade()
        self.registerProducer(self.gate, True)

    # Reading

    def allHeadersReceived(self) -> None:
        """The head is complete: a request with a body starts now, one without in `allContentReceived`."""
        super().allHeadersReceived()
        if self._retired:
            self.persistent = False
        if self.length != 0:
            self.requests[-1].headers_received(self._command, self._path, self._version)

    def rawDataReceived(self, data: bytes) -> None:
        """A piece of a body, or what follows the current request."""
        if self._linger_left is not None:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self.transport.loseConnection()
        elif self._websocket is not None:
            self._websocket.dataReceived(data)
        else:
            super().rawDataReceived(data)

    def allContentReceived(self) -> None:
        """The request is complete. A decoder may still come here after its request was refused."""
        if self._linger_left is None:
            super().allContentReceived()

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line longer than all headers together may be."""
        self.refuse(self._headers_too_large())

    def hand_over(self, websocket: GatewayWebSocket) -> None:
        """From now on everything that arrives belongs to `websocket`."""
        self._websocket = websocket

    # Writing

    def pauseProducing(self) -> None:
        """The transport is full. An upload goes on: paused, it would hide that the client left."""
        if self.requests and not self._handlingRequest:
            self._waitingForTransport = True
            self.gate.pauseProducing()
        else:
            super().pauseProducing()

    def resumeProducing(self) -> None:
        """The transport is empty."""
        super().resumeProducing()
        if self._undelivered is not None:
            request, self._undelivered = self._undelivered, None
            super().requestDone(request)

    def requestDone(self, request: GatewayRequest) -> None:
        """The response is written. The next request is looked at once the client has taken most of it.

        Otherwise a client that sends requests and reads no answers would fill the buffer without end.
        """
        if not request.body_complete:
            self.requests.remove(request)
            self._linger()
        elif self._waitingForTransport and self.persistent:
            self._undelivered = request
        else:
            super().requestDone(request)

    # Refusing and closing

    def refuse(self, refusal: Refusal) -> None:
        """Answer by the server itself and close. A response that was begun cannot be answered; it is cut."""
        if self._linger_left is not None or self.transport.disconnecting:
            return
        requests, self.requests = self.requests, []
        for request in requests:
            request.abandon(refusal.message)
        if any(request.on_the_wire for request in requests):
            self.transport.abortConnection()
            return
        is_head = any(request.is_head for request in requests)
        self.transport.write(refusal.response(with_body=not is_head))
        self._linger()

    def retire(self) -> None:
        """Take no request after the present one, or, if there is none, after one that is on its way.

        Call `close_if_idle` a moment later: the client may have sent before it could know.
        """
        self._retired = True
        if self.requests:
            self.persistent = False

    def close_if_idle(self) -> None:
        """Close unless a request is there, after whose response a retired connection closes."""
        if not self.requests:
            self.loseConnection()

    def connectionLost(self, reason: object) -> None:
        """The connection is gone."""
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        self.gate.break_off("The client closed the connection.")
        super().connectionLost(reason)

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Twisted's parser met something that is not HTTP, or too much of it."""
        self.refuse(self._what_is_wrong())

    def _what_is_wrong(self) -> Refusal:
        if self._receivedHeaderSize > self.totalHeadersSize:
            return self._headers_too_large()
        if self._receivedHeaderCount > self.maxHeaders:
            return Refusal(400, "too_many_headers", f"The request has more than {self.maxHeaders} headers; send fewer.")
        if not hasattr(self, "_command"):
            return Refusal(
                400,
                "malformed_request",
                "The first line is not METHOD TARGET HTTP/1.1 in printable ASCII; encode the target.",
            )
        if not self.line_mode:
            return Refusal(400, "malformed_body", "The chunked body is malformed (RFC 9112 section 7.1).")
        return Refusal(400, "invalid_header", "A header is malformed or contradicts another (RFC 9112).")

    def _headers_too_large(self) -> Refusal:
        return Refusal(
            400,
            "headers_too_large",
            f"The request line and headers exceed {self.totalHeadersSize} bytes; send fewer or shorter ones.",
        )

    def _linger(self) -> None:
        """Close in two steps, so that unread data does not reset the connection under the answer.

        RFC 9112 section 9.6: end our side, read and drop what still comes, close when the client does. No parser
        runs any more, so nothing of it can become a request.
        """
        limits = self.factory.server.limits
        self._linger_left = limits.linger_bytes
        self.gate.break_off("The server has answered this request and closes the connection.")
        self.setRawMode()
        self.setTimeout(None)
        self._networkProducer.unregisterProducer()
        self.transport.loseWriteConnection()
        self._networkProducer.resumeProducing()
        self._linger_timer = reactor.callLater(limits.linger_timeout, self._stop_lingering)

    def _stop_lingering(self) -> None:
        self._linger_timer = None
        self.transport.loseConnection()


class GatewayHTTPFactory(HTTPFactory):
    """Makes the channel for each accepted connection."""

    protocol = GatewayChannel
    server: GatewayServer

    def __init__(self, server: GatewayServer) -> None:
        super().__init__(server)
        self.timeOut = server.limits.keep_alive_timeout

    def buildProtocol(self, addr: IAddress) -> GatewayChannel:
        """Called by Twisted for each connection. Daphne's own would put its request class back."""
        channel: GatewayChannel = super().buildProtocol(addr)
        channel.requestFactory = GatewayRequest
        return channel
