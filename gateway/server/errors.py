"""What can go wrong in the server itself, and how a client is told.

ListenError                 the server cannot listen where it was told to; raised by `GatewayServer.run()`
└── PortTaken               another process listens there
ClientDisconnected          `send()` after the client left; an `OSError`, as ASGI 2.4 asks
InboxFull                   more waits for the application than the limits allow
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus


class ListenError(Exception):
    """The server cannot listen on an endpoint. The message names it and says what to change."""


class PortTaken(ListenError):
    """Another process listens on this host and port."""


class ClientDisconnected(OSError):
    """The client is gone, or the server has closed the connection to it: nothing can be sent any more.

    An application lets it pass or stops its work; the server treats it as the end of the application, not as a
    failure.
    """


class InboxFull(Exception):
    """A message was not queued because the named limit would be exceeded."""


def reason_phrase(status: int) -> str:
    """The standard phrase for `status`; empty for a status that has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the server gives by itself. The connection is closed after it."""

    status: int
    code: str
    message: str
    headers: Sequence[tuple[str, str]] = ()

    def body(self) -> bytes:
        """The JSON error body, in the shape that the Responses API uses."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "code": self.code, "param": None}
        return json.dumps({"error": error}).encode()

    def response(self, *, with_body: bool = True) -> bytes:
        """The complete HTTP/1.1 response. `with_body` is false for HEAD, which is answered by headers alone."""
        body = self.body()
        lines = [
            f"HTTP/1.1 {self.status} {reason_phrase(self.status)}",
            *(f"{name}: {value}" for name, value in self.headers),
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "",
            "",
        ]
        return "\r\n".join(lines).encode("latin-1") + (body if with_body else b"")


INTERNAL_ERROR = Refusal(500, "internal_error", "The gateway failed to answer this request; its log says why.")
STOPPING = Refusal(
    503, "gateway_stopping", "The gateway is restarting; try again in a second.", (("Retry-After", "1"),)
)
