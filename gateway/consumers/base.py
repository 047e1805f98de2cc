"""The consumers' common ground: Channels' class, without its dispatcher.

Channels hands a consumer one message at a time and waits for its handler, so a client that leaves is not noticed
while a handler runs, and before each message it visits the shared database thread. These consumers listen in a task
of their own instead, and do neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from channels.consumer import AsyncConsumer

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.wire import ClientWire
from gateway.errors import ClientLost, GatewayError, Stopping, Unauthorized
from gateway.forwarding.forwarder import Forwarder
from gateway.keys import KeyRing, KeySnapshot
from gateway.metering.meter import Meter
from gateway.turns.dispatch import Engine
from gateway.turns.names import Names
from gateway.turns.permits import Permits
from gateway.turns.request import Route
from gateway.upstream.peers import PeerTransport

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness; `problem` says what is wrong when it is not met."""

    name: str
    ok: bool
    problem: str = ""


class ClientSocket(Protocol):
    """A client's open WebSocket, as whoever stops the process sees it."""

    def drain(self) -> None:
        """Close as soon as nothing is running on it; returns at once."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What the consumers need of the process: who may come in, and the engine.

    `sockets` are the clients' open WebSockets, the oldest first. `forwards` is what goes on with clients that is no
    turn of this process: turns at other replicas, stored responses, and requests that are still coming in.
    """

    keys: KeyRing
    permits: Permits
    engine: Engine
    used: Callable[[int], None]
    readiness: Callable[[], Awaitable[Sequence[Check]]]
    sockets: dict[ClientSocket, None]
    names: Names
    meter: Meter
    look_up_usage: Callable[[KeySnapshot], Awaitable[None]]
    forwarder: Forwarder
    peers: PeerTransport
    forwards: dict[Abortable, None]

    @property
    def tunables(self) -> Tunables:
        return self.engine.tunables

    @property
    def clock(self) -> Clock:
        return self.engine.clock


class Abortable(Protocol):
    """A turn, here or at another replica, or what comes before one."""

    def abort(self, error: GatewayError) -> None:
        """End it with `error`, at whatever it is waiting for."""

    def goes_on_alone(self) -> bool:
        """Whether it outlives its client."""


class GatewayConsumer(AsyncConsumer):
    """A consumer of one connection on one route."""

    def __init__(self, gate: Callable[[], Gate], route: Route) -> None:
        self.gate = gate()
        self.route = route
        self.turn: Abortable | None = None

    def open_wire(self, scope: Scope, send: Send) -> None:
        """Take over the connection's scope and its way back."""
        self.scope = scope
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        flow = scope.get("extensions", {}).get("pointsman.flow", {})
        self.wire = ClientWire(send, self.gate.tunables, flow.get("buffered"), flow.get("write"))

    def authenticate(self) -> KeySnapshot:
        """The key that the client showed; raises `Unauthorized`."""
        key = self.gate.keys.from_authorization(dict(self.headers).get("authorization"))
        if key is None:
            raise Unauthorized(
                "No valid key of this gateway: send `Authorization: Bearer` and a key of `manage.py create_api_key`."
            )
        self.gate.used(key.id)
        return key

    def goes_on_alone(self) -> bool:
        """Whether what this connection is doing outlives its client."""
        return self.turn is not None and self.turn.goes_on_alone()

    async def attend(self, responding: Coroutine[None, None, None], listening: Coroutine[None, None, None]) -> None:
        """Let `responding` answer the request, and end it when `listening` is over, since the client has left then."""
        work, leaving = asyncio.ensure_future(responding), asyncio.ensure_future(listening)
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                if self.goes_on_alone():
                    return
                self.stop(work, client_left())
                await asyncio.wait({work})
        except asyncio.CancelledError:
            if self.goes_on_alone():
                raise
            # The server is ending this connection; the turn settles before that is passed on.
            self.stop(work, Stopping("The gateway is stopping.", retry_after=2))
            await asyncio.wait({work})
            raise
        finally:
            leaving.cancel()
        if not work.cancelled():
            work.result()

    def stop(self, work: asyncio.Task[None], error: GatewayError) -> None:
        """End what this connection is doing: its turn with `error` if there is one, else the work itself."""
        if self.turn is not None:
            self.turn.abort(error)
        else:
            work.cancel()


def client_left() -> ClientLost:
    return ClientLost("The client has left.")
