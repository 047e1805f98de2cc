"""Daphne made fit for streaming.

One process, one event loop, HTTP/1.1 and WebSocket, any ASGI application. What it adds to Daphne:

- `send()` waits while the client reads more slowly than the application writes (`flow`, `transport`);
- `send()` raises `ClientDisconnected`, an `OSError`, once the client has left;
- an HTTP application starts with the headers and receives the body as it arrives (`channel`, `http`);
- WebSocket accept headers, denial responses, close reasons, pings and hard bounds (`websocket`);
- errors of the server itself are JSON (`errors`);
- a shutdown that drains, then cancels, then closes (`server`).

`scope["extensions"]["pointsman.flow"]["buffered"]()` is the number of bytes written but not yet handed to the
kernel for this connection: a slow client makes it fall, a stalled one does not. `["write"](pieces)` next to it writes
pieces of a body that was begun, or text messages, at once and without a task; it says whether it did, and does not
while the client is too far behind or nothing can be written, where `send()` waits or says why.

Importing this package installs the Twisted reactor (`loop`), so it comes before any import of `daphne.server` or
`twisted.internet.reactor`.
"""

from gateway.server.loop import install_reactor

install_reactor()

from gateway.server.errors import ClientDisconnected, ListenError, PortTaken  # noqa: E402
from gateway.server.limits import Endpoint, InheritedSocket, ServerLimits, TcpEndpoint  # noqa: E402
from gateway.server.server import GatewayServer  # noqa: E402

__all__ = [
    "ClientDisconnected",
    "Endpoint",
    "GatewayServer",
    "InheritedSocket",
    "ListenError",
    "PortTaken",
    "ServerLimits",
    "TcpEndpoint",
    "install_reactor",
]
