"""Foreign exceptions of httpx and websockets become the gateway's own here, and nowhere else."""

from __future__ import annotations

import ssl

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, ProxyError

from gateway.errors import (
    ConnectFailed,
    LivenessExpired,
    Overloaded,
    UpstreamError,
    UpstreamLost,
    UpstreamRefused,
)
from gateway.protocol.events import refusal_from_http

KEEPALIVE_CODE = 1011
KEEPALIVE_REASON = "keepalive ping timeout"


def dial_error(error: Exception, now: float) -> UpstreamError:
    """What a failed dial of a lane means. No request was sent on it, so all but a refusal may be tried again."""
    if isinstance(error, InvalidStatus):
        response = error.response
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        # With a success other than 101 somebody answered who knows nothing of WebSockets.
        if response.status_code < 300 or (response.status_code >= 500 and "retry-after" not in headers):
            return ConnectFailed(f"The upstream answered the WebSocket handshake with {response.status_code}.")
        return UpstreamRefused(refusal_from_http(response.status_code, headers, bytes(response.body or b""), now))
    if isinstance(error, TimeoutError):
        return ConnectFailed(
            "The upstream did not complete the WebSocket handshake in time.", code="upstream_connect_timeout"
        )
    if isinstance(error, ssl.SSLError):
        return ConnectFailed("TLS with the upstream failed.", code="upstream_tls_failed")
    if isinstance(error, ProxyError):
        return ConnectFailed("The account's proxy made no connection.", code="upstream_proxy_failed")
    if isinstance(error, InvalidHandshake):
        return ConnectFailed("The upstream broke off the WebSocket handshake.")
    return ConnectFailed("No connection to the upstream could be made.")


def is_keepalive_expiry(error: ConnectionClosed) -> bool:
    """Whether our own keepalive closed the connection.

    Only the frame that we sent, and sent first, proves it: a peer may send the same code and text, which is an
    ordinary close.
    """
    sent = error.sent
    if sent is None or sent.code != KEEPALIVE_CODE or sent.reason != KEEPALIVE_REASON:
        return False
    return error.rcvd is None or error.rcvd_then_sent is False


def lane_error(error: ConnectionClosed) -> UpstreamError:
    """What the end of a lane means for the response it was carrying."""
    if is_keepalive_expiry(error):
        return LivenessExpired("The upstream's WebSocket stopped answering pings.")
    if error.rcvd is not None:
        return UpstreamLost(f"The upstream closed its WebSocket with code {error.rcvd.code} before the response ended.")
    return UpstreamLost("The upstream's WebSocket was lost before the response ended.")


def http_error(error: httpx.HTTPError) -> UpstreamError | Overloaded:
    """What a failed HTTP exchange means. Only a connect error or timeout proves that nothing was sent."""
    if isinstance(error, httpx.ConnectTimeout):
        return ConnectFailed("The connection to the upstream timed out.", code="upstream_connect_timeout")
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return ConnectFailed("No connection to the upstream could be made.")
    if isinstance(error, httpx.PoolTimeout):
        return Overloaded(
            "All GATEWAY_HTTP_MAX_CONNECTIONS upstream connections are in use; nothing was sent.",
            code="http_pool_busy",
            retry_after=2,
        )
    return UpstreamLost("The upstream's connection was lost before the response ended.")
