"""Which cause each error is, for the table of decisions."""

from __future__ import annotations

from gateway.errors import (
    ClientLost,
    ConnectFailed,
    GatewayError,
    LivenessExpired,
    LocalRefusal,
    NoAccount,
    OwnerUnavailable,
    Refusal,
    UpstreamError,
    UpstreamRefused,
    UpstreamSilent,
)
from gateway.turns.turn import Cause

STATUS_CAUSES = {401: Cause.UNAUTHORIZED, 403: Cause.FORBIDDEN}
CODE_CAUSES = {
    "previous_response_not_found": Cause.PREVIOUS_NOT_FOUND,
    "websocket_connection_limit_reached": Cause.CONNECTION_LIMIT,
    "server_is_overloaded": Cause.UPSTREAM_BUSY,
}
CLASS_CAUSES: tuple[tuple[type[GatewayError], Cause], ...] = (
    (LivenessExpired, Cause.LIVENESS),
    (UpstreamError, Cause.UPSTREAM_LOST),
    (OwnerUnavailable, Cause.OWNER_UNAVAILABLE),
    (LocalRefusal, Cause.LOCAL_REFUSAL),
    (NoAccount, Cause.NO_ACCOUNT),
)
USAGE_LIMITS = frozenset({"usage_limit_reached", "usage_not_included", "insufficient_quota"})


def cause_of(error: GatewayError) -> Cause:
    """The cause of `error`; an error of no other kind is `internal`."""
    match error:
        case UpstreamRefused():
            return refusal_cause(error.refusal)
        case ConnectFailed(code="lane_closed"):
            return Cause.LANE_CLOSED
        case ConnectFailed():
            return Cause.CONNECT_FAILED
        case UpstreamSilent(code="stream_idle_timeout"):
            return Cause.STREAM_IDLE_TIMEOUT
        case UpstreamSilent():
            return Cause.RESPONSE_START_TIMEOUT
        case ClientLost(code="client_gone"):
            return Cause.CLIENT_GONE
        case ClientLost():
            return Cause.CLIENT_STALLED
    return next((cause for kind, cause in CLASS_CAUSES if isinstance(error, kind)), Cause.INTERNAL)


def refusal_cause(refusal: Refusal) -> Cause:
    """What an upstream's refusal is about: its code first, then its status."""
    if refusal.code in CODE_CAUSES:
        return CODE_CAUSES[refusal.code]
    if refusal.status == 429:
        limited = refusal.type in USAGE_LIMITS or refusal.code in USAGE_LIMITS
        return Cause.USAGE_LIMIT if limited else Cause.RATE_LIMIT
    if refusal.status == 503 and "retry-after" in refusal.headers:
        return Cause.UPSTREAM_BUSY
    if refusal.status >= 500:
        return Cause.UPSTREAM_LOST
    return STATUS_CAUSES.get(refusal.status, Cause.REJECTED)
