"""The real `Post` and `Fetch`, over httpx."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType

import httpx
import msgspec

from accounts.http_clients import HttpClients
from accounts.issuer import Answer, Unreachable
from accounts.proxy import ProxyTransport
from accounts.trust import trusted

# Seconds for one exchange in all. It must be shorter than a lease on a token, see `token_store`.
TIMEOUT = 30.0
# Seconds for closing a connection in good order.
CLOSE_TIMEOUT = 2.0
MAX_ANSWER = 4 * 1024 * 1024


class Web:
    """Asks issuers and usage endpoints. Use it as an async context manager; it owns its clients and closes them.

    Answers are not followed elsewhere, and the environment's proxy variables do not apply: what is sent here are
    tokens, and they go to the address they are meant for.
    """

    def __init__(self, network: httpx.AsyncBaseTransport | None = None, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._network = network
        self._clients = HttpClients(self._make_client, CLOSE_TIMEOUT)

    async def __aenter__(self) -> Web:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._clients.close()

    async def keep(self, proxies: Collection[str]) -> None:
        """Let go of the connections by all other proxies, when what is asked by them is answered."""
        await self._clients.keep(proxies)

    async def post(
        self, url: str, fields: Mapping[str, str], *, form: bool = False, proxy: str | None = None
    ) -> Answer:
        """See `Post`."""
        async with self._clients.borrowed(proxy) as client:
            if form:
                return await self._ask(client, client.build_request("POST", url, data=dict(fields)))
            return await self._ask(client, client.build_request("POST", url, json=dict(fields)))

    async def fetch(self, url: str, headers: Mapping[str, str], proxy: str | None = None) -> Answer:
        """See `Fetch`."""
        async with self._clients.borrowed(proxy) as client:
            return await self._ask(client, client.build_request("GET", url, headers=dict(headers)))

    def _make_client(self, proxy: str | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=self._network if proxy is None else ProxyTransport(proxy),
            verify=trusted(),
            trust_env=False,
            follow_redirects=False,
            timeout=self._timeout,
            # What one account is given is none of the others' business.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            headers={"user-agent": "pointsman", "accept": "application/json"},
        )

    async def _ask(self, client: httpx.AsyncClient, request: httpx.Request) -> Answer:
        content = b""
        try:
            async with asyncio.timeout(self._timeout):
                response = await client.send(request, stream=True)
                try:
                    async for chunk in response.aiter_bytes():
                        content += chunk
                        if len(content) > MAX_ANSWER:
                            raise Unreachable(f"{request.url.host} sent an answer of more than 4 MiB.")
                finally:
                    await response.aclose()
        except TimeoutError:
            raise Unreachable(f"{request.url.host} did not answer within {self._timeout:g} s.") from None
        except httpx.HTTPError as error:
            # The error itself may quote the request, and with it a token.
            raise Unreachable(f"{request.url.host} could not be asked ({type(error).__name__}).") from None
        return Answer(response.status_code, _object(content))


def _object(content: bytes) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(content, type=dict[str, object])
    except msgspec.MsgspecError:
        return {}
