"""Gateway processes of a world: the real runtime and application, started, stalled, drained and killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.base import App
from gateway.consumers.routes import traffic_app
from gateway.consumers.simple import document_app, not_found
from gateway.runtime import Network as Reach
from gateway.runtime import Runtime
from gateway.storage import StoreError
from gateway.upstream.connection import WebSocketDialer
from gateway.upstream.http import HttpTransport
from tests.sim import http_network
from tests.sim.downstream import Downstream
from tests.sim.loop import Process
from tests.sim.network import Network
from tests.sim.peer_port import PeerPort
from tests.sim.planted import Planted
from tests.sim.store import SimStore
from tests.sim.upstream import SimRefresher

# Replicas reach each other at this port and those after it, and sign what they send with this.
FIRST_PEER_PORT = 8000
SIGNING_KEY = b"what all replicas share"

# Seconds after which a balancer's health checks have noticed a process that does not answer.
NOTICED_AFTER = 3.0


class Replica:
    """One process. `state` is starting, up, draining, stopped or dead. `between` is the network to other replicas."""

    def __init__(self, number: int, make: Callable[[], Runtime], between: Network) -> None:
        self.name = f"r{number}"
        self._address = (self.name, FIRST_PEER_PORT + number)
        self._between = between
        self.process = Process(self.name)
        self.state = "starting"
        self._make = make
        self.runtime: Runtime
        self.app: App
        self.connections: dict[Downstream, None] = {}
        self.peers: dict[PeerPort, None] = {}

    def __repr__(self) -> str:
        return f"<Replica {self.name} {self.state}>"

    @property
    def takes(self) -> bool:
        """Whether its port is open."""
        return self.state in ("up", "draining") and self.process.alive

    def seems_well(self, now: float) -> bool:
        """Whether a balancer sends clients here; that a process has stalled is noticed after a while."""
        stalled_at = self.process.stalled_at
        return self.state == "up" and (stalled_at is None or now - stalled_at < NOTICED_AFTER)

    async def start(self) -> bool:
        """Start the runtime; False when the store did not allow it."""
        return await self.process.spawn(self._start())

    async def _start(self) -> bool:
        self.runtime = self._make()
        host, port = self._address
        self.app = traffic_app(lambda: self.runtime.gate, document_app(not_found), peer_port=lambda: port)
        listening = self._between.listen(port, lambda: PeerPort(self.app, self._address, self.peers))
        self.process.on_kill[listening.close] = None
        try:
            await self.runtime.start(f"http://{host}:{port}")
        except StoreError:
            self.state = "dead"
            self.process.kill()
            return False
        self.state = "up"
        return True

    async def stop(self) -> None:
        """SIGTERM: drain, end what is left, close."""
        if self.state == "up":
            self.state = "draining"
            await asyncio.wait({self.process.spawn(self._stop())})

    async def _stop(self) -> None:
        await self.runtime.drain()
        # What the server still holds open is ended by it, as `gateway.server` does.
        clients = [connection.app for connection in self.connections if connection.app is not None]
        apps = [*clients, *(peer.serving for peer in self.peers if peer.serving is not None)]
        for app in apps:
            app.cancel()
        if apps:
            await asyncio.wait(apps)
        await self.runtime.stop()
        self._between.close_port(self._address[1])
        for peer in tuple(self.peers):
            peer.abort()
        self.state = "stopped"

    def kill(self) -> None:
        """SIGKILL."""
        self.state = "dead"
        self.process.kill()

    def connect(self, scope: dict[str, Any], random: Random) -> Downstream:
        """A client's connection; raises `ConnectionRefusedError`."""
        if not self.takes:
            raise ConnectionRefusedError(f"{self.name} is {self.state}")
        connection = Downstream(self.process, random)
        self.connections[connection] = None
        connection.open(self.app, scope)
        assert connection.app is not None
        connection.app.add_done_callback(lambda _: self.connections.pop(connection, None))
        return connection


def real_runtime(
    network: Network,
    between: Network,
    store: SimStore,
    clock: Clock,
    tunables: Tunables,
    refresher: Callable[[], SimRefresher],
    planted: Planted,
) -> Runtime:
    """A runtime of the real parts but for what is planted, on the simulated networks and store."""
    tunables = planted.tunables(tunables)
    http = HttpTransport(tunables, clock, http_network.transport(network, tunables))
    peers = planted.peers(tunables, http_network.transport(between, tunables))
    reach = Reach(WebSocketDialer(tunables, clock), http, refresher(), peers)
    return Runtime(tunables, store, clock, reach, parts=planted.parts, signing_keys=[SIGNING_KEY])
