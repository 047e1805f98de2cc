"""Requests to other replicas over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from accounts.trust import trusted
from gateway.conf import Tunables
from gateway.errors import ConnectFailed, UpstreamLost

LOST = "replica_lost"
# What an owner's answer may take longer than the account's own times.
MARGIN = 30.0


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Another replica's answer: its status is the hand-over, from then on the turn is that replica's."""

    status: int
    headers: Mapping[str, str]
    _response: httpx.Response

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; raises `UpstreamLost` when it breaks off."""
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise lost() from error


class PeerTransport:
    """Posts to other replicas. Close it with its event loop."""

    def __init__(self, tunables: Tunables, network: httpx.AsyncBaseTransport | None = None) -> None:
        silence = max(tunables.response_start_timeout, tunables.stream_idle_timeout, tunables.header_wait) + MARGIN
        self._client = httpx.AsyncClient(
            transport=network,
            verify=trusted(),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(silence, connect=tunables.connect_timeout, pool=tunables.pool_timeout),
            limits=httpx.Limits(
                max_connections=tunables.http_max_connections,
                max_keepalive_connections=tunables.http_max_idle,
                keepalive_expiry=tunables.http_idle_expiry,
            ),
        )

    @asynccontextmanager
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> AsyncIterator[PeerAnswer]:
        """Post and wait for the status.

        Raises `ConnectFailed` when provably nothing was sent, `UpstreamLost` when nobody can say what became of it.
        """
        request = self._client.build_request("POST", url, headers=headers, content=body)
        try:
            response = await self._client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ConnectFailed("The replica that owns the conversation cannot be reached.") from error
        except httpx.HTTPError as error:
            raise lost() from error
        try:
            yield PeerAnswer(response.status_code, response.headers, response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        await self._client.aclose()


def lost() -> UpstreamLost:
    return UpstreamLost("The replica that carried the turn was lost on the way; it is not sent again.", code=LOST)
