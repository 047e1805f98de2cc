"""Which cause each error is."""

from __future__ import annotations

import pytest

from gateway.errors import (
    AccountsLimited,
    ClientLost,
    ConnectFailed,
    GatewayError,
    InvalidBody,
    LedgerUnavailable,
    LivenessExpired,
    NoUsableAccount,
    Overloaded,
    OwnerBusy,
    OwnerGone,
    Refusal,
    Stopping,
    UpstreamLost,
    UpstreamRefused,
    UpstreamSilent,
)
from gateway.turns.causes import cause_of, refusal_cause
from gateway.turns.turn import Cause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectFailed("x"), Cause.CONNECT_FAILED),
        (ConnectFailed("x", code="upstream_connect_timeout"), Cause.CONNECT_FAILED),
        (ConnectFailed("x", code="lane_closed"), Cause.LANE_CLOSED),
        (UpstreamRefused(Refusal(401)), Cause.UNAUTHORIZED),
        (UpstreamLost("x"), Cause.UPSTREAM_LOST),
        (UpstreamSilent("x"), Cause.RESPONSE_START_TIMEOUT),
        (UpstreamSilent("x", code="stream_idle_timeout"), Cause.STREAM_IDLE_TIMEOUT),
        (LivenessExpired("x"), Cause.LIVENESS),
        (ClientLost("x"), Cause.CLIENT_GONE),
        (ClientLost("x", code="client_stalled"), Cause.CLIENT_STALLED),
        (ClientLost("x", code="client_too_slow"), Cause.CLIENT_STALLED),
        (OwnerGone("x"), Cause.OWNER_UNAVAILABLE),
        (OwnerBusy("x"), Cause.OWNER_UNAVAILABLE),
        (Overloaded("x"), Cause.LOCAL_REFUSAL),
        (LedgerUnavailable("x"), Cause.LOCAL_REFUSAL),
        (Stopping("x"), Cause.LOCAL_REFUSAL),
        (AccountsLimited("x"), Cause.NO_ACCOUNT),
        (NoUsableAccount("x"), Cause.NO_ACCOUNT),
        (InvalidBody("x"), Cause.INTERNAL),
        (GatewayError("x"), Cause.INTERNAL),
    ],
)
def test_every_error_has_its_cause(error: GatewayError, cause: Cause) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        (Refusal(401), Cause.UNAUTHORIZED),
        (Refusal(403), Cause.FORBIDDEN),
        (Refusal(400), Cause.REJECTED),
        (Refusal(404), Cause.REJECTED),
        (Refusal(422, code="invalid_prompt"), Cause.REJECTED),
        (Refusal(429, type="usage_limit_reached"), Cause.USAGE_LIMIT),
        (Refusal(429, code="usage_limit_reached"), Cause.USAGE_LIMIT),
        (Refusal(429, type="usage_not_included"), Cause.USAGE_LIMIT),
        (Refusal(429, type="insufficient_quota", code="insufficient_quota"), Cause.USAGE_LIMIT),
        (Refusal(429, code="rate_limit_exceeded"), Cause.RATE_LIMIT),
        (Refusal(429), Cause.RATE_LIMIT),
        (Refusal(503, code="server_is_overloaded"), Cause.UPSTREAM_BUSY),
        (Refusal(503, headers={"retry-after": "3"}), Cause.UPSTREAM_BUSY),
        (Refusal(503), Cause.UPSTREAM_LOST),
        (Refusal(500), Cause.UPSTREAM_LOST),
        (Refusal(500, headers={"retry-after": "3"}), Cause.UPSTREAM_LOST),
        (Refusal(400, code="previous_response_not_found"), Cause.PREVIOUS_NOT_FOUND),
        (Refusal(400, code="websocket_connection_limit_reached"), Cause.CONNECTION_LIMIT),
    ],
)
def test_a_refusal_is_about_its_code_first_and_then_its_status(refusal: Refusal, cause: Cause) -> None:
    assert refusal_cause(refusal) is cause
    assert cause_of(UpstreamRefused(refusal)) is cause
