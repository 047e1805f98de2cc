"""Responses over HTTP and SSE, by httpx: one client per event loop and proxy, owned by whoever runs the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import anyio
import anyio.lowlevel
import httpx

from gateway.clock import Clock
from gateway.conf import MIB, Tunables
from gateway.diagnostics import address
from gateway.errors import Refusal, UpstreamLost, UpstreamRefused
from gateway.protocol.chain import Chain
from gateway.protocol.events import Event, refusal_from_http
from gateway.protocol.sse import SseSplitter
from gateway.upstream.exchange import Target
from gateway.upstream.translate import http_error

EVENT_LIMIT = 16 * MIB
REFUSAL_LIMIT = MIB


class HttpTransport:
    """Makes HTTP exchanges. Close it last, after every exchange has been closed."""

    def __init__(self, tunables: Tunables, clock: Clock, network: httpx.AsyncBaseTransport | None = None) -> None:
        self._tunables = tunables
        self._clock = clock
        self._network = network
        self._clients: dict[str | None, httpx.AsyncClient] = {}

    async def warm_up(self) -> None:
        """Load what httpx loads at its first request, a third of a second's work that no turn should wait for."""
        self._client(None)
        await anyio.lowlevel.checkpoint()

    def exchange(self, target: Target, *, runs: bool = False) -> HttpExchange:
        """An exchange with `target`; no connection is made before its `send`.

        With `runs` plain events are not told apart: whoever takes them passes their bytes on as they came.
        """
        splitter = SseSplitter(EVENT_LIMIT, runs=runs)
        return HttpExchange(self._client(target.proxy), target, self._tunables, self._clock, splitter)

    async def fetch(self, target: Target, path: str) -> httpx.Response:
        """`GET` a small document under the target's base URL; raises `UpstreamError`s, not for a status."""
        try:
            return await self._client(target.proxy).get(target.base_url + path, headers=_raw(target.headers))
        except httpx.HTTPError as error:
            raise http_error(error) from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    def _client(self, proxy: str | None) -> httpx.AsyncClient:
        if proxy not in self._clients:
            t = self._tunables
            self._clients[proxy] = httpx.AsyncClient(
                transport=self._network,
                proxy=proxy,
                # The environment's proxy variables are for other programs: an account's own proxy is the one rule.
                trust_env=False,
                follow_redirects=False,
                timeout=httpx.Timeout(
                    connect=t.connect_timeout, read=t.read_timeout, write=t.write_timeout, pool=t.pool_timeout
                ),
                limits=httpx.Limits(
                    max_connections=t.http_max_connections,
                    max_keepalive_connections=t.http_max_idle,
                    keepalive_expiry=t.http_idle_expiry,
                ),
                headers={"user-agent": "pointsman"},
            )
        return self._clients[proxy]


class _Once:
    """A request's body that is let go once it is sent. httpx would hold it in a cycle with the response."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    async def __aiter__(self) -> AsyncIterator[bytes]:
        payload, self._payload = self._payload, b""
        yield payload


class HttpExchange:
    """One `POST …/responses` and its event stream."""

    transport = "http"

    def __init__(
        self, client: httpx.AsyncClient, target: Target, tunables: Tunables, clock: Clock, splitter: SseSplitter
    ) -> None:
        self._client = client
        self._target = target
        self._tunables = tunables
        self._clock = clock
        self._response: httpx.Response | None = None
        self._splitter = splitter

    async def send(self, payload: bytes) -> None:
        """Post the request and wait for the response's headers; raises `UpstreamRefused` for any status but 200."""
        headers = _raw([*self._target.headers, ("content-length", str(len(payload)))])
        request = self._client.build_request(
            "POST", self._target.base_url + "/responses", headers=headers, content=_Once(payload)
        )
        with self._target.trace.connecting(str(request.url)) as connecting:
            try:
                response = await self._client.send(request, stream=True)
            except httpx.HTTPError as error:
                raise http_error(error) from error
            connecting.status = response.status_code
            connecting.peer_address = peer_address(response)
        self._response = response
        if response.status_code != httpx.codes.OK:
            raise UpstreamRefused(await self._read_refusal(response))
        # Not `aiter_raw`: what it adds to the stream, counting and joining chunks, costs time for each event.
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  # an AsyncClient made it
        self._chunks = aiter(response.stream)

    async def receive(self) -> list[Event]:
        events: list[Event] = []
        while not events:
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                raise UpstreamLost("The upstream ended its stream before the response ended.") from None
            except httpx.HTTPError as error:
                raise http_error(error) from error
            events = self._splitter.feed(chunk)
        return events

    def headers(self) -> Mapping[str, str]:
        return {} if self._response is None else dict(self._response.headers)

    def watch_backlog(self, grew: Callable[[int], None]) -> None:
        """Over HTTP nothing waits here: reading stops with the client, and there are no pongs to miss."""

    def backlog(self) -> int:
        return 0

    def publish(self, response_id: str) -> None:
        """Over HTTP no connection owns a response."""

    def remember(self, chain: Chain | None) -> None:
        """Over HTTP no connection holds a conversation."""

    async def close(self, *, clean: bool) -> None:
        if self._response is None:
            return
        if clean:
            await self._drain()
        try:
            async with asyncio.timeout(self._tunables.close_timeout):
                await self._response.aclose()
        except (TimeoutError, httpx.HTTPError):
            # The response has been delivered or given up; httpx has dropped the connection either way.
            pass

    async def _drain(self) -> None:
        """Read the rest of the framing, so that the connection can be used again. Never a second error."""
        try:
            async with asyncio.timeout(self._tunables.terminal_drain_timeout):
                async for _ in self._chunks:
                    pass
        except (TimeoutError, httpx.HTTPError):
            # What comes after the terminal event belongs to nobody; `aclose` ends it.
            pass

    async def _read_refusal(self, response: httpx.Response) -> Refusal:
        body = b""
        try:
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > REFUSAL_LIMIT:
                    break
        except httpx.HTTPError:
            # The status is the refusal; a body cut short only makes its message poorer.
            pass
        return refusal_from_http(response.status_code, dict(response.headers), body[:REFUSAL_LIMIT], self._clock.wall())


def _raw(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Header values are bytes that were read as Latin-1; as text httpx would take none beyond ASCII."""
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]


def peer_address(response: httpx.Response) -> str | None:
    """The address of the live connection behind `response`, where its network tells."""
    stream = response.extensions.get("network_stream")
    return None if stream is None else address(stream.get_extra_info("server_addr"))
