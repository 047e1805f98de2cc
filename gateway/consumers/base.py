"""The consumers' common ground: Channels' class, without its dispatcher.

Channels hands a consumer one message at a time and waits for its handler, so a client that leaves is not noticed
while a handler runs, and before each message it visits the shared database thread. These consumers listen in a task
of their own instead, and do neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from channels.consumer import AsyncConsumer

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.wire import ClientWire
from gateway.errors import ClientLost, GatewayError, Unauthorized
from gateway.keys import KeyRing, KeySnapshot
from gateway.turns.dispatch import Engine, Turn
from gateway.turns.permits import Permits
from gateway.turns.request import Route

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
    """What the consumers need of the process: who may come in, and the engine."""

    keys: KeyRing
    permits: Permits
    engine: Engine
    used: Callable[[int], None]
    readiness: Callable[[], Awaitable[Sequence[Check]]]
    sockets: set[ClientSocket]

    @property
    def tunables(self) -> Tunables:
        return self.engine.tunables

    @property
    def clock(self) -> Clock:
        return self.engine.clock


class GatewayConsumer(AsyncConsumer):
    """A consumer of one connection on one route."""

    def __init__(self, gate: Callable[[], Gate], route: Route) -> None:
        self.gate = gate()
        self.route = route
        self.turn: Turn | None = None

    def open_wire(self, scope: Scope, send: Send) -> None:
        """Take over the connection's scope and its way back."""
        self.scope = scope
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        flow = scope.get("extensions", {}).get("pointsman.flow", {})
        self.wire = ClientWire(send, self.gate.tunables, flow.get("buffered"))

    def authenticate(self) -> KeySnapshot:
        """The key that the client showed; raises `Unauthorized`."""
        key = self.gate.keys.from_authorization(dict(self.headers).get("authorization"))
        if key is None:
            raise Unauthorized(
                "No valid key of this gateway: send `Authorization: Bearer` and a key of `manage.py create_api_key`."
            )
        self.gate.used(key.id)
        return key

    def stop(self, work: asyncio.Task[None], error: GatewayError) -> None:
        """End what this connection is doing: its turn with `error` if there is one, else the work itself."""
        if self.turn is not None:
            self.turn.abort(error)
        else:
            work.cancel()


def client_left() -> ClientLost:
    return ClientLost("The client has left.")
