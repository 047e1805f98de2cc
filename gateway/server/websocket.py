"""One WebSocket and the application behind it (RFC 6455)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from asgiref.typing import (
    ASGISendEvent,
    WebSocketAcceptEvent,
    WebSocketCloseEvent,
    WebSocketResponseBodyEvent,
    WebSocketResponseStartEvent,
    WebSocketScope,
    WebSocketSendEvent,
)
from autobahn.util import encode_truncate
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet.defer import Deferred

from gateway.server.errors import INTERNAL_ERROR, STOPPING, ClientDisconnected, InboxFull, Refusal
from gateway.server.flow import Gate, Inbox
from gateway.server.frames import BINARY, TEXT, frame_header
from gateway.server.response import RequestLine, response_head
from gateway.server.scope import offer_write

if TYPE_CHECKING:
    from gateway.server.server import GatewayServer
    from gateway.server.transport import GatewayTransport

logger = logging.getLogger(__name__)

NO_CODE = 1005
ABNORMAL = 1006
INVALID_PAYLOAD = 1007
POLICY_VIOLATION = 1008
INTERNAL = 1011
SERVICE_RESTART = 1012

# A close reason has to fit a control frame with its code (RFC 6455 section 5.5).
MAX_REASON_BYTES = 123

# What a client may send before its handshake is answered. RFC 6455 section 4.1 has it wait.
MAX_EARLY_BYTES = 64 * 1024


class GatewayWebSocket(WebSocketProtocol):
    """A WebSocket whose application may set accept headers, deny with a response, and close with a reason.

    The first end, from whichever side, decides what the application hears in `websocket.disconnect`; from then on
    `send` raises. Nothing that arrives later is delivered.
    """

    server: GatewayServer
    transport: GatewayTransport
    factory: GatewayWebSocketFactory
    message_data: list[bytes] | None

    def __init__(self, scope: WebSocketScope, server: GatewayServer) -> None:
        super().__init__()
        limits = server.limits
        self.server = server
        self.inbox = Inbox(max_messages=limits.queue_messages, max_bytes=limits.queue_bytes)
        self.gate = Gate()
        self._scope = scope
        offer_write(scope, self.write_now)
        self._handshake: Deferred[tuple[str | None, dict[str, list[str]]]] | None = None
        self._denial: WebSocketResponseStartEvent | None = None
        self._denial_body: list[bytes] = []
        self._ended_because: str | None = None
        self._bytes_heard = 0
        self._sent_at_ping = 0
        self._heard_at_ping = 0

    # The handshake

    def onConnect(self, request: object) -> Deferred[tuple[str | None, dict[str, list[str]]]]:
        """The handshake is valid: ask the application, whose answer fires the deferred."""
        self._handshake = Deferred()
        self.server.protocol_connected(self)
        self.inbox.put({"type": "websocket.connect"})
        self.server.create_application(self, self._scope)
        return self._handshake

    def onOpen(self) -> None:
        """Daphne logs here."""

    def failHandshake(self, reason: str, code: int = 400, responseHeaders: list[tuple[str, str]] | None = None) -> None:
        """The handshake is not valid, or nobody answered it."""
        if code == 500:
            self._refuse(INTERNAL_ERROR)
        else:
            self._refuse(Refusal(code, "invalid_handshake", f"{reason}.", responseHeaders or ()))

    def onOpenHandshakeTimeout(self) -> None:
        """The application neither accepted nor denied in time."""
        self.openHandshakeTimeoutCall = None
        if self.state == self.STATE_CONNECTING:
            limit = self.server.limits.accept_timeout
            self._refuse(Refusal(503, "accept_timeout", f"The gateway did not accept within {limit:g} s; try again."))

    # What arrives

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the client, counted as a sign of life."""
        self._bytes_heard += len(data)
        self._dataReceived(data)

    def consumeData(self) -> None:
        """Parse what has arrived. While the application has not answered, frames wait and are no handshake."""
        if self.state == self.STATE_CONNECTING and self._handshake is not None:
            if len(self.data) > MAX_EARLY_BYTES:
                self.dropConnection(abort=True)
            return
        super().consumeData()

    def onMessageEnd(self) -> None:
        """A message is complete. Autobahn would also tell observers, which nobody registers."""
        parts, self.message_data = self.message_data, None
        if parts is not None and not self.failedByMe:
            self.onMessage(b"".join(parts), self.message_is_binary)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Queue one message. Over a bound, or if it is text that is no UTF-8, the socket is closed."""
        if self.state != self.STATE_OPEN:
            return
        try:
            text = None if isBinary else payload.decode()
            data = payload if isBinary else None
            self.inbox.put({"type": "websocket.receive", "bytes": data, "text": text}, len(payload))
        except UnicodeDecodeError:
            self._fail_connection(INVALID_PAYLOAD, "A text message is not valid UTF-8.")
        except InboxFull as full:
            self._fail_connection(POLICY_VIOLATION, str(full))

    def onCloseFrame(self, code: int | None, reasonRaw: bytes | None) -> bool | None:
        """The client closes, or answers our close."""
        stop: bool | None = super().onCloseFrame(code, reasonRaw)
        self._end(self.remoteCloseCode or NO_CODE, self.remoteCloseReason or "")
        return stop

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """The TCP connection is gone."""
        self._end(self.localCloseCode or ABNORMAL, "")

    # Liveness

    def _sendAutoPing(self) -> None:
        self._heard_at_ping = self._bytes_heard
        self._sent_at_ping = self.transport.bytes_sent
        super()._sendAutoPing()

    def onAutoPingTimeout(self) -> None:
        """No pong in time. A client that is busy with a long message, in either direction, is given more."""
        heard = self._bytes_heard > self._heard_at_ping
        still_taking = self.transport.buffered() > 0 and self.transport.bytes_sent > self._sent_at_ping
        if heard or still_taking:
            self._heard_at_ping = self._bytes_heard
            self._sent_at_ping = self.transport.bytes_sent
            self.autoPingTimeoutCall = self.factory._batched_timer.call_later(
                self.autoPingTimeout, self.onAutoPingTimeout
            )
            return
        self._end(ABNORMAL, f"No pong within {self.autoPingTimeout:g} s.")
        super().onAutoPingTimeout()

    # What the application and the server call

    async def send(self, message: ASGISendEvent) -> None:
        """The application's `send`: writes at once, then waits while the client is too far behind.

        Raises `ClientDisconnected` if the socket is closing or closed, `ValueError` or `RuntimeError` for a message
        that the ASGI specification does not allow here.
        """
        if self._ended_because is not None:
            raise ClientDisconnected(self._ended_because)
        if message["type"] == "websocket.send":
            self._send_message(message)
            if self.gate.paused:
                await self.gate.drained()
        elif message["type"] == "websocket.close":
            self._close(message)
        elif message["type"] == "websocket.accept":
            self._accept(message)
        elif message["type"] == "websocket.http.response.start":
            self._require_unanswered("deny")
            self._denial = message
        elif message["type"] == "websocket.http.response.body":
            self._deny(message)
        else:
            raise ValueError(f"A WebSocket application cannot send {message['type']!r}.")

    def write_now(self, texts: Sequence[bytes]) -> bool:
        """Text messages in UTF-8, written at once; False, and nothing is written, if only `send` can do it."""
        if self.state != self.STATE_OPEN or self._ended_because is not None or self.gate.paused:
            return False
        self.transport.write_at_once(
            b"".join([part for text in texts for part in (frame_header(TEXT, len(text)), text)])
        )
        return True

    def application_ended(self) -> None:
        """The application returned, failed or was cancelled; called once, by the server."""
        if self._ended_because is not None or self.state == self.STATE_CLOSING:
            return
        stopping = self.server.stopping
        if not stopping:
            logger.warning("A WebSocket application ended without closing its socket; it was closed for it.")
        if self.state == self.STATE_CONNECTING:
            self._refuse(STOPPING if stopping else INTERNAL_ERROR)
        elif stopping:
            self._fail_connection(SERVICE_RESTART, "The gateway is restarting; connect again.")
        else:
            self._fail_connection(INTERNAL, "The gateway ended this connection; its log says why.")

    def handle_exception(self, exception: BaseException) -> None:
        """Daphne's name for it."""
        self.application_ended()

    # Inside

    def _send_message(self, message: WebSocketSendEvent) -> None:
        if self.state != self.STATE_OPEN:
            self._require_open()
        text, data = message.get("text"), message.get("bytes")
        if text is not None and data is None:
            opcode, payload = TEXT, text.encode()
        elif data is not None and text is None:
            opcode, payload = BINARY, data
        else:
            raise ValueError("websocket.send takes either text or bytes, and exactly one of them.")
        if len(payload) > self.maxMessagePayloadSize:
            raise ValueError(
                f"A message of {len(payload)} bytes is over the limit of {self.maxMessagePayloadSize}; split it."
            )
        self.transport.write_pair(frame_header(opcode, len(payload)), payload)

    def _accept(self, message: WebSocketAcceptEvent) -> None:
        handshake = self._require_unanswered("accept")
        subprotocol = message.get("subprotocol")
        if subprotocol is not None and subprotocol not in self._scope["subprotocols"]:
            raise ValueError(f"Subprotocol {subprotocol!r} was not offered by the client; accept one that was.")
        raw_headers = list(message.get("headers") or ())
        response_head(_HANDSHAKE_LINE, 101, raw_headers, closes=False)
        headers: dict[str, list[str]] = {}
        for name, value in raw_headers:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        self._handshake = None
        handshake.callback((subprotocol, headers))

    def _deny(self, message: WebSocketResponseBodyEvent) -> None:
        self._require_unanswered("deny")
        if self._denial is None:
            raise RuntimeError("websocket.http.response.start has to be sent before its body.")
        self._denial_body.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(self._denial_body)
        headers = [pair for pair in self._denial.get("headers") or () if pair[0].lower() != b"content-length"]
        headers.append((b"Content-Length", b"%d" % len(body)))
        head, encoder = response_head(_HANDSHAKE_LINE, self._denial["status"], headers, closes=True)
        self._answer(head + encoder.encode(body, more=False), "The WebSocket was denied.")

    def _close(self, message: WebSocketCloseEvent) -> None:
        if self.state == self.STATE_CONNECTING:
            self._require_unanswered("close")
            self._refuse(Refusal(403, "websocket_refused", "The gateway refused this WebSocket."))
            return
        code, reason = message.get("code") or 1000, message.get("reason")
        if code not in self.CLOSE_STATUS_CODES_ALLOWED and not 3000 <= code <= 4999:
            raise ValueError(f"{code} is no code for a close frame (RFC 6455 section 7.4).")
        self.sendCloseFrame(code, encode_truncate(reason or "", MAX_REASON_BYTES))

    def _fail_connection(self, code: int, reason: str) -> None:
        """The server closes: autobahn's name, also used by its parser for violations of the protocol."""
        super()._fail_connection(code, reason)
        self._end(code, reason)

    def _refuse(self, refusal: Refusal) -> None:
        self._answer(refusal.response(), refusal.message)

    def _answer(self, response: bytes, why: str) -> None:
        """Answer the handshake with an ordinary HTTP response and close."""
        self.wasNotCleanReason = why
        self.transport.write(response)
        self.dropConnection(abort=False)
        self._end(ABNORMAL, why)

    def _end(self, code: int, reason: str) -> None:
        if self._ended_because is not None:
            return
        self._ended_because = f"The WebSocket is closed ({code} {reason or 'without a reason'})."
        self.inbox.close({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.gate.break_off(self._ended_because)
        self.server.protocol_disconnected(self)

    def _require_open(self) -> None:
        if self.state == self.STATE_CONNECTING:
            raise RuntimeError("The WebSocket was not accepted yet; send websocket.accept first.")
        raise ClientDisconnected("The WebSocket is closing.")

    def _require_unanswered(self, what: str) -> Deferred[tuple[str | None, dict[str, list[str]]]]:
        if self._handshake is None:
            raise RuntimeError(f"Cannot {what}: the handshake of this WebSocket has been answered already.")
        return self._handshake


_HANDSHAKE_LINE = RequestLine(b"GET", b"/", b"", b"HTTP/1.1")


class LoopTimer:
    """Stands in for autobahn's timer, which rounds to whole seconds, and down."""

    def call_later(self, delay: float, function: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call `function` after `delay` seconds, unless the handle is cancelled before."""
        return asyncio.get_running_loop().call_later(delay, function, *args)


class GatewayWebSocketFactory(WebSocketFactory):
    """Turns the transport of an upgrade request into a WebSocket."""

    server_class: GatewayServer

    def __init__(self, server: GatewayServer) -> None:
        super().__init__(server, server="")
        self._batched_timer = LoopTimer()
        limits = server.limits
        self.setProtocolOptions(
            versions=[13],
            webStatus=False,
            # Text is decoded as a whole, which checks it; autobahn's own check costs more.
            utf8validateIncoming=False,
            maxFramePayloadSize=limits.max_message_bytes,
            maxMessagePayloadSize=limits.max_message_bytes,
            failByDrop=False,
            echoCloseCodeReason=True,
            openHandshakeTimeout=limits.accept_timeout,
            closeHandshakeTimeout=limits.close_timeout,
            autoPingInterval=limits.ping_interval,
            autoPingTimeout=limits.ping_timeout,
        )

    def adopt(self, transport: GatewayTransport, scope: WebSocketScope) -> GatewayWebSocket:
        """A WebSocket on `transport`, which no longer belongs to HTTP. Give it the handshake as its first data."""
        websocket = GatewayWebSocket(scope, self.server_class)
        websocket.factory = self
        transport.unregisterProducer()
        transport.registerProducer(websocket.gate, True)
        transport.protocol = websocket
        transport.resumeProducing()
        websocket.makeConnection(transport)
        return websocket
