from __future__ import annotations

import asyncio
import gc
import socket
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import cast

from asgiref.typing import ASGI3Application
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from accounts.credentials import CredentialsError
from gateway import install, logs
from gateway.conf import Tunables
from gateway.management.announce import announcement
from gateway.management.ports import configured_port
from gateway.replicas.store import bury_process
from gateway.replicas.workers import Supervisor, is_worker, tell_ready, worker_command
from gateway.server import Endpoint, GatewayServer, InheritedSocket, ListenError, ServerLimits, TcpEndpoint
from gateway.upstream.connection import MAX_FRAME

BACKLOG = 1024


class Command(BaseCommand):
    help = "Run the gateway: traffic and admin on one port."
    # The database may not exist before this command makes it.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, help="port to listen on (default: PORT, GATEWAY_PORT or 8045)")
        parser.add_argument("--fd", type=int, help="serve on this inherited listening socket instead")
        parser.add_argument("--workers", type=int, default=1, help="processes to run (default: %(default)s)")

    def handle(self, *, host: str, port: int | None, fd: int | None, workers: int, **options: object) -> None:
        if workers < 1:
            raise CommandError("--workers must be at least 1.")
        if fd is not None and workers > 1:
            raise CommandError("--workers share a socket of their own; leave out --fd, or start one process for each.")
        logs.configure()
        self._prepare()
        if fd is not None and is_worker():
            serve_one(InheritedSocket(fd), lambda address: tell_ready())
            return
        endpoint = TcpEndpoint(host, configured_port() if port is None else port)
        if fd is None:
            # Before anything is made that is shown once: a start that fails must not use it up.
            require_free(endpoint)
        # Asked here: the database may not be used once the event loop runs.
        announce = partial(announcement, secrets=install.make_first_secrets(), empty=not install.has_accounts())
        if fd is not None:
            serve_one(InheritedSocket(fd), lambda address: self._say(announce(address)))
        elif workers == 1:
            serve_one(endpoint, lambda address: self._say(announce(address)))
        else:
            supervise(endpoint, workers, lambda address: self._say(announce(address)))

    def _prepare(self) -> None:
        try:
            install.prepare_database()
            install.check_credentials(settings.TOKEN_KEYS)
        except (install.NotInstalled, CredentialsError) as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            raise CommandError(
                f"The database cannot be used ({error}); check DATABASE_URL and GATEWAY_DATA_DIR."
            ) from None

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def require_free(endpoint: TcpEndpoint) -> None:
    """Raise `CommandError` unless this process can listen there now."""
    try:
        socket.create_server((endpoint.host, endpoint.port)).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"Cannot listen on {endpoint.host}:{endpoint.port} ({reason}); choose another --port or --host."
        raise CommandError(message) from None


def serve_one(endpoint: Endpoint, ready: Callable[[tuple[str, int]], None]) -> None:
    """Serve in this process until it is told to stop."""
    from gateway.asgi import application

    try:
        listener, peer_url = settings.PEER_ADDRESS.listen()
    except OSError as error:
        raise CommandError(f"Cannot listen for other replicas ({error.strerror}); see GATEWAY_PEER_BIND.") from None
    peer_port = listener.getsockname()[1]

    async def start_up() -> None:
        await application.startup(peer_url, peer_port)
        spare_the_collector()

    async def shut_down() -> None:
        if isinstance(endpoint, InheritedSocket):
            # Others listen on the same socket. New clients belong to them, and so do those that have a connection here.
            await server.stop_listening()
            await server.retire_connections()
        await application.shutdown()
        await server.stop_listening()

    server = GatewayServer(
        cast(ASGI3Application, application),
        [endpoint, InheritedSocket(listener.detach())],
        limits=limits(settings.GATEWAY),
        on_startup=start_up,
        on_shutdown=shut_down,
        ready=lambda addresses: ready(addresses[0]),
    )
    try:
        server.run()
    except ListenError as error:
        raise CommandError(str(error)) from None


def spare_the_collector() -> None:
    """What is loaded by now stays until the end, so the garbage collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()


def supervise(endpoint: TcpEndpoint, workers: int, ready: Callable[[tuple[str, int]], None]) -> None:
    """Listen here and let `workers` processes serve."""
    try:
        listener = socket.create_server((endpoint.host, endpoint.port), backlog=BACKLOG)
    except OSError as error:
        raise CommandError(f"Cannot listen on {endpoint.host}:{endpoint.port} ({error.strerror}).") from None
    address = listener.getsockname()[:2]
    supervisor = Supervisor(listener, workers, worker_command, bury)
    try:
        asyncio.run(supervisor.run(lambda: ready(address)))
    except RuntimeError as error:
        raise CommandError(str(error)) from None


async def bury(process: int) -> None:
    """A worker died: its turns are closed as interrupted at once."""
    await asyncio.to_thread(bury_process, process)


def limits(tunables: Tunables) -> ServerLimits:
    """The server's limits, from the same tunables as everything else."""
    # A frame over the body limit is read, so that it can be answered and not just cut off; and the limit is one on
    # requests, while an event of an answer has the size that its upstream gave it.
    largest = 2 * max(tunables.max_body_bytes, MAX_FRAME)
    return ServerLimits(
        max_message_bytes=largest,
        queue_bytes=2 * largest,
        ping_interval=tunables.ping_interval,
        ping_timeout=tunables.websocket_idle_timeout,
        close_timeout=tunables.close_timeout,
        # Later than the engine's own limit, which gives the ledger a reason.
        stall_timeout=tunables.client_stall_timeout + 5,
    )
