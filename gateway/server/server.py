"""The server: endpoints, start and shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

from asgiref.typing import ASGI3Application, HTTPScope, WebSocketScope
from daphne.server import Server
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from gateway.server.applications import Applications, Connection
from gateway.server.channel import GatewayChannel, GatewayHTTPFactory
from gateway.server.errors import ListenError
from gateway.server.limits import Endpoint, ServerLimits
from gateway.server.log import route_twisted_log
from gateway.server.loop import reactor_loop
from gateway.server.transport import GatewayPort, OpenConnections, listen
from gateway.server.websocket import GatewayWebSocketFactory

logger = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[None]]
Address = tuple[str, int]


class GatewayServer(Server):
    """Serves one ASGI application until SIGTERM or SIGINT.

    `on_startup` runs in the server's event loop before it listens. `ready` is then called with the addresses.
    `on_shutdown` is awaited at the first signal, while requests are still served; it should call `stop_listening()`
    and return once the work that has to be finished is; where others serve the same clients, it should call
    `retire_connections()` before it refuses anything. Then the remaining applications are cancelled. A second
    signal ends the wait for `on_shutdown`.

    Call `run()` once per process, in the main thread.
    """

    def __init__(
        self,
        application: ASGI3Application,
        endpoints: Sequence[Endpoint],
        *,
        limits: ServerLimits | None = None,
        on_startup: Hook | None = None,
        on_shutdown: Hook | None = None,
        ready: Callable[[list[Address]], None] | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError("A server needs at least one endpoint to listen on.")
        super().__init__(application, endpoints=endpoints)
        self.limits = limits or ServerLimits()
        self.stopping = False
        self._applications = Applications(application, self.limits.application_close_timeout)
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown
        self._ready = ready
        self._open = OpenConnections()
        self._ports: list[GatewayPort] = []
        self._hurry = asyncio.Event()

    def run(self) -> None:
        """Serve until the server is stopped.

        Raises `PortTaken` or `ListenError` if an endpoint cannot be opened, and whatever `on_startup` raises.
        """
        loop = reactor_loop()
        asyncio.set_event_loop(loop)
        route_twisted_log()
        self.http_factory = GatewayHTTPFactory(self)
        self.ws_factory = GatewayWebSocketFactory(self)
        loop.run_until_complete(self._start())
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        # uvloop loses a signal that arrives before it runs, so nobody may be told earlier.
        loop.call_soon(self._announce)
        reactor.run(installSignalHandlers=False)

    def stop(self) -> None:
        """Begin the shutdown; called again, stop waiting for `on_shutdown`. Returns at once."""
        if self.stopping:
            self._hurry.set()
            return
        self.stopping = True
        reactor.callWhenRunning(reactor.stop)

    async def stop_listening(self) -> None:
        """Close the listeners: new connections are refused, those that are open go on. May be called again."""
        ports, self._ports = self._ports, []
        for port in ports:
            await port.stopListening().asFuture(asyncio.get_running_loop())

    async def retire_connections(self) -> None:
        """Let open HTTP connections end: each carries what it carries, or what was on its way, and nothing after it.

        Waits `retire_grace` for what was on its way, then closes the idle ones. May be called again.
        """
        for channel in self._channels():
            channel.retire()
        if any(not channel.requests for channel in self._channels()):
            await asyncio.sleep(self.limits.retire_grace)
        for channel in self._channels():
            channel.close_if_idle()

    # What requests and WebSockets call

    def protocol_connected(self, protocol: Connection) -> None:
        """Daphne's requests announce themselves; ours count from `create_application`."""

    def protocol_disconnected(self, protocol: Connection) -> None:
        """Nothing can be sent any more on `protocol`; its application may need some time to notice."""
        self._applications.client_left(protocol)

    def create_application(self, protocol: Connection, scope: HTTPScope | WebSocketScope) -> None:
        """Start the application for `protocol`, which answers for everything from here on."""
        self._applications.start(protocol, scope)

    # Start and shutdown

    async def _start(self) -> None:
        if self._on_startup is not None:
            await self._on_startup()
        try:
            for endpoint in self.endpoints:
                port = listen(endpoint, self.http_factory, self._open, self.limits.stall_timeout)
                self._ports.append(port)
        except ListenError:
            await self.stop_listening()
            if self._on_shutdown is not None:
                await self._on_shutdown()
            raise

    def _announce(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            reactor_loop().add_signal_handler(number, self.stop)
        if self._ready is not None:
            self._ready([(port.getHost().host, port.getHost().port) for port in self._ports])

    def kill_all_applications(self) -> Deferred[None]:
        """The whole shutdown; the reactor waits for it before it stops."""
        return Deferred.fromFuture(asyncio.ensure_future(self._shut_down()))

    async def _shut_down(self) -> None:
        self.stopping = True
        await self._drain()
        await self.stop_listening()
        await self.retire_connections()
        await self._applications.cancel_all(self.limits.close_timeout)
        try:
            await asyncio.wait_for(self._open.wait_empty(), self.limits.close_timeout)
        except TimeoutError:
            logger.warning("%d connections were not closed in time.", len(self._open.transports))

    def _channels(self) -> list[GatewayChannel]:
        protocols = (transport.protocol for transport in self._open.transports)
        return [protocol for protocol in protocols if isinstance(protocol, GatewayChannel)]

    async def _drain(self) -> None:
        if self._on_shutdown is None:
            return
        drain = asyncio.ensure_future(self._on_shutdown())
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            logger.warning("A second signal ends the drain.")
            drain.cancel()
            await asyncio.wait({drain}, timeout=self.limits.close_timeout)
        hurry.cancel()
        if drain.done() and not drain.cancelled() and drain.exception() is not None:
            logger.error("The drain failed; the shutdown goes on.", exc_info=drain.exception())
