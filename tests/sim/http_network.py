"""What httpx needs to run in the simulated world: its connections, and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import httpcore
import httpcore._async.http11
import httpx

from gateway.conf import Tunables
from gateway.upstream.network import Pipe, SocketStream
from tests.sim.network import Network


class Stream(SocketStream):
    """The gateway's own stream, which looks at no file to see whether anything has come."""

    def _is_readable(self) -> bool:
        return bool(self._pipe.received) or self._pipe.ended


class Backend(httpcore.AsyncNetworkBackend):
    """Opens streams on a simulated network, where names need no looking up."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        try:
            async with asyncio.timeout(timeout):
                end = await self._network.connect(host, port, Pipe)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("no connection in time") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        pipe = end.get_protocol()
        assert isinstance(pipe, Pipe)
        return Stream(end, pipe)


def transport(network: Network, tunables: Tunables) -> httpx.AsyncHTTPTransport:
    """httpx's own transport with the limits that the gateway sets, on a simulated network."""
    made = httpx.AsyncHTTPTransport(verify=False, trust_env=False)
    # httpx offers no argument for the network below its pool.
    made._pool = httpcore.AsyncConnectionPool(
        max_connections=tunables.http_max_connections,
        max_keepalive_connections=tunables.http_max_idle,
        keepalive_expiry=tunables.http_idle_expiry,
        network_backend=Backend(network),
    )
    return made


def tell_time(monotonic: Callable[[], float]) -> None:
    """Let httpcore measure the idle time of connections by the world's clock; it takes no other than its module's."""
    httpcore._async.http11.time = SimpleNamespace(monotonic=monotonic)  # type: ignore[assignment]
