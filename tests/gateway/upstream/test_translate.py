"""What each foreign exception means: whether anything was sent, and whose fault it is."""

from __future__ import annotations

import ssl

import httpx
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidMessage, InvalidStatus, InvalidUpgrade
from websockets.frames import Close
from websockets.http11 import Response

from gateway.errors import ConnectFailed, LivenessExpired, Overloaded, UpstreamLost, UpstreamRefused
from gateway.upstream.translate import dial_error, http_error, is_keepalive_expiry, lane_error

NOW = 1_000_000.0
OURS = Close(1011, "keepalive ping timeout")


def answered(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> InvalidStatus:
    return InvalidStatus(Response(status, "No", Headers(headers or {}), body))


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 405, 426, 429])
def test_a_status_below_500_is_a_refusal(status: int):
    error = dial_error(answered(status, {"X-Request-Id": "r"}, b'{"error":{"message":"no","code":"c"}}'), NOW)
    assert isinstance(error, UpstreamRefused)
    assert (error.refusal.status, error.refusal.code, error.refusal.message) == (status, "c", "no")
    assert error.refusal.headers["x-request-id"] == "r"


def test_a_success_that_is_no_websocket_is_a_failed_dial():
    assert isinstance(dial_error(answered(200), NOW), ConnectFailed)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_status_from_500_is_a_failed_dial_unless_it_says_when_to_come_back(status: int):
    assert isinstance(dial_error(answered(status), NOW), ConnectFailed)
    told = dial_error(answered(status, {"Retry-After": "7"}), NOW)
    assert isinstance(told, UpstreamRefused)
    assert told.refusal.headers["retry-after"] == "7"


def test_a_relative_reset_counts_from_now():
    body = b'{"error":{"type":"usage_limit_reached","resets_in_seconds":60}}'
    error = dial_error(answered(429, body=body), NOW)
    assert isinstance(error, UpstreamRefused)
    assert error.refusal.resets_at == NOW + 60


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError(), "upstream_connect_timeout"),
        (ssl.SSLCertVerificationError(), "upstream_tls_failed"),
        (InvalidMessage("no HTTP"), "upstream_connect_failed"),
        (InvalidUpgrade("Upgrade", "h2c"), "upstream_connect_failed"),
        (ConnectionRefusedError(), "upstream_connect_failed"),
        (OSError("Name or service not known"), "upstream_connect_failed"),
        (EOFError(), "upstream_connect_failed"),
    ],
)
def test_any_other_failed_dial_has_sent_nothing(error: Exception, code: str):
    failed = dial_error(error, NOW)
    assert isinstance(failed, ConnectFailed)
    assert failed.code == code


@pytest.mark.parametrize(
    ("rcvd", "sent", "rcvd_then_sent", "expired"),
    [
        (None, OURS, None, True),
        (OURS, OURS, False, True),
        (Close(1000, ""), OURS, False, True),
        (OURS, OURS, True, False),
        (OURS, None, None, False),
        (None, None, None, False),
        (None, Close(1011, "other words"), None, False),
        (None, Close(1000, "keepalive ping timeout"), None, False),
    ],
)
def test_only_our_own_close_frame_sent_first_proves_that_pongs_stopped(
    rcvd: Close | None, sent: Close | None, rcvd_then_sent: bool | None, expired: bool
):
    closed = ConnectionClosedError(rcvd, sent, rcvd_then_sent)
    assert is_keepalive_expiry(closed) is expired
    assert type(lane_error(closed)) is (LivenessExpired if expired else UpstreamLost)


def test_a_close_of_the_peer_is_named_by_its_code():
    assert "1012" in lane_error(ConnectionClosedError(Close(1012, ""), None)).message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (httpx.ConnectTimeout(""), "upstream_connect_timeout"),
        (httpx.ConnectError(""), "upstream_connect_failed"),
        (httpx.ProxyError(""), "upstream_connect_failed"),
    ],
)
def test_over_http_only_a_failed_connection_proves_that_nothing_was_sent(error: httpx.HTTPError, code: str):
    failed = http_error(error)
    assert isinstance(failed, ConnectFailed)
    assert failed.code == code


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout(""),
        httpx.WriteTimeout(""),
        httpx.ReadError(""),
        httpx.WriteError(""),
        httpx.RemoteProtocolError(""),
        httpx.LocalProtocolError(""),
        httpx.CloseError(""),
    ],
)
def test_everything_else_over_http_may_have_run(error: httpx.HTTPError):
    assert type(http_error(error)) is UpstreamLost


def test_a_full_connection_pool_is_a_limit_of_ours():
    refused = http_error(httpx.PoolTimeout(""))
    assert isinstance(refused, Overloaded)
    assert (refused.code, refused.retry_after) == ("http_pool_busy", 2)
    assert "GATEWAY_HTTP_MAX_CONNECTIONS" in refused.message
