"""Responses over HTTP and SSE: one sender per event loop and proxy, owned by whoever runs the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import httpx

from accounts.http_clients import HttpClients, Loan
from accounts.proxy import ProxyTransport
from gateway.clock import Clock
from gateway.conf import MIB, Tunables
from gateway.diagnostics import address
from gateway.errors import Refusal, UpstreamEnded, UpstreamLost, UpstreamRefused
from gateway.protocol.chain import Chain
from gateway.protocol.events import DOCUMENT, Event, Kind, only_plain, refusal_from_http
from gateway.protocol.sse import SseSplitter
from gateway.upstream.chunks import MOST_JOINED, ReadyChunks
from gateway.upstream.exchange import PassOn, Target
from gateway.upstream.network import DirectTransport, Pipe
from gateway.upstream.sender import Sender
from gateway.upstream.translate import http_error

EVENT_LIMIT = 16 * MIB
REFUSAL_LIMIT = MIB
EVENT_STREAM = "text/event-stream"
# Of what an upstream says of itself, so many characters are quoted to a client.
MOST_QUOTED = 60


@dataclass(frozen=True, slots=True)
class Document:
    """A whole answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class HttpTransport:
    """Makes HTTP exchanges. Close it last, after every exchange has been closed."""

    def __init__(self, tunables: Tunables, clock: Clock, network: httpx.AsyncBaseTransport | None = None) -> None:
        self._tunables = tunables
        self._clock = clock
        self._network = network
        self._clients = HttpClients(self._make_sender, tunables.close_timeout)

    async def warm_up(self) -> None:
        """Load what httpx loads at its first request, a third of a second's work that no turn should wait for."""
        async with self._clients.borrowed(None):
            await anyio.lowlevel.checkpoint()

    async def keep(self, proxies: Collection[str]) -> None:
        """Let go of the connections by all other proxies, when what runs on them has ended."""
        await self._clients.keep(proxies)

    def exchange(self, target: Target, *, runs: bool = False) -> HttpExchange:
        """An exchange with `target`; no connection is made before its `send`.

        With `runs` plain events are not told apart: whoever takes them passes their bytes on as they came.
        """
        splitter = SseSplitter(EVENT_LIMIT, runs=runs)
        return HttpExchange(self._clients, target, ("POST", "/responses"), self._tunables, self._clock, splitter)

    def follow(self, target: Target, path: str) -> HttpExchange:
        """A stream of events that is there already, under the target's base URL; `send` asks for it."""
        return HttpExchange(self._clients, target, ("GET", path), self._tunables, self._clock, SseSplitter(EVENT_LIMIT))

    async def look(self, url: str, headers: Mapping[str, str], proxy: str | None) -> httpx.Response:
        """`GET` a small document for a person who looks for a fault; httpx's errors come through as they are."""
        async with self._clients.borrowed(proxy) as sender:
            return await sender.get(url, list(headers.items()))

    def unary(self, target: Target, method: str, url: str) -> UnaryExchange:
        """One request to `url` that is answered by one document; no connection is made before its `send`."""
        return UnaryExchange(self._clients, target, (method, url), self._tunables, self._clock)

    async def fetch(self, target: Target, path: str) -> httpx.Response:
        """`GET` a small document under the target's base URL; raises `UpstreamError`s, not for a status."""
        try:
            async with self._clients.borrowed(target.proxy) as sender:
                return await sender.get(target.base_url + path, target.headers)
        except httpx.HTTPError as error:
            raise http_error(error) from error

    async def call(self, target: Target, method: str, path: str) -> Document:
        """Make a small request without a body under the target's base URL.

        Raises `UpstreamError`s, not for a status. The answer may have as many bytes as an event.
        """
        body = b""
        try:
            async with self._clients.borrowed(target.proxy) as sender:
                response = await sender.open(method, target.base_url + path, target.headers)
                async with aclosing(response):
                    async for chunk in response.aiter_raw():
                        body += chunk
                        if len(body) > EVENT_LIMIT:
                            raise UpstreamLost(f"The upstream's answer has more than {EVENT_LIMIT} bytes.")
        except httpx.HTTPError as error:
            raise http_error(error) from error
        return Document(response.status_code, body, dict(response.headers))

    async def close(self) -> None:
        await self._clients.close()

    def _make_sender(self, proxy: str | None) -> Sender:
        t = self._tunables
        limits = httpx.Limits(
            max_connections=t.http_max_connections,
            max_keepalive_connections=t.http_max_idle,
            keepalive_expiry=t.http_idle_expiry,
        )
        transport = DirectTransport(limits) if proxy is None else ProxyTransport(proxy, limits)
        timeout = httpx.Timeout(
            connect=t.connect_timeout, read=t.read_timeout, write=t.write_timeout, pool=t.pool_timeout
        )
        return Sender(self._network or transport, timeout)


class HttpExchange:
    """One request below the target's base URL, with a body if it is a `POST`, and its event stream."""

    transport = "http"

    def __init__(
        self,
        clients: HttpClients[Sender],
        target: Target,
        request: tuple[str, str],
        tunables: Tunables,
        clock: Clock,
        splitter: SseSplitter,
    ) -> None:
        self._clients = clients
        self._method, self._path = request
        self._loan: Loan[Sender] | None = None
        self._target = target
        self._tunables = tunables
        self._clock = clock
        self._response: httpx.Response | None = None
        self._chunks: ReadyChunks | None = None
        self._splitter = splitter

    async def send(self, payload: bytes) -> None:
        """Post the request and wait for the response's headers; raises `UpstreamRefused` for any status but 200."""
        self._loan = self._clients.borrow(self._target.proxy)
        url = self._target.base_url + self._path
        self._response = response = await _open(self._loan.client, self._method, url, self._target, payload)
        if response.status_code != httpx.codes.OK:
            raise UpstreamRefused(await _read_refusal(response, self._clock.wall()))
        # Not `aiter_raw`: what it adds to the stream, counting and joining chunks, costs time for each event.
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  # an async transport made it
        # What comes through a proxy is read by a library of its own.
        most_joined = MOST_JOINED if self._target.proxy is None else 0
        self._chunks = ReadyChunks(aiter(response.stream), most_joined, pipe_of(response))

    async def receive(self, pass_on: PassOn | None = None) -> list[Event]:
        assert self._chunks is not None  # noqa: S101  # `send` comes first
        while True:
            try:
                chunk = await self._chunks.take()
            except httpx.HTTPError as error:
                raise http_error(error) from error
            if not chunk:
                raise UpstreamEnded(self._why_it_ended())
            events = self._splitter.feed(chunk)
            if events and not (pass_on is not None and only_plain(events) and pass_on(events)):
                return events

    def _why_it_ended(self) -> str:
        headers = self.headers()
        kind, encoding = headers.get("content-type", EVENT_STREAM), headers.get("content-encoding", "identity")
        if encoding != "identity":
            return f"The upstream sent its stream as {encoding[:MOST_QUOTED]}, though it was asked for none of that."
        if not kind.startswith(EVENT_STREAM):
            return (
                f"The upstream sent {kind[:MOST_QUOTED]} in place of a stream of events; check the account's base URL."
            )
        return "The upstream ended its stream before the response ended."

    def headers(self) -> Mapping[str, str]:
        return {} if self._response is None else dict(self._response.headers)

    def watch_backlog(self, grew: Callable[[int], None]) -> None:
        """Over HTTP nothing waits here: reading stops with the client, and there are no pongs to miss."""

    def backlog(self) -> int:
        return 0

    def publish(self, response_id: str) -> bool:
        """Over HTTP no connection owns a response."""
        return False

    def remember(self, chain: Chain | None) -> None:
        """Over HTTP no connection holds a conversation."""

    async def close(self, *, clean: bool) -> None:
        if clean and self._chunks is not None:
            await self._drain(self._chunks)
        await _close(self._response, self._loan, self._tunables.close_timeout, self._chunks)

    async def _drain(self, chunks: ReadyChunks) -> None:
        """Read the rest of the framing, so that the connection can be used again. Never a second error."""
        try:
            async with asyncio.timeout(self._tunables.terminal_drain_timeout):
                while await chunks.take():
                    pass
        except (TimeoutError, httpx.HTTPError):
            # What comes after the terminal event belongs to nobody; `aclose` ends it.
            pass


class UnaryExchange:
    """A method on a URL, with a body or without. The answer comes as one event, a document of bounded size."""

    transport = "http"

    def __init__(
        self, clients: HttpClients[Sender], target: Target, request: tuple[str, str], tunables: Tunables, clock: Clock
    ) -> None:
        self._clients = clients
        self._loan: Loan[Sender] | None = None
        self._target = target
        self._method, self._url = request
        self._tunables = tunables
        self._clock = clock
        self._response: httpx.Response | None = None

    async def send(self, payload: bytes) -> None:
        """Send the request and wait for the answer's headers; raises `UpstreamRefused` for any status but a 2xx."""
        self._loan = self._clients.borrow(self._target.proxy)
        self._response = response = await _open(self._loan.client, self._method, self._url, self._target, payload)
        if not response.is_success:
            raise UpstreamRefused(await _read_refusal(response, self._clock.wall()))

    async def receive(self, pass_on: PassOn | None = None) -> list[Event]:
        assert self._response is not None  # noqa: S101  # `send` comes first
        chunks: list[bytes] = []
        size, limit = 0, self._tunables.max_body_bytes
        try:
            async for chunk in self._response.aiter_raw():
                size += len(chunk)
                if size > limit:
                    raise UpstreamLost(f"The upstream's answer is larger than {limit} bytes (GATEWAY_MAX_BODY_BYTES).")
                chunks.append(chunk)
        except httpx.HTTPError as error:
            raise http_error(error) from error
        return [Event(DOCUMENT, Kind.TERMINAL, b"".join(chunks))]

    def headers(self) -> Mapping[str, str]:
        return {} if self._response is None else dict(self._response.headers)

    def watch_backlog(self, grew: Callable[[int], None]) -> None:
        """Nothing waits here: the answer is read as it comes."""

    def backlog(self) -> int:
        return 0

    def publish(self, response_id: str) -> bool:
        """No connection owns anything."""
        return False

    def remember(self, chain: Chain | None) -> None:
        """No connection holds a conversation."""

    async def close(self, *, clean: bool) -> None:
        await _close(self._response, self._loan, self._tunables.close_timeout)


async def _open(sender: Sender, method: str, url: str, target: Target, payload: bytes) -> httpx.Response:
    """Send a request, with a body if it is a `POST`, and wait for the head of its answer; raises `UpstreamError`s."""
    with target.trace.connecting(url) as connecting:
        try:
            response = await sender.open(method, url, target.headers, payload if method == "POST" else None)
        except httpx.HTTPError as error:
            raise http_error(error) from error
        connecting.status = response.status_code
        connecting.peer_address = peer_address(response)
    pipe = pipe_of(response)
    if pipe is not None and pipe.last_read == 0:
        # It came out of what was left of the answer before it, and may be another client's.
        await response.aclose()
        raise UpstreamLost("The upstream's connection held an answer that nobody had asked for, and was closed.")
    return response


async def _close(
    response: httpx.Response | None, loan: Loan[Sender] | None, timeout: float, chunks: ReadyChunks | None = None
) -> None:
    try:
        async with asyncio.timeout(timeout):
            if chunks is not None:
                await chunks.close()
            if response is not None:
                await response.aclose()
    except (TimeoutError, httpx.HTTPError):
        # The response has been delivered or given up; httpx has dropped the connection either way.
        pass
    finally:
        if loan is not None:
            await loan.give_back()


async def _read_refusal(response: httpx.Response, now: float) -> Refusal:
    body = b""
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > REFUSAL_LIMIT:
                break
    except httpx.HTTPError:
        # The status is the refusal; a body cut short only makes its message poorer.
        pass
    return refusal_from_http(response.status_code, dict(response.headers), body[:REFUSAL_LIMIT], now)


def pipe_of(response: httpx.Response) -> Pipe | None:
    """What the body comes through, where that is a connection of ours."""
    pipe = _told_by_network(response, "pipe")
    return pipe if isinstance(pipe, Pipe) else None


def peer_address(response: httpx.Response) -> str | None:
    """The address of the live connection behind `response`, where its network tells."""
    return address(_told_by_network(response, "server_addr"))


def _told_by_network(response: httpx.Response, info: str) -> object:
    stream = response.extensions.get("network_stream")
    return None if stream is None else stream.get_extra_info(info)
