"""Requests over HTTP, handed straight to httpx's transport.

httpx's client would keep the cookies that one account was given and send them along with the requests of all others,
and it looks for redirects and authentication that nobody wants, for a good part of what sending a request costs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import lru_cache

import httpx

# What a request says unless it says something else; httpx adds the host and the length.
DEFAULTS = ((b"accept", b"*/*"), (b"accept-encoding", b"gzip, deflate"), (b"user-agent", b"pointsman"))

# Mostly an account's base URL and one of few paths; parsing one takes longer than looking it up.
_parsed = lru_cache(maxsize=256)(httpx.URL)


class Sender:
    """Sends requests by one transport, which it owns. Await `aclose` after every response has been closed."""

    def __init__(self, transport: httpx.AsyncBaseTransport, timeout: httpx.Timeout) -> None:
        self._transport = transport
        self._extensions = {"timeout": timeout.as_dict()}

    async def open(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], payload: bytes | None = None
    ) -> httpx.Response:
        """Send a request and wait for the head of its answer; read that, if at all, and close it.

        Raises httpx's errors.
        """
        # Values are bytes that were read as Latin-1; as text httpx would take none beyond ASCII.
        own = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
        if payload is not None:
            own.append((b"content-length", b"%d" % len(payload)))
        said = {name.lower() for name, _ in own}
        request = httpx.Request(
            method,
            _parsed(url),
            headers=[*(default for default in DEFAULTS if default[0] not in said), *own],
            content=None if payload is None else _Once(payload),
            extensions=self._extensions,
        )
        response = await self._transport.handle_async_request(request)
        response.request = request
        return response

    async def get(self, url: str, headers: Sequence[tuple[str, str]]) -> httpx.Response:
        """The whole of a small document; raises httpx's errors."""
        response = await self.open("GET", url, headers)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class _Once:
    """A request's body that is let go once it is sent. httpx would hold it in a cycle with the response."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    async def __aiter__(self) -> AsyncIterator[bytes]:
        payload, self._payload = self._payload, b""
        yield payload
