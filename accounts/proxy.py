"""An account's own proxy: the one way to its upstream and its issuer. What cannot go through it does not go at all.

The URL may hold a password, so it is stored sealed, and only `shown_proxy` of it is for people. Names are resolved by
the proxy, over either transport.
"""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import anyio
import httpx
from httpx_socks import AsyncProxyTransport
from python_socks import ProxyError, ProxyTimeoutError, ProxyType, parse_proxy_url

SCHEMES = ("http", "https", "socks5")


class InvalidProxy(ValueError):
    """The text cannot be a proxy's URL. The message is one sentence without the text that says what to change."""


def clean_proxy(text: str) -> str:
    """Return `text` as the URL of a proxy in its one form; raises `InvalidProxy`.

    `http` and `https` say how the proxy itself is spoken to; `socks5h` means the same as `socks5` here.
    """
    text = text.strip()
    if not all("!" <= character <= "~" for character in text):
        raise InvalidProxy("The proxy's URL contains spaces or characters outside ASCII; encode them with %.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidProxy("The proxy's URL has a broken host or port; write socks5://host:port.") from None
    scheme = "socks5" if parts.scheme == "socks5h" else parts.scheme
    if scheme not in SCHEMES:
        raise InvalidProxy("The proxy's URL must begin with http://, https:// or socks5://.")
    if not parts.hostname or port is None:
        raise InvalidProxy("The proxy's URL needs a host and a port; write socks5://host:port.")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidProxy("The proxy's URL has something behind the port; remove it.")
    if parts.username is not None and not (parts.username and parts.password):
        raise InvalidProxy("The proxy's URL has a name without a password; write socks5://name:password@host:port.")
    user, at, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{user}{at}{host}:{port}"


def shown_proxy(proxy: str) -> str:
    """The URL without name and password."""
    scheme, _, rest = proxy.partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}://{'…@' if at else ''}{host}"


def proxy_for_websockets(proxy: str | None) -> str | None:
    """The URL as the WebSocket library wants it: there `socks5` would resolve names on this machine."""
    return None if proxy is None else proxy.replace("socks5://", "socks5h://", 1)


class ProxyTransport(httpx.AsyncBaseTransport):
    """Makes every connection through the proxy; all that goes wrong before one is made is a connect error.

    httpx's own proxies wait without a limit for a SOCKS proxy that is silent, and hand plain http over in the open.
    """

    def __init__(self, proxy: str, limits: httpx.Limits | None = None) -> None:
        secure = proxy.startswith("https://")
        kind, host, port, user, password = parse_proxy_url(proxy.replace("https://", "http://", 1) if secure else proxy)
        self._inner = AsyncProxyTransport(
            proxy_type=kind,
            proxy_host=host,
            proxy_port=port,
            username=user,
            password=password,
            # A proxy of HTTP resolves names anyway.
            rdns=True if kind is ProxyType.SOCKS5 else None,
            proxy_ssl=ssl.create_default_context() if secure else None,
            trust_env=False,
            limits=limits or httpx.Limits(),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # What goes wrong once there is a connection comes as an error of httpx, so all others are about making one.
        try:
            return await self._inner.handle_async_request(request)
        except ProxyTimeoutError:
            raise httpx.ConnectTimeout("The proxy made no connection in time.", request=request) from None
        except (ProxyError, OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
            raise httpx.ConnectError("The proxy made no connection.", request=request) from None

    async def aclose(self) -> None:
        await self._inner.aclose()
