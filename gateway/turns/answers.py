"""How each error looks to a client: one table from error to status, type, code and headers, for every transport.

What the real clients do with a status or a code decides what they get; `docs/design.md` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.errors import (
    AccountsLimited,
    ClientError,
    ConnectFailed,
    GatewayError,
    KeyLimited,
    LivenessExpired,
    LocalRefusal,
    NoUsableAccount,
    OwnerBusy,
    OwnerGone,
    OwnersDisagree,
    Refusal,
    UpstreamError,
    UpstreamRefused,
)
from gateway.protocol.events import error_object
from gateway.turns.causes import USAGE_LIMITS
from gateway.turns.request import Route

INVALID = "invalid_request_error"
SERVER = "server_error"
RATE_LIMIT = "rate_limit_error"
USAGE_LIMIT = "usage_limit_reached"
# The clients give up at once on these codes, so a refusal that passes must never carry one.
FATAL_OVERLOAD = "server_is_overloaded"
UPSTREAM_RETRY_AFTER = 2
# Seconds that a client is asked to wait by itself; of a longer wait its user is told.
LONGEST_RETRY_AFTER = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as a client gets it.

    `frame_status` is its status in a WebSocket error frame where that differs; `error` is the upstream's own error
    object as JSON where it is passed on unchanged; `lost` says that the upstream may have run the request.
    """

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    frame_status: int | None = None
    error: bytes | None = None
    lost: bool = False


def answer(error: GatewayError, route: Route) -> Answer:
    """The answer for `error` on `route`; any error of the tree has one."""
    for kind, build in ANSWERS:
        if isinstance(error, kind):
            return build(error, route)
    return Answer(500, SERVER, error.code, error.message)


def _client_error(error: ClientError, route: Route) -> Answer:
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return Answer(error.status, INVALID, error.code, error.message, error.param, headers)


def _local(error: LocalRefusal, route: Route) -> Answer:
    return _retry(503, error.code, error.message, error.retry_after)


def _key_limited(error: KeyLimited, route: Route) -> Answer:
    if error.retry_after <= LONGEST_RETRY_AFTER or error.resets_at is None:
        return Answer(429, RATE_LIMIT, error.code, error.message, headers={"retry-after": str(error.retry_after)})
    return Answer(429, USAGE_LIMIT, error.code, error.message, extra={"resets_at": error.resets_at})


def _limited(error: AccountsLimited, route: Route) -> Answer:
    extra: dict[str, object] = {}
    if error.resets_at is not None:
        extra["resets_at"] = error.resets_at
    if error.plan_type is not None:
        extra["plan_type"] = error.plan_type
    return Answer(429, USAGE_LIMIT, None, error.message, extra=extra)


def _no_accounts(error: NoUsableAccount, route: Route) -> Answer:
    if route is Route.CODEX:
        # Shown at once: only the operator can help, so retries would hide it.
        return Answer(400, INVALID, error.code, error.message)
    return _retry(503, error.code, error.message, 30, frame_status=400)


def _owner_gone(error: OwnerGone, route: Route) -> Answer:
    return Answer(400, INVALID, error.code, error.message, "previous_response_id")


def _owners_disagree(error: OwnersDisagree, route: Route) -> Answer:
    return Answer(400, INVALID, error.code, error.message)


def _owner_busy(error: OwnerBusy, route: Route) -> Answer:
    return _retry(409, error.code, error.message, 1, frame_status=503)


def _upstream_lost(error: UpstreamError, route: Route) -> Answer:
    lost = not isinstance(error, ConnectFailed)
    resets_at = error.resets_at if isinstance(error, ConnectFailed) else None
    extra = {} if resets_at is None else {"resets_at": resets_at}
    if route is Route.CODEX:
        # That client tries a 502 thirty times within seconds, a 503 with Retry-After five times in its own time.
        headers = {"retry-after": str(UPSTREAM_RETRY_AFTER)}
        return Answer(503, SERVER, error.code, error.message, headers=headers, extra=extra, lost=lost)
    return Answer(502, SERVER, error.code, error.message, extra=extra, frame_status=503, lost=lost)


def _refused(error: UpstreamRefused, route: Route) -> Answer:
    refusal = error.refusal
    if refusal.status in (401, 403):
        return _retry(
            503,
            "upstream_account_unavailable",
            "The upstream did not accept the gateway's account; its operator can see why in the admin.",
            UPSTREAM_RETRY_AFTER,
        )
    if refusal.status >= 500 or refusal.code == FATAL_OVERLOAD:
        return _busy(refusal)
    if refusal.status == 429:
        return _rate_limited(refusal)
    if refusal.status < 400:
        # A redirect is not followed: the account's credentials are for the account's own address.
        return _upstream_lost(error, route)
    return Answer(
        status=refusal.status,
        type=refusal.type or INVALID,
        code=refusal.code,
        message=refusal.message,
        headers=_kept(refusal),
        error=error_object(refusal.body),
    )


def _rate_limited(refusal: Refusal) -> Answer:
    headers = _kept(refusal)
    # Clients know a usage limit by its type alone, whichever way the upstream named it.
    named = (name for name in (refusal.type, refusal.code) if name in USAGE_LIMITS)
    kind = next(named, refusal.type) or RATE_LIMIT
    extra: dict[str, object] = {}
    if refusal.resets_at is not None:
        extra["resets_at"] = int(refusal.resets_at)
    if refusal.plan_type is not None:
        extra["plan_type"] = refusal.plan_type
    if kind not in USAGE_LIMITS:
        # Without it the clients give up at once.
        headers.setdefault("retry-after", str(UPSTREAM_RETRY_AFTER))
    return Answer(429, kind, refusal.code, refusal.message, headers=headers, extra=extra)


def _busy(refusal: Refusal) -> Answer:
    code = "upstream_busy" if refusal.code in (None, FATAL_OVERLOAD) else refusal.code
    headers = _kept(refusal)
    headers.setdefault("retry-after", str(UPSTREAM_RETRY_AFTER))
    return Answer(503, SERVER, code, refusal.message or "The upstream is busy.", headers=headers)


def _kept(refusal: Refusal) -> dict[str, str]:
    """The refusal's headers that mean something to a client: limits, when to come back, and its request id."""
    return {
        name: value
        for name, value in refusal.headers.items()
        if name.startswith("x-codex-") or name in ("retry-after", "x-request-id")
    }


def _retry(status: int, code: str, message: str, after: int, *, frame_status: int | None = None) -> Answer:
    return Answer(status, SERVER, code, message, headers={"retry-after": str(after)}, frame_status=frame_status)


ANSWERS: tuple[tuple[type[GatewayError], Callable[..., Answer]], ...] = (
    (ClientError, _client_error),
    (KeyLimited, _key_limited),
    (LocalRefusal, _local),
    (AccountsLimited, _limited),
    (NoUsableAccount, _no_accounts),
    (OwnerGone, _owner_gone),
    (OwnerBusy, _owner_busy),
    (OwnersDisagree, _owners_disagree),
    (UpstreamRefused, _refused),
    (LivenessExpired, _upstream_lost),
    (UpstreamError, _upstream_lost),
)
