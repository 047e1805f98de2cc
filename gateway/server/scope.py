"""From a parsed request to an ASGI scope, and what is checked on the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from asgiref.typing import ASGIVersions, HTTPScope, WebSocketScope

from gateway.server.errors import Refusal
from gateway.server.response import RequestLine

Header = tuple[bytes, bytes]

FLOW_EXTENSION = "pointsman.flow"
DENIAL_EXTENSION = "websocket.http.response"

# Control characters but tab; RFC 9110 section 5.5 allows none of them in a field value.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

# What the opening handshake itself depends on (RFC 6455 section 4.2.1). Extensions are left out, so none is ever
# negotiated; the origin is the application's to judge.
_HANDSHAKE_HEADERS = frozenset(
    {
        b"host",
        b"upgrade",
        b"connection",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-protocol",
    }
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The two ends of a connection, and how many bytes wait on this one."""

    client: tuple[str, int]
    server: tuple[str, int]
    buffered: Callable[[], int]


def flat_headers(raw: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[Header]:
    """Lower-case names, one pair per value.

    A name with an underscore is dropped: after the mapping that CGI and Django's META use it could not be told from
    the same name with a hyphen, which a proxy in front may have set on purpose.
    """
    return [(name.lower(), value) for name, values in raw if b"_" not in name for value in values]


def header_problem(headers: Iterable[Header]) -> Refusal | None:
    """The refusal for a header value that RFC 9110 forbids, or None."""
    for name, value in headers:
        if _CONTROL.search(value):
            return Refusal(
                400,
                "invalid_header",
                f"The value of the header {name.decode('latin-1')} holds a control character; remove it.",
            )
    return None


def wants_websocket(headers: Iterable[Header]) -> bool:
    """Whether the request asks for an upgrade to WebSocket."""
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)


def http_scope(line: RequestLine, headers: list[Header], peer: Peer) -> HTTPScope:
    """The ASGI scope of an HTTP request."""
    return {
        "type": "http",
        "asgi": _versions(),
        "http_version": line.version.rpartition(b"/")[2].decode("ascii"),
        "method": line.method.decode("ascii"),
        "scheme": "http",
        "path": unquote(line.target.decode("ascii")),
        "raw_path": line.target,
        "query_string": line.query,
        "root_path": "",
        "headers": headers,
        "client": peer.client,
        "server": peer.server,
        "extensions": {FLOW_EXTENSION: {"buffered": peer.buffered}},
    }


def websocket_scope(line: RequestLine, headers: list[Header], peer: Peer) -> WebSocketScope:
    """The ASGI scope of a WebSocket handshake."""
    return {
        "type": "websocket",
        "asgi": _versions(),
        "http_version": "1.1",
        "scheme": "ws",
        "path": unquote(line.target.decode("ascii")),
        "raw_path": line.target,
        "query_string": line.query,
        "root_path": "",
        "headers": headers,
        "client": peer.client,
        "server": peer.server,
        "subprotocols": _subprotocols(headers),
        "extensions": {FLOW_EXTENSION: {"buffered": peer.buffered}, DENIAL_EXTENSION: {}},
    }


def offer_write(scope: HTTPScope | WebSocketScope, write: Callable[[Sequence[bytes]], bool]) -> None:
    """Let the application write without `send`, by the connection's own `write`."""
    extensions = scope["extensions"]
    if extensions is not None:
        extensions[FLOW_EXTENSION]["write"] = write


def opening_handshake(line: RequestLine, headers: Iterable[Header]) -> bytes:
    """The request again, reduced to what a WebSocket implementation has to check."""
    lines = [line.method + b" / " + line.version]
    lines += [name + b": " + value for name, value in headers if name in _HANDSHAKE_HEADERS]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _subprotocols(headers: Iterable[Header]) -> list[str]:
    offered = b",".join(value for name, value in headers if name == b"sec-websocket-protocol")
    return [item.strip() for item in offered.decode("latin-1").split(",") if item.strip()]


def _versions() -> ASGIVersions:
    return {"version": "3.0", "spec_version": "2.4"}
